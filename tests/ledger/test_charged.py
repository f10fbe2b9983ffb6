"""Trainings that are charged: by commands, in one call and by estimators; refused, interrupted and killed ones."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result
from pyarrow import parquet
from pyarrow.dataset import dataset
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score

import boltdp
from boltdp import PrivateGridSearch, PrivateLogisticRegression
from boltdp._files.sealed import compute_digest
from boltdp.cli import main
from boltdp.engines import open_source
from boltdp.errors import DataError, ParameterError
from boltdp.ledger import Account, BudgetExceeded, Ledger, LedgerError, find_account, open_ledger
from boltdp.model import Model
from boltdp.privacy.budget import Budget
from boltdp.privacy.release_with_noise import Randomness
from boltdp.run_context import Context
from boltdp.schema.schema import Classes, Numeric, Schema
from boltdp.settings import Settings
from boltdp.workflows.draft_schema import draft_private_schema
from boltdp.workflows.train import train
from boltdp.workflows.tune import expand_grid, tune

ROWS = pa.table({"age": np.arange(3000) % 100, "sick": np.arange(3000) % 100 > 60})
SCHEMA = Schema(Classes("sick", (False, True)), (Numeric("age", 0, 100),))
Boltdp = Callable[..., Result]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = open_ledger(tmp_path / ".boltdp-ledger.db")
    made.set_budget("rows.parquet", Budget(1.0), composition="basic")
    return made


@pytest.fixture
def account(ledger: Ledger) -> Account:
    return Account(ledger, "rows.parquet")


@pytest.fixture
def boltdp_command(tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Boltdp:
    """Run a command beside the rows and the ledger."""
    assert ledger.exists()
    parquet.write_table(ROWS, tmp_path / "rows.parquet")
    SCHEMA.save(tmp_path / "schema.toml")
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, [*map(str, arguments)])


class Interrupting:
    """Interrupts a run when it begins a stage."""

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def __call__(self, stage: str, done: int, total: int) -> None:
        del done, total
        if stage == self.stage:
            raise KeyboardInterrupt


def test_a_training_is_charged_and_its_model_noted(account: Account) -> None:
    model = train(open_source(ROWS), SCHEMA, Settings(epsilon=0.5), account=account)
    reserve, release = account.ledger.history()[1:]
    assert (reserve.kind, reserve.budget, reserve.event["kind"]) == (
        "reserve",
        Budget(0.5),
        model.certificate.spent.kind,
    )
    assert (release.kind, release.reserved, release.released) == ("release", 2, compute_digest(model.to_dict()))
    assert account.ledger.check() == 3


def test_a_refused_training_reads_no_row(account: Account) -> None:
    class Watched(type(open_source(ROWS))):  # type: ignore[misc]
        def batches(self, *_: object, **__: object) -> None:
            raise AssertionError("a row was read")

    source = open_source(ROWS)
    source.__class__ = Watched
    with pytest.raises(BudgetExceeded):
        train(source, SCHEMA, Settings(epsilon=1.5), account=account)
    assert len(account.ledger.history()) == 1


def test_a_schema_that_does_not_fit_costs_nothing(account: Account) -> None:
    wrong = Schema(Classes("sick", (False, True)), (Numeric("weight", 0, 100),))
    with pytest.raises(DataError, match="must have the column 'weight'"):
        train(open_source(ROWS), wrong, Settings(epsilon=0.5), account=account)
    assert len(account.ledger.history()) == 1


def test_an_interrupt_while_rows_are_prepared_gives_the_charge_back(account: Account) -> None:
    context = Context(progress=Interrupting("preparing"))
    with pytest.raises(KeyboardInterrupt):
        train(open_source(ROWS), SCHEMA, Settings(epsilon=0.5), account=account, context=context)
    assert [entry.kind for entry in account.ledger.history()] == ["budget", "reserve", "return"]


def test_an_interrupt_after_noise_was_drawn_does_not(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Model, "from_release", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(open_source(ROWS), SCHEMA, Settings(epsilon=0.5), account=account)
    assert [entry.kind for entry in account.ledger.history()] == ["budget", "reserve"]


def test_a_release_that_cannot_be_noted_is_still_charged(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise LedgerError("the disk is full")

    monkeypatch.setattr(Ledger, "_finish_charge", failing)
    with pytest.warns(UserWarning, match="could not note the release: the disk is full"):
        model = train(open_source(ROWS), SCHEMA, Settings(epsilon=0.5), account=account)
    assert model.certificate.private
    assert account.ledger.spent("rows.parquet").unfinished == 1


@pytest.mark.parametrize("method", ["trials", "portions", "public"])
def test_tuning_is_charged_once(account: Account, method: str) -> None:
    grid = expand_grid(Settings(epsilon=0.9, algorithm="bolton"), {"passes": [1, 2]})
    public = open_source(ROWS.slice(0, 500)) if method == "public" else None
    tune(open_source(ROWS), SCHEMA, grid, method=method, public=public, account=account)  # type: ignore[arg-type]
    assert account.ledger.spent("rows.parquet").spent.epsilon == 0.9
    assert account.ledger.check() == 3


def test_one_call_finds_the_ledger_beside_the_file(tmp_path: Path, ledger: Ledger) -> None:
    parquet.write_table(ROWS, tmp_path / "rows.parquet")
    source, known = str(tmp_path / "rows.parquet"), {"label": "sick", "bounds": {"age": (0, 100)}}
    boltdp.train(source, epsilon=0.5, **known)  # type: ignore[arg-type]
    boltdp.tune(source, epsilon=0.25, grid={"regularization": [0.05, 0.1]}, **known)  # type: ignore[arg-type]
    boltdp.train(ROWS, epsilon=0.25, ledger=ledger, dataset="rows.parquet", **known)  # type: ignore[arg-type]
    with pytest.raises(BudgetExceeded):
        boltdp.train(source, epsilon=0.1, **known)  # type: ignore[arg-type]


def features() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    random = np.random.default_rng(1)
    X = random.uniform(-1, 1, (2000, 3))
    return X, (X[:, 0] > 0).astype(int)


def test_every_fit_of_an_estimator_is_charged(tmp_path: Path, ledger: Ledger) -> None:
    X, y = features()
    path = str(tmp_path / ".boltdp-ledger.db")
    one = PrivateLogisticRegression(epsilon=0.2, classes=[0, 1], bounds=(-1, 1), ledger=path, dataset="rows.parquet")
    one.set_params(anyway=True)
    one.fit(X, y).fit(X, y)
    clone(one).fit(X, y)
    pickle.loads(pickle.dumps(one)).fit(X, y)
    PrivateGridSearch(one, {"regularization": [0.05, 0.1]}).fit(X, y)
    assert ledger.spent("rows.parquet").spent.releases == 5
    with pytest.raises(BudgetExceeded):
        clone(one).fit(X, y)


def test_searches_of_scikit_learn_do_not_get_around_it(ledger: Ledger) -> None:
    """Their models are not private, and so refused; where they are allowed, each of their fits is charged."""
    X, y = features()
    one = PrivateLogisticRegression(epsilon=0.1, classes=[0, 1], bounds=(-1, 1), ledger=ledger, dataset="rows.parquet")
    one.set_params(anyway=True)
    with pytest.raises(LedgerError, match="inside a search or a cross-validation"):
        cross_val_score(one, X, y, cv=2, error_score="raise")
    assert ledger.spent("rows.parquet").spent.releases == 0
    ledger.set_budget("rows.parquet", Budget(0.5), composition="basic", allow_not_private=True)
    with pytest.warns(UserWarning, match="not private"):
        GridSearchCV(one, {"regularization": [1e-2]}, cv=2, error_score="raise").fit(X, y)
    assert ledger.spent("rows.parquet").spent.releases == 3
    with pytest.raises(BudgetExceeded), pytest.warns(UserWarning, match="not private"):
        cross_val_score(one, X, y, cv=4, error_score="raise")
    assert ledger.spent("rows.parquet").spent.releases == 5


def test_commands_charge_show_and_refuse(boltdp_command: Boltdp, ledger: Ledger) -> None:
    train_it = ("train", "rows.parquet", "--schema", "schema.toml")
    done = boltdp_command(*train_it, "--epsilon", 0.6, "-o", "a.json")
    assert done.exit_code == 0, done.stderr
    assert "epsilon 0.4 of 1 remaining; 1 release spent epsilon 0.6, by basic composition" in done.stdout
    assert "the dataset 'rows.parquet' of the ledger .boltdp-ledger.db will be charged" in done.stderr
    refused = boltdp_command(*train_it, "--epsilon", 0.6, "-o", "b.json")
    assert refused.exit_code == 1
    assert "remaining epsilon = 0.4 " in refused.stderr
    assert not Path("b.json").exists()
    assert (
        "no budget for a dataset 'other'"
        in boltdp_command(*train_it, "--epsilon", 1, "-o", "b.json", "--dataset", "other").stderr
    )
    shown = boltdp_command("ledger", "show", ".")
    assert shown.stdout.splitlines()[1].split() == [
        "rows.parquet",
        "1",
        "0.6",
        "0",
        "basic",
        "0.4",
        "epsilon",
        "=",
        "1",
    ]
    history = boltdp_command("ledger", "history", ".", "rows.parquet").stdout.splitlines()
    assert [line.split()[4] for line in history[1:]] == ["budget", "reserve", "release"]
    assert boltdp_command("ledger", "check", ".").stdout == (
        ".boltdp-ledger.db: 3 entries, each as it was written and in its place\n"
    )
    for command in (("show", "."), ("history", "."), ("check", ".")):
        assert boltdp_command("ledger", *command, "--json").stdout.startswith("{")
    assert ledger.check() == 3


def test_a_private_draft_of_a_schema_is_charged_before_a_row_is_read(boltdp_command: Boltdp, ledger: Ledger) -> None:
    drafted = boltdp_command("schema", "rows.parquet", "--label", "sick", "--epsilon", "0.25", "-o", "draft.toml")
    assert drafted.exit_code == 0, drafted.output
    assert ledger.spent("rows.parquet").spent.epsilon == 0.25
    assert [entry.kind for entry in ledger.history("rows.parquet")] == ["budget", "reserve", "release"]
    refused = boltdp_command("schema", "rows.parquet", "--label", "sick", "--epsilon", "0.8", "-o", "again.toml")
    assert (refused.exit_code, Path("again.toml").exists()) == (1, False)
    assert "budget exceeded for dataset" in refused.output


@pytest.mark.parametrize("fault", [IndexError, KeyboardInterrupt, DataError])
def test_a_draft_that_fails_after_noise_was_drawn_stays_charged(
    account: Account, fault: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise fault("while the draft is written")

    monkeypatch.setattr("boltdp.schema.infer.write_draft", fail)
    with pytest.raises(fault):
        draft_private_schema(open_source(ROWS), "sick", Budget(0.25), account=account)
    assert account.ledger.spent("rows.parquet").spent.epsilon == 0.25


def test_a_seeded_draft_is_charged_as_the_non_private_release_that_it_is(account: Account) -> None:
    seeded = Context(randomness=Randomness(1))
    with pytest.raises(LedgerError, match="the release is not private, which the budget"):
        draft_private_schema(open_source(ROWS), "sick", Budget(0.25), context=seeded, account=account)
    assert account.ledger.spent("rows.parquet").spent.epsilon == 0.0


def test_a_draft_that_was_made_is_given_even_if_the_ledger_does_not_learn_of_it(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise LedgerError("the disk is full")

    monkeypatch.setattr("boltdp.ledger.ledger.Reservation.commit", fail)
    with pytest.warns(UserWarning, match="the disk is full"):
        text = draft_private_schema(open_source(ROWS), "sick", Budget(0.25), account=account)
    assert 'label = "sick"' in text
    assert account.ledger.spent("rows.parquet").spent.epsilon == 0.25


def test_the_ledger_in_a_directory_of_files_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "visits"
    folder.mkdir()
    parquet.write_table(ROWS, folder / "part-0.parquet")
    inside = open_ledger(folder / ".boltdp-ledger.db")
    inside.set_budget("visits", Budget(1.0))
    boltdp.train(folder, SCHEMA, epsilon=0.5)
    assert inside.spent("visits").spent.epsilon == 0.5


def test_set_budget_states_what_its_rule_rests_on(boltdp_command: Boltdp) -> None:
    done = boltdp_command("ledger", "set-budget", "new.db", "visits", "--epsilon", 3, "--delta", 1e-6)
    assert done.stdout == "visits: a budget of epsilon = 3, delta = 1e-06, composition adaptive, in new.db\n"
    assert "condition" not in done.stderr
    curves = boltdp_command(
        *("ledger", "set-budget", "new.db", "visits", "--epsilon", 3, "--delta", 1e-6, "--composition", "curves")
    )
    assert "must not be chosen by what earlier releases from these rows showed" in curves.stderr
    loud = boltdp_command("ledger", "set-budget", "new.db", "visits", "--epsilon", 3, "--allow-not-private")
    assert "no budget holds" in loud.stderr
    assert "no entries" not in boltdp_command("ledger", "history", "new.db").stdout


def test_set_budget_states_what_remains_of_it(boltdp_command: Boltdp, ledger: Ledger) -> None:
    for epsilon, remaining in ((3, "epsilon 2.5 of 3 remaining"), (0.25, "epsilon 0 of 0.25 remaining")):
        if epsilon == 3:
            boltdp_command("train", "rows.parquet", "--schema", "schema.toml", "--epsilon", 0.5, "-o", "model.json")
        done = boltdp_command("ledger", "set-budget", ledger.address, "rows.parquet", "--epsilon", epsilon)
        assert done.stdout.splitlines()[1] == (
            f"rows.parquet: {remaining}; 1 release spent epsilon 0.5, by basic composition"
        )


@pytest.mark.parametrize("seconds", [0.0, pytest.param(0.3, marks=pytest.mark.slow)])
def test_a_training_that_is_killed_leaves_no_model_without_a_charge(
    tmp_path: Path, boltdp_command: Boltdp, ledger: Ledger, seconds: float
) -> None:
    """At moments from the reservation to the end: whenever there is a model, there is a charge."""
    del boltdp_command
    arguments = ("train", "rows.parquet", "--schema", "schema.toml", "--epsilon", "0.1", "-o", "model.json")
    process = subprocess.Popen(
        [sys.executable, "-m", "boltdp", *arguments], cwd=tmp_path, stdout=-3, stderr=-3, start_new_session=True
    )
    while process.poll() is None and len(ledger.history()) < 2:
        time.sleep(0.01)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
    process.wait()
    assert ledger.spent("rows.parquet").spent.releases == 1 >= (tmp_path / "model.json").exists()
    ledger.check()


@pytest.mark.parametrize("inside", [".", "2026", "year=2026", "year=2026/month=11"])
@pytest.mark.parametrize("place", [".", "visits"])
def test_the_ledger_of_a_directory_covers_a_file_inside(tmp_path: Path, inside: str, place: str) -> None:
    """The directory is read with all files below it, so each of them is a part of its dataset."""
    folder = tmp_path / "visits" / inside
    folder.mkdir(parents=True)
    parquet.write_table(ROWS, folder / "part-0.parquet")
    of_directory = open_ledger(tmp_path / place / ".boltdp-ledger.db")
    of_directory.set_budget("visits", Budget(1.0))
    with pytest.raises(LedgerError, match=r"has no budget for a dataset 'part-0\.parquet'"):
        boltdp.train(folder / "part-0.parquet", SCHEMA, epsilon=0.5)
    boltdp.train(folder / "part-0.parquet", SCHEMA, epsilon=0.5, dataset="visits")
    assert of_directory.spent("visits").spent.epsilon == 0.5


def test_a_table_of_duckdb_has_one_name_in_the_ledger(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "hospital.duckdb")) as connection:
        connection.execute("CREATE TABLE Patients AS SELECT i % 100 AS age, i % 3 = 0 AS sick FROM range(3000) t(i)")
    beside = open_ledger(tmp_path / ".boltdp-ledger.db")
    beside.set_budget("Patients", Budget(1.0))
    beside.set_budget("patients", Budget(1.0))  # no second budget for the same rows
    for name in ("Patients", "patients"):
        boltdp.train(tmp_path / "hospital.duckdb", SCHEMA, table=name, epsilon=0.5)
    assert beside.spent("Patients").spent.epsilon == 1.0
    with pytest.raises(BudgetExceeded):
        boltdp.train(tmp_path / "hospital.duckdb", SCHEMA, table="PATIENTS", epsilon=0.5)


def test_the_ledger_of_other_files_above_is_not_meant(tmp_path: Path) -> None:
    folder = tmp_path / "visits" / "2026"
    folder.mkdir(parents=True)
    parquet.write_table(ROWS, folder / "part-0.parquet")
    open_ledger(tmp_path / ".boltdp-ledger.db").set_budget("patients.parquet", Budget(1.0))
    assert find_account(folder / "part-0.parquet") is None
    assert find_account(tmp_path / "visits" / "2026") is None


def test_the_ledger_beside_a_database_of_sqlalchemy_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_ledger(tmp_path / ".boltdp-ledger.db").set_budget("rows", Budget(1.0))
    bind = sa.create_engine(f"sqlite:///{tmp_path / 'hospital.sqlite'}")
    with bind.connect() as connection:
        for source in (bind, connection):
            account = find_account(source, table="rows")
            assert account is not None
            assert account.dataset == "rows"
    monkeypatch.chdir(tmp_path)
    assert find_account(sa.create_engine("sqlite://"), table="rows") is None
    assert find_account(sa.create_engine("sqlite:///:memory:"), table="rows") is None


@pytest.mark.parametrize(
    "make",
    [
        lambda file: dataset(file),
        lambda file: dataset([dataset(file), dataset(file)]),
        lambda file: duckdb.read_parquet(str(file)),
    ],
)
def test_the_ledger_beside_the_files_of_an_object_is_found(tmp_path: Path, make: Any) -> None:
    parquet.write_table(ROWS, tmp_path / "rows.parquet")
    beside = open_ledger(tmp_path / ".boltdp-ledger.db")
    beside.set_budget("rows.parquet", Budget(1.0))
    with pytest.raises(ParameterError, match="dataset must say what is charged"):
        boltdp.train(make(tmp_path / "rows.parquet"), SCHEMA, epsilon=0.5)
    boltdp.train(make(tmp_path / "rows.parquet"), SCHEMA, epsilon=0.5, dataset="rows.parquet")
    assert beside.spent("rows.parquet").spent.epsilon == 0.5


def test_a_refused_release_is_not_said_to_be_charged(boltdp_command: Boltdp, ledger: Ledger) -> None:
    ledger.set_budget("rows.parquet", Budget(0.1))
    done = boltdp_command("train", "rows.parquet", "--schema", "schema.toml", "--epsilon", 0.6, "-o", "model.json")
    assert done.exit_code == 1
    assert "is charged" not in done.stderr
    assert "remaining epsilon = 0.1" in done.stderr
