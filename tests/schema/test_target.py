from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import norm

from boltdp._array_types import Doubles
from boltdp.encoding.declared_values import Value
from boltdp.encoding.encode import Encoder
from boltdp.errors import ParameterError
from boltdp.losses import Logistic, Loss, Mean, Multinomial, Quantile, Robust
from boltdp.schema.columns import Numeric
from boltdp.schema.schema import Schema
from boltdp.schema.target import Classes, Number, SqlWriter, Target, read_target
from tests.example_losses import every_loss

TWO, THREE = Classes("y", ("no", "yes"), prior=(0.75, 0.25)), Classes("y", (2, 0, 1))


@dataclass(frozen=True)
class Rank(Target):
    """A kind that the package does not have: what it does not state must be refused, and never taken for classes."""

    last: int = 10

    kind = "rank"
    task = "ranking"
    predictor = "ranking"
    key = "rank"
    other_keys = ("last",)
    score = "accuracy"
    kernel_class_count = 2
    label_reading = (0.0, 1.0)

    @classmethod
    def from_dict(cls, declared: Mapping[str, Any]) -> Rank:
        return cls(declared["rank"], declared["last"])

    def to_dict(self) -> dict[str, Any]:
        return {"rank": self.column, "last": self.last}

    @property
    def label_column(self) -> Numeric:
        return Numeric(self.column, 0, self.last)

    def needs_range(self, loss: Loss) -> bool:
        return False

    def choose_curve_steps(self, columns: int, loss: Loss) -> int:
        return 0

    def allows_curves(self, plain_noise: float, noise: float, *, gaussian: bool) -> bool:
        return False

    def adapt_to_loss(self, loss: Loss) -> Rank:
        return self

    @property
    def example_labels(self) -> tuple[Value, ...]:
        return 0, self.last

    @property
    def summary(self) -> str:
        return f"ranks up to {self.last}"

    def describe_used_labels(self, limit: int) -> str:
        return self.summary

    def describe_unusable_labels(self, limit: int) -> str:
        return "no rank"

    def describe_values(self) -> str:
        return self.summary

    def choose_default_loss(self, *, plain: bool, noise: float | None = None) -> tuple[str, float | None]:
        return "none", None

    def adapt_loss(self, loss: Loss, *, joint: bool) -> Loss:
        self.check_loss(loss)
        return loss

    def count_weight_vectors(self, loss: Loss) -> int:
        self.check_loss(loss)
        return 1

    def name_weight_vectors(self, loss: Loss) -> tuple[str, ...]:
        return (self.column,)

    def describe_scores(self, loss: Loss) -> str:
        return "score"

    def predict(self, scores: Doubles, margin_threshold: float, loss: Loss) -> npt.NDArray[Any]:
        return scores[:, 0]

    def depends_on_score_scale(self, margin_threshold: float) -> bool:
        return True

    def write_prediction(self, scores: Any, margin_threshold: float, loss: Loss, sql: SqlWriter) -> str:
        return str(scores[0])

    def to_stored_row(self) -> dict[str, Any]:
        return {}


RANK = Rank("place")
PRICE = Number("price", 0, 20_000, typical=(500, 12_000))
NUMBER_LOSSES = (Robust(), Quantile(0.9), Mean())


@pytest.mark.parametrize(
    "use",
    [
        lambda target: target.probabilities(np.zeros((1, 1)), Logistic()),
        lambda target: target.resolve_class_weights("balanced"),
        lambda target: target.resolve_threshold(0.5, Logistic()),
        lambda target: target.describe_threshold(0.5),
        lambda target: Schema(target, (Numeric("age", 0, 1),)).classes,
    ],
)
@pytest.mark.parametrize("target", [RANK, PRICE], ids=lambda target: target.kind)
def test_what_only_classes_have_is_refused_for_another_kind(target: Target, use: Callable[[Target], Any]) -> None:
    message = rf"must be for a label with classes, got the {target.key} '{target.column}' with {target.summary}$"
    if target is RANK and use.__code__.co_names[0] == "Schema":  # a kind that is not listed cannot be in one
        return
    with pytest.raises(ParameterError, match=message):
        use(target)


@pytest.mark.parametrize("loss", every_loss(), ids=lambda loss: loss.name)
@pytest.mark.parametrize("target", [TWO, PRICE, RANK], ids=lambda target: target.kind)
def test_a_loss_is_refused_for_a_target_of_another_kind(target: Target, loss: Loss) -> None:
    if loss.target == target.kind:
        target.check_loss(loss)
        return
    named = f"the {target.key} '{target.column}'"
    uses: list[Callable[[], Any]] = [lambda: target.count_models(loss), lambda: target.adapt_loss(loss, joint=False)]
    if isinstance(target, Number):
        uses.append(lambda: target.adapt_to_loss(loss))
    for use in uses:
        with pytest.raises(
            ParameterError, match=f"^the loss '{loss.name}' must be used for {loss.target}, got {named}"
        ):
            use()


def test_a_kind_that_leaves_something_out_cannot_be_made() -> None:
    class Incomplete(Target):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Incomplete("y")  # type: ignore[abstract]


@pytest.mark.parametrize("declared", [{"classes": [0, 1]}, {"rank": "y", "last": 3}, {}])
def test_an_unknown_kind_in_a_file_is_refused(declared: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=r"^the schema must declare 'label' or 'target'$"):
        read_target(declared)


def test_a_file_declares_one_target() -> None:
    with pytest.raises(ParameterError, match=r"^the schema must declare 'label' or 'target', and only one of them$"):
        read_target({"label": "y", "classes": [0, 1], "target": "z", "bounds": [0, 1]})
    assert read_target({"target": "z", "bounds": [0, 1]}) == Number("z", 0, 1)
    assert read_target({"label": "y", "classes": ["no", "yes"], "prior": [0.75, 0.25]}) == TWO


def test_numbers_are_packed_from_minus_1_to_1_clipped_and_missing_ones_are_nan() -> None:
    schema = Schema(Number("price", 0, 10, typical=(1, 2)), (Numeric("age", 0, 100),), intercept=False)
    prices = [0.0, 7.5, 99.0, -3.0, None, float("nan"), float("inf")]
    batch = pa.RecordBatch.from_pydict({"price": prices, "age": [50] * len(prices)})
    packed = Encoder(schema.encoding).encode(batch)[:, 0]
    np.testing.assert_array_equal(packed, np.array([-1, 0.5, 1, -1, np.nan, np.nan, 1]))
    assert np.isnan(Encoder(schema.encoding).encode(batch.select(["age"]))[:, 0]).all()


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({}, r"^the schema must declare the bounds of the target 'price'$"),
        ({"bounds": [0]}, r"^bounds must be two numbers, got \[0\]$"),
        ({"bounds": [0, 1, 2]}, r"^bounds must be two numbers, got \[0, 1, 2\]$"),
        ({"bounds": "0-1"}, "bounds must be a list"),
        ({"bounds": [0, 0]}, "price"),
        ({"bounds": [1, 0]}, "price"),
        ({"bounds": [0, math.inf]}, "price"),
        ({"bounds": [math.nan, 1]}, "price"),
        ({"bounds": ["0", 1]}, "number"),
        ({"bounds": [0, 10], "typical": [1]}, r"^typical must be two increasing numbers within the bounds 0 and 10"),
        ({"bounds": [0, 10], "typical": [2, 1]}, r"^typical must be two increasing numbers .*, got \[2.0, 1.0\]$"),
        ({"bounds": [0, 10], "typical": [2, 2]}, r"^typical must be two increasing numbers"),
        ({"bounds": [0, 10], "typical": [-1, 2]}, r"^typical must be two increasing numbers"),
        ({"bounds": [0, 10], "typical": [1, 11]}, r"^typical must be two increasing numbers"),
        ({"bounds": [0, 10], "typical": [1, math.nan]}, r"typical"),
        ({"bounds": [0, 10], "typical": [1, "2"]}, r"each end of the typical range must be a number"),
        ({"bounds": [0, 10], "typical": 3}, r"typical must be a list"),
        ({"bounds": [0, 1e6], "typical": [1, 2]}, r"^the bounds must be at most 4,096 times as wide as the typical"),
        ({"bounds": [0, 10], "typical": [1, 2], "typical_source": "guessed"}, "typical_source must be"),
        (
            {"bounds": [0, 10], "typical_source": "private"},
            "^typical_source must be 'declared' without a typical range",
        ),
        ({"bounds": [0, 10], "unit": 0.01}, r"^unit must be from 0.0625 to 1, got 0.01$"),
        ({"bounds": [0, 10], "unit": 1.5}, r"^unit must be from 0.0625 to 1, got 1.5$"),
        ({"bounds": [0, 10], "unit": math.nan}, r"unit"),
        ({"bounds": [0, 10], "counts": 1}, r"^counts must be true or false, got 1$"),
        ({"bounds": [1, 10], "counts": True}, r"^the bounds of a target that counts must begin at 0, got 1$"),
    ],
    ids=str,
)
def test_a_number_that_is_declared_wrongly_is_refused(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        read_target({"target": "price", **declared})


@pytest.mark.parametrize("name", ["", 3])
def test_a_number_needs_the_name_of_a_column(name: Any) -> None:
    with pytest.raises(ParameterError, match="target"):
        Number(name, 0, 1)


@pytest.mark.parametrize(
    "target",
    [
        Number("price", 0, 20_000),
        PRICE,
        replace(PRICE, typical_source="private"),
        replace(PRICE, typical_source="exact"),
        replace(PRICE, unit=0.5),
        replace(PRICE, typical_source="private", unit=0.25),
        Number("visits", 0, 20, counts=True),
        Number("t", -1e140, 0.1),
    ],
    ids=str,
)
def test_a_number_comes_back_from_a_file(target: Number, tmp_path: Path) -> None:
    declared = target.to_dict()
    assert set(declared) <= {target.key, *target.other_keys}
    assert read_target(declared) == target
    assert json.loads(json.dumps(declared)) == declared
    schema = Schema(target, (Numeric("age", 0, 100),))
    schema.save(tmp_path / "schema.toml")
    assert Schema.load(tmp_path / "schema.toml") == schema
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema


def test_only_what_was_chosen_is_in_a_file() -> None:
    assert Number("t", 0, 1).to_dict() == {"target": "t", "bounds": [0, 1]}
    assert PRICE.to_dict() == {"target": "price", "bounds": [0, 20_000], "typical": [500, 12_000]}


def test_labels_are_read_by_the_middle_and_the_spread_of_the_typical_range() -> None:
    """The reading of a packed label is (value - center) / scale, in two equal ways."""
    for target in (
        PRICE,
        replace(PRICE, unit=0.5),
        Number("price", 0, 20_000),
        Number("price", -7, 3, (0, 1), unit=0.25),
    ):
        center, factor = target.label_reading
        values = np.linspace(target.low, target.high, 7)
        packed = 2 * (values - target.low) / (target.high - target.low) - 1
        assert (packed - center) * factor == pytest.approx((values - target.center) / target.scale, abs=1e-12)
    # The 0.1- and 0.9-quantiles of a normal distribution of this deviation are the ends of the range.
    assert PRICE.center == 6_250
    assert PRICE.scale == pytest.approx(11_500 / (2 * norm.ppf(0.9)), rel=1e-4)
    assert replace(PRICE, unit=0.5).scale == PRICE.scale / 2
    # Without a range, the bounds are the unit: labels are read as they are packed.
    assert Number("price", 0.1, 0.7).label_reading == (0.0, 1.0)
    assert Number("price", 0.1, 0.7, unit=0.5).label_reading == (0.0, 2.0)
    assert TWO.label_reading == THREE.label_reading == (0.0, 1.0)


def test_a_range_is_needed_where_labels_are_subtracted_from_scores() -> None:
    wide = Number("price", 0, 20_000)
    assert [wide.needs_range(loss) for loss in NUMBER_LOSSES] == [True, True, False]
    assert not any(PRICE.needs_range(loss) for loss in NUMBER_LOSSES)
    assert not TWO.needs_range(Logistic())


def test_a_number_fits_its_loss() -> None:
    """Shares of the bounds know neither a range nor a unit, and predictions must be by the same reading."""
    for loss in NUMBER_LOSSES[:2]:
        assert PRICE.adapt_to_loss(loss) == replace(PRICE, unit=loss.label_unit)
    found = replace(PRICE, typical_source="private", unit=0.25)
    assert found.adapt_to_loss(Mean()) == Number("price", 0, 20_000)
    assert found.adapt_to_loss(Mean()).label_reading == (0.0, 1.0)
    assert TWO.adapt_to_loss(Logistic()) is TWO


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.5, 0.5, (5_000, 15_000)),
        (-1.0, 1.0, (0, 20_000)),
        (-1.5, 0.0, (0, 10_000)),  # ends are moved to the bounds
        (0.0, 7.0, (10_000, 20_000)),
    ],
)
def test_a_range_that_was_found_is_in_the_units_of_the_column(low: float, high: float, expected: Any) -> None:
    found = Number("price", 0, 20_000, unit=0.5).with_range(low, high)
    assert found.typical == pytest.approx(expected)
    assert (found.typical_source, found.unit) == ("private", 0.5)
    assert read_target(found.to_dict()) == found


@given(
    low=st.floats(-2, 2),
    high=st.floats(-2, 2),
    bounds=st.tuples(st.floats(-1e9, 1e9), st.floats(1e4, 1e9)).map(lambda pair: (pair[0], pair[0] + pair[1])),
)
@example(low=0.3, high=0.3, bounds=(0.0, 1.0))
@example(low=-1.0, high=-1.0, bounds=(0.0, 1.0))
@example(low=1.0, high=1.0, bounds=(0.1, 0.7))
@example(low=1.0, high=-1.0, bounds=(-5.0, 3.0))
@example(low=-2.0, high=-1.0, bounds=(0.0, 1.0))
@example(low=1.0, high=2.0, bounds=(0.0, 1.0))
def test_any_range_that_noise_gives_becomes_one_that_can_be_declared(
    low: float, high: float, bounds: tuple[float, float]
) -> None:
    """Of no width, of a negative one, or beyond the bounds: a target is made, and it is no narrower than allowed."""
    found = Number("price", *bounds).with_range(low, high)
    assert found.typical is not None
    assert bounds[0] <= found.typical[0] < found.typical[1] <= bounds[1]
    center, factor = found.label_reading
    assert math.isfinite(center)
    assert 0 < factor < 3 * 4096
    assert read_target(found.to_dict()) == found


def test_classes_have_no_range() -> None:
    with pytest.raises(ParameterError, match=r"^a range of labels must be for a target with bounds, got the label 'y'"):
        TWO.with_range(-1, 1)


def test_predicted_numbers_are_in_the_units_of_the_column_and_within_the_bounds() -> None:
    scores = np.array([[0.0], [0.25], [-1.0], [90.0], [-90.0]])
    spread = PRICE.scale
    expected = [6_250, 6_250 + spread / 4, 6_250 - spread, 20_000, 0]
    for loss in NUMBER_LOSSES[:2]:
        assert PRICE.predict(scores, 0.0, loss).tolist() == pytest.approx(expected)
    fitted = PRICE.adapt_to_loss(Mean())
    shares = 20_000 / (1 + np.exp(-scores[:, 0]))
    assert fitted.predict(scores, 0.0, Mean()) == pytest.approx(shares)
    assert PRICE.predict(np.empty((0, 1)), 0.0, Robust()).shape == (0,)


class Python:
    """SQL that Python understands as well."""

    write_literal = staticmethod(repr)
    write_constant = staticmethod(repr)

    def write_maximum(self, expressions: Sequence[str]) -> str:
        return f"max({', '.join(expressions)})"


@pytest.mark.parametrize("loss", NUMBER_LOSSES, ids=str)
@pytest.mark.parametrize("target", [PRICE, Number("t", -5, -2), Number("t", -3, 8, (0, 1), unit=0.25)], ids=str)
def test_the_prediction_in_sql_is_that_of_python(target: Number, loss: Loss) -> None:
    fitted = target.adapt_to_loss(loss)
    text = fitted.write_prediction(["score"], 0.0, loss, Python())
    for score in (-1e6, -30.0, -1.0, 0.0, 0.3, 2.0, 30.0, 1e6):
        found = eval(text, {"score": score, "tanh": math.tanh, "max": max})
        assert found == pytest.approx(fitted.predict(np.array([[score]]), 0.0, loss)[0], rel=1e-14, abs=1e-12)
        assert fitted.low <= found <= fitted.high
    assert fitted.depends_on_score_scale(0.0)


def test_a_number_is_described_by_its_bounds() -> None:
    assert PRICE.describe() == "the target 'price' with numbers from 0 to 20000"
    assert PRICE.describe_values() == "0 to 20000"
    assert (PRICE.describe_used_labels(3), PRICE.describe_unusable_labels(3)) == ("numbers", "no number")
    assert PRICE.example_labels == (0, 20_000)
    assert PRICE.describe_scores(Robust()) == "change of 'price'"
    assert PRICE.describe_scores(Mean()) == "log odds of 'price' between its bounds"
    assert PRICE.find_score_units(Robust()) == (PRICE.center, PRICE.scale)
    assert PRICE.find_score_units(Mean()) == TWO.find_score_units(Logistic()) == (0.0, 1.0)
    assert (PRICE.kernel_class_count, PRICE.class_count, THREE.class_count) == (2, 0, 3)
    assert PRICE.choose_default_loss(plain=False) == PRICE.choose_default_loss(plain=True) == ("robust", None)


@pytest.mark.parametrize(
    ("target", "loss", "models", "vectors", "named"),
    [
        (PRICE, Robust(), 1, 1, ("price",)),
        (PRICE, Mean(), 1, 1, ("price",)),
        (TWO, Logistic(), 1, 1, ("yes",)),
        (TWO, Multinomial(2), 1, 2, ("no", "yes")),
        (THREE, Logistic(), 3, 3, ("2", "0", "1")),
        (THREE, Multinomial(3), 1, 3, ("2", "0", "1")),
    ],
)
def test_models_and_vectors_of_a_loss(target: Target, loss: Loss, models: int, vectors: int, named: Any) -> None:
    assert (target.count_models(loss), target.count_weight_vectors(loss), target.name_weight_vectors(loss)) == (
        models,
        vectors,
        named,
    )


def test_predictions_are_by_the_cut_or_the_first_of_the_greatest_scores() -> None:
    assert TWO.predict(np.array([[0.5], [0.6]]), 0.5, Logistic()).tolist() == ["no", "yes"]
    assert THREE.predict(np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.5]]), 0.0, Logistic()).tolist() == [2, 1]


def test_sorting_takes_the_prior_along() -> None:
    assert THREE.sort_classes().values == (0, 1, 2)
    assert replace(THREE, prior=(0.5, 0.3, 0.2)).sort_classes().prior == (0.3, 0.2, 0.5)
