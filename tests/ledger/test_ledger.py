"""What a ledger lets through, and what it refuses, whatever store it is in."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from boltdp.errors import ParameterError
from boltdp.ledger import Account, BudgetExceeded, Ledger, LedgerError, find_account, open_ledger
from boltdp.ledger.entries import BEGINNING, Entry, read_datasets, read_entries
from boltdp.privacy.accounting.spent_budget import Charge, CompositionRule, Release, SpentBudget, compose_charges
from boltdp.privacy.adjacency import Adjacency
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import SEEDED, NoiselessTraining, mark_non_private
from boltdp.privacy.events.objective_perturbation import make_objective_perturbation
from boltdp.privacy.mechanisms import Mechanism

from ..privacy.test_spent_budget import Plain
from .charges import PROBLEM, charge

DIGEST = "sha256:" + "0" * 64


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = open_ledger(tmp_path / "ledger.db")
    made.set_budget("visits", Budget(1.0, 1e-6), composition="basic")
    return made


def test_ten_tenths_are_released_and_an_eleventh_is_refused(ledger: Ledger) -> None:
    for _ in range(10):
        ledger.reserve("visits", charge()).commit(DIGEST)
    with pytest.raises(
        BudgetExceeded,
        match=r"requested epsilon = 0.1, remaining epsilon = 0, .*spent epsilon 1 and delta 0 of 1e-06",
    ) as refused:
        ledger.reserve("visits", charge())
    assert (refused.value.dataset, refused.value.block, refused.value.asked) == ("visits", None, Budget(0.1))
    assert refused.value.spent.releases == 10
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
    assert ledger.check() == 21


def test_what_is_reserved_counts_until_it_is_given_back(ledger: Ledger) -> None:
    reserved = ledger.reserve("visits", charge(0.9))
    assert ledger.spent("visits").unfinished == 1
    with pytest.raises(BudgetExceeded):
        ledger.reserve("visits", charge(0.2))
    reserved.cancel()
    ledger.reserve("visits", charge(0.2)).commit(DIGEST)
    kinds = [entry.kind for entry in ledger.history("visits")]
    assert kinds == ["budget", "reserve", "return", "reserve", "release"]
    assert ledger.check() == 5


@pytest.mark.parametrize("end", ["commit", "cancel"])
def test_a_charge_ends_once(ledger: Ledger, end: str) -> None:
    reserved = ledger.reserve("visits", charge())
    reserved.commit(DIGEST) if end == "commit" else reserved.cancel()
    for again in (reserved.cancel, lambda: reserved.commit(DIGEST)):
        with pytest.raises(LedgerError, match="already released or returned"):
            again()


def test_curves_let_more_through_if_the_budget_says_so(ledger: Ledger) -> None:
    ledger.set_budget("visits", Budget(1.0, 1e-6), composition="curves")
    for _ in range(12):
        ledger.reserve("visits", charge())
    report = ledger.spent("visits", always_compose=True)
    assert report.spent.epsilon > 1.0
    assert report.spent.composed is not None
    assert report.spent.composed <= 1e-6
    assert 0.0 < report.spent.remaining < 1.0


def test_a_smaller_budget_does_not_undo_what_was_spent(ledger: Ledger) -> None:
    ledger.reserve("visits", charge(0.8)).commit(DIGEST)
    ledger.set_budget("visits", Budget(0.5))
    with pytest.raises(BudgetExceeded):
        ledger.reserve("visits", charge(0.05))


def test_blocks_are_charged_one_by_one(ledger: Ledger) -> None:
    ledger.reserve("visits", charge(0.9), blocks=["2026-01"])
    ledger.reserve("visits", charge(0.9), blocks=["2026-02"])
    with pytest.raises(BudgetExceeded, match="block '2026-01'"):
        ledger.reserve("visits", charge(0.2), blocks=["2026-03", "2026-01"])
    with pytest.raises(BudgetExceeded):
        ledger.reserve("visits", charge(0.2))  # all blocks
    ledger.reserve("visits", charge(0.1))
    assert {block: spent.epsilon for block, spent in ledger.spent("visits").blocks.items()} == {
        "2026-01": 1.0,
        "2026-02": 1.0,
    }
    with pytest.raises(BudgetExceeded):
        ledger.reserve("visits", charge(0.95), blocks=["2027-01"])  # what named no block counts for new ones too
    ledger.reserve("visits", charge(0.9), blocks=["2027-01"])


def test_a_charge_for_very_many_blocks_does_not_stop_the_others(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [f"b{i}" for i in range(2000)]
    ledger.reserve("visits", charge(0.1), blocks=many)
    ledger.reserve("visits", charge(0.2), blocks=["b7", "new"])
    added: list[int] = []

    def counted(
        charges: Sequence[Charge], budget: Budget, *, rule: CompositionRule, always_compose: bool = False
    ) -> SpentBudget:
        added.append(len(charges))
        return compose_charges(charges, budget, rule=rule, always_compose=always_compose)

    monkeypatch.setattr("boltdp.ledger.ledger.compose_charges", counted)
    ledger.reserve("visits", charge(0.3))
    ledger.reserve("visits", charge(0.05), blocks=[*many, "newer"])
    report = ledger.spent("visits")
    assert len(added) < 20  # not once for each block
    assert list(report.blocks) == [*many, "new", "newer"]
    shown = {block: round(report.blocks[block].epsilon, 9) for block in ("b0", "b7", "new", "newer")}
    assert shown == {"b0": 0.45, "b7": 0.65, "new": 0.5, "newer": 0.35}
    assert report.spent == report.blocks["b7"]


def test_a_data_set_without_a_budget_is_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match=r"no budget for a dataset 'other'; it has: 'visits'"):
        ledger.reserve("other", charge())


@pytest.mark.parametrize(
    "release",
    [
        Release(None, NoiselessTraining(PROBLEM)),
        Release(Budget(0.1), mark_non_private(charge().spent, (SEEDED,))),
        Release(Budget(0.05), charge(0.1).spent),
    ],
    ids=["noiseless", "seeded", "overspent"],
)
def test_what_is_not_private_is_refused_unless_the_owner_allows_it(ledger: Ledger, release: Release) -> None:
    with pytest.raises(LedgerError, match="is not private, which the budget"):
        ledger.reserve("visits", release)
    ledger.set_budget("visits", Budget(1.0), allow_not_private=True)
    ledger.reserve("visits", release).commit(DIGEST)
    assert ledger.spent("visits").spent.not_private == 1
    assert ledger.check() == 4


def test_unknown_events_are_refused(ledger: Ledger) -> None:
    with pytest.raises(ParameterError, match="known events"):
        ledger.reserve("visits", Release(Budget(0.1), Plain(Mechanism("gaussian", 1.0, 1), 0.01)))
    assert len(ledger.history()) == 1


def test_relations_are_not_mixed(ledger: Ledger) -> None:
    ledger.reserve("visits", charge())
    with pytest.raises(LedgerError, match="about replace-person, and those before it about another"):
        ledger.reserve("visits", person_charge(0.1))


@pytest.mark.parametrize("name", ["", " visits", "a\nb", "\x1b[2J", "v" * 201])
def test_names_are_printable(ledger: Ledger, name: str) -> None:
    for act in (
        lambda: ledger.set_budget(name, Budget(1.0)),
        lambda: ledger.reserve(name, charge()),
        lambda: ledger.reserve("visits", charge(), blocks=[name]),
        lambda: ledger.reserve("visits", charge(), by=name),
    ):
        with pytest.raises(ParameterError, match="printable characters"):
            act()
    assert len(ledger.history()) == 1


def test_a_ledger_can_be_copied_and_pickled(ledger: Ledger) -> None:
    for other in (copy.deepcopy(ledger), pickle.loads(pickle.dumps(ledger))):
        other.reserve("visits", charge()).commit(DIGEST)
    assert ledger.spent("visits").spent.releases == 2


@pytest.mark.parametrize("drawn", [False, True])
def test_an_interrupt_gives_the_charge_back_only_before_noise_was_drawn(ledger: Ledger, drawn: bool) -> None:
    with pytest.raises(KeyboardInterrupt), Account(ledger, "visits").reserve(charge(), drawn=lambda: drawn):
        raise KeyboardInterrupt
    assert ledger.spent("visits").spent.releases == int(drawn)


def test_an_error_keeps_the_charge_since_it_may_depend_on_a_row(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="bad"), Account(ledger, "visits").reserve(charge(), drawn=lambda: False):
        raise ValueError("bad")
    assert ledger.spent("visits").unfinished == 1


def test_entries_that_do_not_fit_together_are_damage(ledger: Ledger) -> None:
    entries = ledger.history()
    lone = Entry(number=2, kind="return", when="", by="", dataset="visits", reserved=7, previous=entries[0].line.digest)
    with pytest.raises(LedgerError, match="about nothing that is there"):
        read_datasets([*entries, lone])
    assert read_entries([entries[0].line, lone.line])[1] == lone
    with pytest.raises(LedgerError, match="does not follow"):
        read_entries([lone.line, entries[0].line])
    assert entries[0].previous == BEGINNING
    with pytest.raises(ParameterError, match="must not have 'event'"):
        replace(lone, event={})
    with pytest.raises(ParameterError, match="must have a budget"):
        replace(entries[0], budget=None)
    with pytest.raises(ParameterError, match="must not have blocks"):
        replace(entries[0], blocks=("a",))
    with pytest.raises(ParameterError, match="once each"):
        replace(entries[0], blocks=("a", "a"))


def test_an_event_that_a_later_version_knows_is_refused_where_it_matters(ledger: Ledger) -> None:
    ledger.reserve("visits", charge())
    entry = ledger.history()[-1]
    later = replace(entry, event={**entry.event, "kind": "something new"})
    with pytest.raises(LedgerError, match="unknown event 'something new'"):
        _ = later.charge


def test_a_ledger_is_found_beside_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tmp_path / "visits.csv"
    assert find_account(str(rows)) is None
    assert find_account((None, None)) is None
    open_ledger(tmp_path / ".boltdp-ledger.db").set_budget("visits.csv", Budget(1.0))
    monkeypatch.chdir(tmp_path)
    assert find_account("local[*]", table="visits") is None, "a cluster is not beside anything"
    found = find_account(rows)
    assert found is not None
    assert found.dataset == "visits.csv"
    for source in (f"{tmp_path}/*.csv", f"{tmp_path}/part-*/a.csv"):
        with pytest.raises(ParameterError, match="dataset must say what is charged"):
            find_account(source)
    named = find_account(f"{tmp_path}/h.duckdb", table="visits", blocks=["2026-01"])
    assert named is not None
    assert (named.dataset, named.blocks) == ("visits", ("2026-01",))
    with pytest.raises(ParameterError, match="must be given with a ledger"):
        find_account("/elsewhere.csv", dataset="visits")
    folder = find_account((None, None), ledger=tmp_path, dataset="visits")
    assert folder is not None
    assert folder.ledger.exists()


def test_what_is_no_address_is_refused() -> None:
    for wrong in ("", 7, None):
        with pytest.raises(ParameterError, match="a ledger must be given by"):
            open_ledger(wrong)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="composition must be one of"):
        open_ledger("x.db").set_budget("a", Budget(1.0), composition="renyi")  # type: ignore[arg-type]


def test_the_relation_is_recorded(ledger: Ledger) -> None:
    ledger.reserve("visits", charge())
    assert ledger.history()[-1].adjacency is Adjacency.REPLACE_ONE


def person_charge(epsilon: float = 0.5) -> Release:
    budget = Budget(epsilon)
    people = replace(PROBLEM, person_rows=2)
    return Release(budget, make_objective_perturbation(people, budget), Adjacency.REPLACE_PERSON)


def test_blocks_are_refused_for_persons_who_may_have_rows_in_several(ledger: Ledger) -> None:
    ledger.reserve("visits", person_charge())
    with pytest.raises(LedgerError, match="who may have rows in several"):
        ledger.reserve("visits", person_charge(), blocks=["2026-01"])


def test_a_name_is_not_taken_for_a_list_of_blocks(ledger: Ledger) -> None:
    with pytest.raises(ParameterError, match="blocks must be a list of names"):
        ledger.reserve("visits", charge(), blocks="jan")
    with pytest.raises(ParameterError, match="blocks must be a list of names"):
        find_account("rows.csv", ledger=ledger, blocks="jan")


def test_a_ledger_is_found_behind_links_patterns_and_addresses_of_files(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "rows.csv").write_text("age,sick\n1,0\n")
    open_ledger(kept / ".boltdp-ledger.db").set_budget("rows.csv", Budget(1.0))
    (tmp_path / "link.csv").symlink_to(kept / "rows.csv")
    for source in (tmp_path / "link.csv", f"{tmp_path}/kep[t]/rows.csv", f"file://{kept}/rows.csv", kept):
        found = find_account(source, dataset="rows.csv")
        assert found is not None, source
        assert Path(found.ledger.address).resolve() == (kept / ".boltdp-ledger.db").resolve()
    for query in (
        f"SELECT * FROM '{kept}/rows.csv'",
        f"WITH a AS (FROM '{kept}/*.csv') SELECT age FROM a WHERE age > 1",
    ):
        found = find_account("", query=query, dataset="rows.csv")
        assert found is not None, query
        assert Path(found.ledger.address).resolve() == (kept / ".boltdp-ledger.db").resolve()
    open_ledger(tmp_path / ".boltdp-ledger.db").set_budget("rows.csv", Budget(1.0))
    with pytest.raises(ParameterError, match="must have one ledger beside it"):
        find_account(tmp_path / "link.csv", dataset="rows.csv")


def test_a_table_in_a_query_is_not_a_file_beside_which_a_ledger_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_ledger(tmp_path / ".boltdp-ledger.db").set_budget("visits", Budget(1.0))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    assert find_account("elsewhere/h.duckdb", query="SELECT * FROM visits") is None
