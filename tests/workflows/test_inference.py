"""Plans of inference: what composes as one Gaussian, and what is refused before a row is read or paid for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import boltdp
from boltdp.errors import ParameterError
from boltdp.ledger import open_ledger
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import verify
from boltdp.privacy.events.event import Composition
from boltdp.privacy.events.noisy_matrix import NoisyMatrix
from boltdp.privacy.events.noisy_moments import NoisyMoments
from boltdp.schema.schema import Classes, Number, Numeric, Schema, Standardization
from boltdp.schema.target import Target
from boltdp.settings import Settings
from boltdp.workflows.plan_training import make_plan

SICK = Classes("sick", (0, 1))
COLUMNS = tuple(Numeric(f"x{number}", 0, 1) for number in range(30))
ROWS = 200_000


@pytest.mark.parametrize(("target", "together"), [(SICK, 5), (Number("cost", 0, 100), 3)], ids=["classes", "number"])
def test_what_is_released_before_a_training_of_numbers_has_a_budget_of_its_own(target: Target, together: int) -> None:
    settings = Settings(epsilon=1.0, delta=1e-6, inference=True, robust_errors=True)
    certificate = make_plan(Schema(target, COLUMNS), ROWS, settings).certificate
    verify(certificate)
    *_, last = (event for event in certificate.spent.walk() if isinstance(event, Composition))
    assert certificate.training.training_noise is not None
    assert certificate.training.training_noise.kind == "gaussian"
    assert [type(part.event) for part in last.parts].count(NoisyMoments) == (together == 5)
    assert len(last.parts) == together
    # Their budgets alone would not add up.
    assert sum(part.budget.epsilon for part in last.parts if part.budget) > 1.0
    assert all(isinstance(part.event, NoisyMatrix) or together == 5 for part in last.parts[:-1])


@pytest.mark.parametrize(
    ("standardization", "settings", "message"),
    [
        ({"source": "private"}, {"inference": True}, "must not have a standardization that was found privately"),
        ({"downweights": True}, {}, "must not downweight long rows, unless it is for inference"),
        ({"downweights": True}, {"algorithm": "bolton"}, "must not downweight long rows, unless it is for inference"),
    ],
)
def test_a_standardization_that_no_model_could_be_made_with_is_refused_before_it_is_paid_for(
    tmp_path: Path, standardization: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    """The model would be refused in the end, and the budget be spent."""
    made: Any = Standardization((0.0,), (1.0,), 2.0, **standardization)
    schema = Schema(SICK, (Numeric("x", 0, 1),), standardization=made)
    rows = pa.table({"x": np.linspace(0, 1, 500), "sick": np.arange(500) % 2})
    ledger = open_ledger(tmp_path / "ledger.db")
    ledger.set_budget("rows", Budget(10.0), composition="basic")
    with pytest.raises(ParameterError, match=message):
        boltdp.train(rows, schema, epsilon=1, ledger=ledger, dataset="rows", **settings)
    assert ledger.spent("rows").spent.releases == 0


@pytest.mark.parametrize("target", [SICK, Number("cost", 0, 100)], ids=["classes", "number"])
@pytest.mark.parametrize("delta", [0.0, 1e-9])
def test_many_rows_have_a_lambda_for_which_the_minimum_is_found(target: Target, delta: float) -> None:
    settings = Settings(epsilon=10.0, delta=delta, inference=True)
    for rows in (10**7, 10**9):
        assert make_plan(Schema(target, COLUMNS), rows, settings).certificate.private
