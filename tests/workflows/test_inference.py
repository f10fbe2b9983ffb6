"""Plans of inference: what composes as one Gaussian, and what is refused before a row is read or paid for."""

from __future__ import annotations

import pytest

from boltdp.privacy.certificate import verify
from boltdp.privacy.events.event import Composition
from boltdp.privacy.events.noisy_matrix import NoisyMatrix
from boltdp.privacy.events.noisy_moments import NoisyMoments
from boltdp.schema.schema import Classes, Number, Numeric, Schema
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
