"""Errors of predicted numbers: against a plain sum, however rows are split, and whatever a state claims."""

from __future__ import annotations

import numpy as np
import pytest

from boltdp._array_types import Doubles, PackedRows
from boltdp.errors import DataError, ParameterError
from boltdp.kernel.feature_map import FeatureMap, Segment, compute_scores
from boltdp.kernel.number_errors import NumberErrors
from boltdp.losses import Logistic, Mean, NumberLoss, Quantile, Robust

LOSSES = (Robust(), Quantile(0.9), Mean())
WEIGHTS = np.array([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [40.0, 0.0, 3.0]])
MAP = FeatureMap(
    [Segment("numbers", np.zeros(2), np.ones(2)), Segment("category", np.array([0.25]), np.array([1.0]))],
    label_reading=(0.25, 3.0),
)


def make_rows(count: int = 57) -> PackedRows:
    rows = np.random.default_rng(4).uniform(-1, 1, (count, 4)).astype(np.float32)
    rows[:, 3] = np.arange(count) % 2 - 1
    rows[3, 0], rows[5, 0], rows[7, 1] = np.nan, 1.5, np.nan
    return rows


def expected_errors(loss: NumberLoss, rows: PackedRows) -> Doubles:
    labels = 3.0 * (rows[:, :1].astype(np.float64) - 0.25)
    scores = compute_scores(rows, WEIGHTS, MAP)
    predicted = loss.predict_labels(scores)
    assert predicted is not None
    away = labels - predicted
    errors = np.abs(away)
    if isinstance(loss, Quantile):
        errors = np.where(away > 0, loss.tau * away, (loss.tau - 1.0) * away)
    unusable = ~(np.abs(rows[:, 0]) <= 1)
    errors[unusable] = loss.whole_error
    summed: Doubles = np.minimum(errors / loss.whole_error, 1.0).sum(axis=0)
    return summed


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_errors_are_summed_in_shares_of_a_whole_one(loss: NumberLoss) -> None:
    rows = make_rows()
    errors = NumberErrors(loss, WEIGHTS, feature_map=MAP)
    errors.add(rows)
    assert errors.counts == pytest.approx(expected_errors(loss, rows), abs=len(rows) * 2**-20)
    parts = [errors.copy_empty() for _ in range(3)]
    for number, part in enumerate(parts):
        part.add(np.ascontiguousarray(rows[number::3]), build="portable")
    for part in parts[1:]:
        parts[0].join(part)
    assert parts[0].counts == errors.counts


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_one_row_changes_each_sum_by_at_most_one(loss: NumberLoss) -> None:
    rows, errors = make_rows(), []
    for label in (np.nan, -1.0, 0.0, 1.0):
        rows[0, 0] = label
        errors.append(NumberErrors(loss, WEIGHTS, feature_map=MAP))
        errors[-1].add(rows)
    counts = np.array([one.counts for one in errors])
    assert np.ptp(counts, axis=0).max() <= 1.0
    assert np.ptp(counts, axis=0).max() > 0.3


def test_damaged_states_and_other_losses_are_refused() -> None:
    errors = NumberErrors(Robust(), WEIGHTS, feature_map=MAP)
    good = errors.to_bytes()
    # The loss, the number of models, the parameter and the whole error.
    for word, bad in ((5, 0), (5, 99), (6, 0), (6, 10**9), (7, 0), (8, 0)):
        with pytest.raises(DataError, match="the state is corrupt"):
            errors.update(good[: 8 * word] + bad.to_bytes(8, "little") + good[8 * word + 8 :])
    with pytest.raises(ParameterError, match="errors must stay those of the same models"):
        errors.join(NumberErrors(Robust(), 2.0 * WEIGHTS, feature_map=MAP))
    with pytest.raises(ParameterError, match="must be of a loss that predicts one, got 'logistic'"):
        NumberErrors(Logistic(), WEIGHTS)
