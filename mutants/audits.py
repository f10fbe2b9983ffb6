"""Trainings that `boltdp audit` attacks, in which planted faults should show: `python -m mutants.audits NAME`.

The exit code is 0 if the audit finds nothing, and `REFUTED` if it refutes the claim.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from boltdp.audit import audit
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema, Standardization
from boltdp.schema.target import Number
from boltdp.settings import Settings
from boltdp.workflows.plan_training import make_plan
from mutants.mutant import REFUTED

TWO = Schema(
    Classes("sick", ("no", "yes")), (Numeric("age", 0, 100), Numeric("bmi", 10, 60), Categorical("sex", ("f", "m")))
)
THREE = replace(TWO, target=Classes("stage", ("a", "b", "c")))
NUMBER = replace(TWO, target=Number("cost", 0, 20_000))
#: Rows are longer than the clip norm, so that clipping shortens them.
LONG = replace(TWO, clip_norm=0.5)
#: Rows are long by their pairs alone.
LONG_PAIRS = replace(
    TWO,
    intercept=False,
    pairs=(("age", "sex"), ("bmi", "sex"), ("age", "bmi")),
    standardization=Standardization((0.0,) * 4, (1000.0,) * 4, clip_norm=0.1),
)


@dataclass(frozen=True)
class Case:
    """A training to audit: few rows, so that it takes seconds."""

    settings: Settings
    schema: Schema = TWO
    rows: int = 200
    persons: int | None = None  #: `max_rows_per_person`
    trials: int = 100  #: the fewest of a black box: replay and exact loss find most faults


BOLTON = Settings(epsilon=1.0, algorithm="bolton", loss="huber", passes=2, batch_size=20)
OBJECTIVE = Settings(epsilon=1.0, algorithm="objective", loss="margin")
#: A penalty so weak that the volume term costs noise.
WEAK = Settings(epsilon=1.0, algorithm="objective", loss="logistic", regularization=0.003)
INFERENCE = Settings(epsilon=1.0, inference=True, robust_errors=True)
SCANS = Settings(epsilon=1.0, delta=1e-6, algorithm="noisy-gd")
CENTRED = replace(SCANS, standardize="private", standardize_moments="squares")
QUANTILES = replace(OBJECTIVE, standardize_moments="histograms")
#: Few and equal steps, in which a black box sees one row best.
UPDATES = Settings(epsilon=4.0, delta=1e-2, loss="huber", passes=1, batch_size=50, step_size=0.01)

# The deltas of objective perturbation are so large that Gaussian noise can be the smaller in two features, as many as
# its exact loss has.
CASES = {
    "bolton": Case(BOLTON),
    "bolton, logistic": Case(replace(BOLTON, loss="logistic")),
    "bolton, convex": Case(replace(BOLTON, regularization=0.01, batch_size=50, passes=5), rows=2_000),
    "bolton, harmonic steps": Case(replace(BOLTON, regularization=0.1, batch_size=1)),
    "bolton, constant step": Case(replace(BOLTON, regularization=0.01, schedule="strongly-convex-constant")),
    "bolton, uneven batches": Case(replace(BOLTON, batch_size=3), rows=5),
    "bolton, small ball": Case(replace(BOLTON, batch_size=1, radius=0.01, schedule="constant", step_size=0.1)),
    "bolton, average": Case(replace(BOLTON, averaging="all")),
    "bolton, partitions": Case(replace(BOLTON, partitions=3)),
    "bolton, partitions, fresh": Case(replace(BOLTON, partitions=3, permutation="fresh")),
    "bolton, delta": Case(replace(BOLTON, delta=1e-6)),
    "bolton, long rows": Case(BOLTON, LONG),
    "bolton, persons": Case(BOLTON, persons=2),
    "bolton, three models": Case(BOLTON, THREE),
    "bolton, number": Case(replace(BOLTON, loss="robust"), NUMBER),
    "bolton, number, persons": Case(replace(BOLTON, loss="robust"), NUMBER, persons=2),
    "objective": Case(OBJECTIVE),
    "objective, weak": Case(WEAK),
    "objective, delta": Case(replace(OBJECTIVE, delta=1e-2)),
    "objective, weak, persons": Case(WEAK, persons=2),
    "objective, weak, persons, delta": Case(replace(WEAK, delta=1e-2), persons=2),
    "objective, long rows": Case(OBJECTIVE, LONG),
    "objective, long pairs": Case(OBJECTIVE, LONG_PAIRS),
    "objective, persons": Case(OBJECTIVE, persons=2),
    "objective, persons, delta": Case(replace(OBJECTIVE, delta=1e-2), persons=2),
    "objective, class weights": Case(replace(OBJECTIVE, class_weights=(0.2, 1.0))),
    "objective, three models": Case(replace(OBJECTIVE, multiclass="one-vs-all"), THREE),
    "objective, kinks": Case(replace(OBJECTIVE, loss="huber")),
    "inference": Case(INFERENCE),
    "inference, delta": Case(replace(INFERENCE, delta=1e-6)),
    "inference, persons": Case(INFERENCE, persons=2),
    "noisy-gd": Case(SCANS),
    "noisy-gd, penalty": Case(replace(SCANS, regularization=0.01)),
    "noisy-gd, three classes": Case(SCANS, THREE),
    "noisy-gd, persons": Case(SCANS, persons=2),
    "histograms": Case(QUANTILES),
    "noisy-gd, centred": Case(CENTRED, LONG),
    "noisy-gd, centred, persons": Case(CENTRED, LONG, persons=2),
    "noisy-gd, centred by means": Case(replace(CENTRED, standardize_moments="mean"), LONG),
    "scs13": Case(replace(UPDATES, algorithm="scs13", delta=0.0, passes=2), trials=20_000),
    "scs13, delta": Case(replace(UPDATES, algorithm="scs13", passes=4), trials=20_000),
    "bst14": Case(replace(UPDATES, algorithm="bst14"), trials=20_000),
    "dpsgd": Case(replace(UPDATES, algorithm="dpsgd"), trials=20_000),
}


def run(case: Case) -> tuple[str, ...]:
    """Audit a training, and return what refutes its claim."""
    schema = case.schema
    if case.persons is not None:
        schema = replace(schema, person_id="patient", max_rows_per_person=case.persons)
    plan = make_plan(schema, case.rows, case.settings)
    report = audit(plan.schema, plan.certificate, trials=case.trials)
    return tuple(f"{one.method} of {one.what}: {one.found}" for one in report.findings if one.broken)


if __name__ == "__main__":
    found = run(CASES[sys.argv[1]])
    print(*found, sep="\n")
    sys.exit(REFUTED if found else 0)
