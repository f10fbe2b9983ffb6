"""Workers that are killed, woken, stopped, or several at once."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from boltdp import _interrupts
from boltdp.cli import main
from boltdp.engines.postgres.local_server import Server
from boltdp.ledger import Ledger, open_ledger, postgres_store
from boltdp.privacy.budget import Budget
from boltdp.run_context import Context
from boltdp.service import worker
from boltdp.service.worker import REASONS, Worker, WorkerError
from boltdp.workflows.train import run_plan
from tests.ledger.charges import started
from tests.postgres.desk import ALLOW, SECRET_NAME, Desk, opened_desk
from tests.postgres.test_training import wait_until

#: A worker that kills itself when it comes to a place, or when it has passed it.
KILLED = """
import os, signal, sys
from boltdp.service import train_per_group, worker
from boltdp.ledger import open_ledger
from boltdp.ledger.ledger import Account, Reservation

uri, stage = sys.argv[1:]

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def dying(self, *arguments):
    answer(self, *arguments)
    die()

def second(*arguments, trained=[]):
    if trained:
        die()
    trained.append(train(*arguments))
    return trained[0]

answer, train = worker.Worker._store_answer, train_per_group.train_prepared
place, replacement = {
    "claimed": ((worker.Worker, "_train_request"), die),
    "planned": ((worker.Worker, "_mark_charged"), die),
    "charged": ((Account, "reserve"), die),
    "reserved": ((worker, "run_plan"), die),
    "one of two": ((train_per_group, "train_prepared"), second),
    "trained": ((Reservation, "commit"), die),
    "noted": ((worker.Worker, "_store_answer"), die),
    "storing": ((worker, "make_insert"), die),
    "answered": ((worker.Worker, "_store_answer"), dying),
}[stage]
getattr(*place)
setattr(*place, replacement)
worker.Worker(uri, open_ledger(uri), say=print).run(once=True)
"""

#: Stages before which nothing was charged to the role, and before which nothing was reserved in the ledger.
RETRIED, UNRESERVED = ("claimed", "planned"), ("claimed", "planned", "charged")
STAGES = (*UNRESERVED, "reserved", "trained", "noted", "storing", "answered")

#: A worker that waits for nothing but a notification.
WAITING = """
import signal, sys
from boltdp.run_context import Context
from boltdp.service import worker
from boltdp.ledger import open_ledger

worker.POLL_SECONDS, worker.RECONNECT_SECONDS = 3600.0, 0.01
uri = sys.argv[1]
serving = worker.Worker(uri, open_ledger(uri), say=lambda text: print(text, flush=True))
print("ready", flush=True)
serving.run()
"""

ONCE = """
import sys
from boltdp.run_context import Context
from boltdp.service import worker
from boltdp.ledger import open_ledger

uri = sys.argv[1]
serving = worker.Worker(uri, open_ledger(uri), say=lambda text: print(text, flush=True))
print("ready", flush=True)
sys.stdin.readline()
serving.run(once=True)
"""


@pytest.fixture
def desk(server: Server) -> Iterator[Desk]:
    with opened_desk(server, epsilon=100.0) as opened:
        opened.ask("hospital", "UPDATE boltdp.allowances SET epsilon = 100")
        yield opened


def at_work(desk: Desk) -> int:
    query = "SELECT FROM pg_stat_activity WHERE application_name = 'boltdp worker'"
    return len(desk.ask("postgres", query))


def test_a_killed_worker_leaves_no_model_unpaid_and_none_paid_twice(desk: Desk) -> None:
    for stage in STAGES:
        before, models = desk.spent(), len(desk.ask("postgres", "SELECT FROM boltdp.models"))
        number = desk.request()
        process = started(KILLED, desk.uri("trainer"), stage)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, stage
        wait_until(lambda: at_work(desk) == 0)
        desk.serve()
        kept, made = desk.kept(number), len(desk.ask("postgres", "SELECT FROM boltdp.models")) - models
        done = stage in (*RETRIED, "answered")
        assert (kept["state"], kept["reason"]) == (("done", None) if done else ("failed", REASONS["failed"])), stage
        assert made == done, stage
        paid = stage in RETRIED or stage not in UNRESERVED
        assert desk.spent() - before == pytest.approx(0.2 if paid else 0.0), stage
        assert kept["charged_to"] == "ann"
    desk.ledger.check()


def test_a_worker_that_is_killed_between_two_groups_leaves_neither_rows_nor_a_model(desk: Desk) -> None:
    desk.ask("hospital", ALLOW + ", epsilon => 100, groups => 'ward', group_values => '{north,south}')")
    number = desk.request(groups="ward", epsilon=0.6)
    process = started(KILLED, desk.uri("trainer"), "one of two")
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: at_work(desk) == 0)
    wait_until(lambda: desk.ask("postgres", "SELECT FROM pg_class WHERE relpersistence = 't' AND relkind = 'r'") == [])
    desk.serve()
    assert desk.kept(number)["state"] == "failed"
    assert desk.ask("postgres", "SELECT FROM boltdp.models") == []
    assert desk.spent() == pytest.approx(0.6)


def test_an_interrupted_training_is_served_again_unless_noise_was_drawn(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for drawn in (False, True):
        number = desk.request()

        def interrupted(engine: object, plan: object, context: Context, drawn: bool = drawn) -> None:
            del engine, plan
            context.randomness.drawn = drawn
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(worker, "run_plan", interrupted)
            with pytest.raises(KeyboardInterrupt):
                desk.serve()
        kept = desk.kept(number)
        assert (kept["state"], kept["charged_to"]) == ("waiting", "ann" if drawn else None)
        assert desk.spent() == pytest.approx(0.4 if drawn else 0.0)
        desk.serve()
        assert desk.kept(number)["state"] == ("failed" if drawn else "done")
    assert desk.spent() == pytest.approx(0.4)


def test_a_fault_is_a_failure_whose_text_nobody_sees(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_: object) -> None:
        raise RuntimeError(SECRET_NAME)

    desk.request()
    with monkeypatch.context() as patch:
        patch.setattr(worker, "run_plan", faulty)
        assert desk.serve() == ["ann/1: RuntimeError", f"ann/1: failed, {REASONS['failed']}"]
    desk.publish()
    assert desk.status(1)["reason"] == REASONS["failed"]
    assert desk.spent() == pytest.approx(0.2)


def test_the_command_serves_what_waits(desk: Desk) -> None:
    desk.request()
    done = CliRunner().invoke(main, ["postgres", "worker", desk.uri("trainer"), "--once"])
    assert (done.exit_code, done.stdout) == (0, "requests served: 1\n")
    assert "note: ann/1: done" in done.stderr
    desk.ask("hospital", "DROP SCHEMA boltdp_ledger CASCADE")
    done = CliRunner().invoke(main, ["postgres", "worker", desk.uri("trainer"), "--once"])
    assert done.exit_code == 1
    assert "there is no ledger in" in done.stderr


def test_two_workers_never_serve_one_request_twice(desk: Desk) -> None:
    running = [started(ONCE, desk.uri("trainer")) for _ in range(2)]
    for one in running:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    desk.ask("ann", "SELECT boltdp.request('patients', 'outcome', 0.2) FROM generate_series(1, 6)")
    said = [line for one in running for line in one.communicate("\n")[0].splitlines()]
    assert sorted(said) == [f"ann/{number}: done" for number in range(1, 7)]
    assert desk.ledger.spent("patients").spent.releases == 6
    assert desk.ledger.check() == 13


def test_roles_take_turns_however_much_one_of_them_asks_for(desk: Desk) -> None:
    desk.ask("hospital", ALLOW.replace("'ann'", "'bob'") + ", epsilon => 1)")
    desk.ask("ann", "SELECT boltdp.request('nothing', 'outcome', 1e-12) FROM generate_series(1, 4)")
    desk.request("bob")
    desk.request("trainer", dataset="nothing")
    assert [line.split(":")[0] for line in desk.serve()] == ["ann/1", "bob/1", "trainer/1", "ann/2", "ann/3", "ann/4"]
    desk.request("bob")
    desk.request("ann")
    assert [line.split(":")[0] for line in desk.serve()] == ["bob/2", "ann/5"]


END = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'boltdp worker'"


def test_a_worker_that_lost_its_server_comes_back(desk: Desk) -> None:
    process = started(WAITING, desk.uri("trainer"))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with psycopg.connect(desk.server.uri, autocommit=True) as admin:
            try:
                admin.execute("ALTER DATABASE desk ALLOW_CONNECTIONS false")
                admin.execute(END)
                assert process.stdout.readline().startswith("the connection was lost")
            finally:
                admin.execute("ALTER DATABASE desk ALLOW_CONNECTIONS true")
        assert process.stdout.readline() == "connected again\n"
        desk.request()
        assert process.stdout.readline() == "ann/1: done\n"
        desk.ask("postgres", "SELECT boltdp.revoke_worker('trainer')")
        desk.ask("postgres", END)
        # It finds out by the lost connection, or by what it may no longer do: whichever comes first.
        process.communicate(timeout=60)
        assert process.returncode == 1
    finally:
        process.kill()
        process.communicate()


def test_what_was_charged_when_the_connection_was_lost_has_failed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    serving = worker.Worker(desk.uri("trainer"), open_ledger(desk.uri("trainer")), say=said.append)
    lost: list[str] = []

    def losing(stage: str, original: Any) -> Any:
        def lose(*arguments: Any) -> Any:
            if stage not in lost:
                lost.append(stage)
                desk.ask("postgres", END)
            return original(*arguments)

        return lose

    monkeypatch.setattr(worker, "RECONNECT_SECONDS", 0.01)
    monkeypatch.setattr(Worker, "_find_free_name", losing("before", Worker._find_free_name))
    monkeypatch.setattr(worker, "run_plan", losing("after", run_plan))
    monkeypatch.setattr(_interrupts, "check", lambda: _stop_if(len(said) >= 5))
    desk.request()
    with closing(serving), pytest.raises(KeyboardInterrupt):
        serving.run()
    failed = f"ann/1: failed, {REASONS['failed']}"
    assert (said[1], said[3:]) == ("connected again", ["connected again", failed])
    assert desk.spent() == pytest.approx(0.2)


def _stop_if(condition: bool) -> None:
    if condition:
        raise KeyboardInterrupt


def test_a_request_wakes_the_worker_and_a_signal_ends_it(desk: Desk) -> None:
    process = started(WAITING, desk.uri("trainer"))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        desk.request()
        assert process.stdout.readline() == "ann/1: done\n"
        desk.request(dataset="nothing")
        assert process.stdout.readline().startswith("ann/2: refused")
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode != 0


# A ledger out of reach


@pytest.fixture
def beside(desk: Desk, tmp_path: Path) -> Ledger:
    """A ledger in a file, which can be moved away."""
    del desk
    ledger = open_ledger(tmp_path / "ledger.db")
    ledger.set_budget("patients", Budget(100.0, 1e-5))
    return ledger


def move(ledger: Ledger, *, away: bool) -> None:
    here, there = Path(ledger.address), Path(f"{ledger.address}.away")
    (here if away else there).rename(there if away else here)


def serve_once(desk: Desk, ledger: Ledger) -> list[str]:
    said: list[str] = []
    with closing(Worker(desk.uri("trainer"), ledger, say=said.append)) as serving:
        serving.run(once=True)
    return said


@pytest.mark.parametrize("after", ["_find_allowances", "_mark_charged"])
def test_a_ledger_out_of_reach_is_no_refusal_and_charges_nothing(
    desk: Desk, beside: Ledger, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    desk.request()
    step = getattr(Worker, after)

    def lose(*arguments: Any) -> Any:
        done = step(*arguments)
        move(beside, away=True)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(Worker, after, lose)
        with pytest.raises(WorkerError, match="there is no ledger") as raised:
            serve_once(desk, beside)
    assert "served once the ledger is there again" in str(raised.value.hint)
    kept = desk.kept()
    assert (kept["state"], kept["reason"], kept["charged_to"], kept["worker_pid"]) == ("waiting", None, None, None)
    move(beside, away=False)
    assert beside.spent("patients").spent.epsilon == 0
    assert serve_once(desk, beside) == ["ann/1: done"]
    assert beside.spent("patients").spent.epsilon == pytest.approx(0.2)


def test_a_worker_waits_for_its_ledger(desk: Desk, beside: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if text == "ann/1: done":
            raise KeyboardInterrupt

    with closing(Worker(desk.uri("trainer"), beside, say=say)) as serving:
        desk.request()
        move(beside, away=True)
        waited: list[float] = []

        def sleep(seconds: float) -> None:
            waited.append(seconds)
            if len(waited) == 3:
                move(beside, away=False)

        monkeypatch.setattr("boltdp.service.worker.time.sleep", sleep)
        with pytest.raises(KeyboardInterrupt):
            serving.run()
    assert waited == [1.0, 2.0, 4.0]
    assert [text.endswith("what waits is served once it is there again") for text in said] == [*[True] * 3, False]


@pytest.mark.parametrize("committed", [False, True])
def test_a_charge_whose_commit_was_not_answered_is_not_made_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    desk.request()
    ask, lost = postgres_store._run_query, []

    def lose(connection: Any, query: Any, values: Any) -> list[Any]:
        reserving = isinstance(values, list) and values and '"kind":"reserve"' in str(values[0]).replace(" ", "")
        lost.extend([connection] if reserving else [])
        if query == "COMMIT" and connection in lost:
            if committed:
                ask(connection, query, values)
            connection.close()
            raise psycopg.OperationalError("the connection is lost")
        return ask(connection, query, values)

    with monkeypatch.context() as patch:
        patch.setattr(postgres_store, "_run_query", lose)
        said = desk.serve()
    assert len(lost) == 1
    assert said[-1] == f"ann/1: failed, {REASONS['failed']}"
    desk.serve()
    assert (desk.kept()["state"], desk.kept()["charged_to"]) == ("failed", "ann")
    assert desk.spent() == pytest.approx(0.2 if committed else 0.0)
