"""`python -m experiments.outside`: the tables of docs/outside_audits.md."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from contextlib import nullcontext

from experiments.outside.claims import list_claims
from experiments.outside.faults import FAULTS
from experiments.outside.recorder import TRAININGS, audit_training
from experiments.outside.testers import TESTERS, Tester, bound_delta

#: Maximum probability that a tester refutes a claim that holds.
MISTAKE = 1e-6


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(prog="python -m experiments.outside", description=__doc__)
    parser.add_argument("--draws", type=int, default=200_000, help="of each dataset, for what is drawn quickly")
    parser.add_argument("--trainings", type=int, default=20_000, help="of each dataset, for all else")
    parser.add_argument("--originals", action="store_true", help="take the testers of the package dp_auditorium")
    parser.add_argument("--only", default="", help="releases whose name has this in it")
    given = parser.parse_args()
    testers: Mapping[str, Tester] = TESTERS
    if given.originals:
        from experiments.outside.originals import ORIGINALS

        testers = ORIGINALS
    for name, plant in [("nothing planted", nullcontext), *((name, plant) for name, (plant, _) in FAULTS.items())]:
        if plant is not nullcontext and name not in ("half the noise", "a number without noise"):
            continue  # the testers see noise, and no training as a whole
        print(f"\n{name}\n")
        with plant():
            print_table(("release", "draws", "claimed delta", *testers), apply_testers(testers, given))
    print("\nRe:cord-play\n")
    print_table(("training", "mechanisms", "largest distance of inputs", "found"), replay_trainings())
    print()
    print_table(("planted", "training", "found"), replay_faults())


def apply_testers(testers: Mapping[str, Tester], given: argparse.Namespace) -> Iterable[tuple[str, ...]]:
    """Yield a row for each claim: what each tester bounds its delta by."""
    for claim in (claim for claim in list_claims() if given.only in claim.name):
        count = given.draws if claim.quick else given.trainings
        first, second = claim.draw(0, count), claim.draw(1, count)
        found = []
        for tester in testers.values():
            bound = bound_delta(tester, first, second, epsilon=claim.epsilon, mistake=MISTAKE)
            found.append(f"{bound:.3f}" + (" REFUTED" if bound > claim.delta else ""))
        yield claim.name, f"{count:,}", f"{claim.delta:g}", *found


def replay_trainings() -> Iterable[tuple[str, ...]]:
    """Yield a row for each training that is recorded and run again."""
    for name, settings in TRAININGS.items():
        found = audit_training(settings)
        calls = str(found.mechanisms) if found.mechanisms else "in the kernel"
        yield name, calls, f"{found.ratio:.3f} sensitivities", "; ".join(found.faults) or "nothing"


def replay_faults() -> Iterable[tuple[str, ...]]:
    """Yield a row for each planted fault."""
    for name, (plant, training) in FAULTS.items():
        with plant():
            found = audit_training(TRAININGS[training])
        yield name, training, "; ".join(found.faults) or "nothing"


def print_table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print a table in Markdown, row by row."""
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
