"""The page of all planted faults and of what catches them: docs/mutants.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from mutants.mutant import ROOT, Mutant
from mutants.runner import Result

PAGE = ROOT / "docs" / "mutants.md"
#: The least share of the mutants that tests must catch, and audits of those in their scope.
MIN_BY_TESTS, MIN_BY_AUDIT = 0.95, 0.9

Row: TypeAlias = tuple[Mutant, Result]

INTRODUCTION = """\
# Planted faults

`make mutants` plants each of these faults into a copy of the source, runs the tests that should
catch it until one fails, and lets [`boltdp audit`](audit.md) attack a training in which it should
show. This page is what the last run wrote. Tests that only compare recorded bits are not among
them: they would catch nearly everything, and say nothing of the guarantee.

The audit attacks trainings, and the moments and quantiles before them. Accounting, selection,
counts, keys of the noise inside the kernel and engines other than arrays are out of its scope.
"""


def rate_by_tests(rows: Sequence[Row]) -> float:
    """Return the share of the mutants that a test catches."""
    return sum(bool(result.caught_by_test) for _, result in rows) / len(rows)


def rate_by_audit(rows: Sequence[Row]) -> float:
    """Return the share of the mutants in the audit's scope that it catches; 1 if there are none."""
    inside = [result for mutant, result in rows if mutant.audit is not None]
    return sum(bool(result.caught_by_audit) for result in inside) / len(inside) if inside else 1.0


def write_page(path: Path, rows: Sequence[Row]) -> None:
    """Write the page of all mutants."""
    inside = sum(mutant.audit is not None for mutant, _ in rows)
    lines = [
        INTRODUCTION,
        f"Of {len(rows)} faults, tests catch {rate_by_tests(rows):.1%}. Of the {inside} in the audit's scope, it",
        f"catches {rate_by_audit(rows):.1%}.",
        "",
        "| fault | in | what it breaks | caught by the test | by the audit of |",
        "|---|---|---|---|---|",
        *(_format_row(*row) for row in rows),
    ]
    path.write_text("\n".join(lines) + "\n", "utf-8")


def _format_row(mutant: Mutant, result: Result) -> str:
    audit = "out of scope"
    if mutant.audit is not None:
        audit = mutant.audit if result.caught_by_audit else f"**missed** ({mutant.audit})"
    test = result.caught_by_test.split("[")[0]
    caught = f"`tests/{test}`" if test else "**missed**"
    return f"| {mutant.name} | `{mutant.file}` | {mutant.breaks} | {caught} | {audit} |"
