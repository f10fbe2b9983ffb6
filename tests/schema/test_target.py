from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from boltdp._array_types import Doubles
from boltdp.encoding.declared_values import Value
from boltdp.encoding.encode import Encoder
from boltdp.errors import ParameterError
from boltdp.losses import LOSSES, Logistic, Loss, Multinomial
from boltdp.schema.columns import Numeric
from boltdp.schema.schema import Schema
from boltdp.schema.target import Classes, SqlWriter, Target, read_target

TWO, THREE = Classes("y", ("no", "yes"), prior=(0.75, 0.25)), Classes("y", (2, 0, 1))


@dataclass(frozen=True)
class Number(Target):
    """A kind that the package does not have: what it does not state must be refused, and never taken for classes."""

    low: float = 0.0
    high: float = 10.0

    kind = "number"
    task = "regression"
    predictor = "regression"
    key = "target"
    other_keys = ("bounds",)
    label_count = 2

    @classmethod
    def from_dict(cls, declared: Mapping[str, Any]) -> Number:
        return cls(declared["target"], *declared["bounds"])

    def to_dict(self) -> dict[str, Any]:
        return {"target": self.column, "bounds": [self.low, self.high]}

    @property
    def label_column(self) -> Numeric:
        return Numeric(self.column, self.low, self.high)

    @property
    def example_labels(self) -> tuple[Value, ...]:
        return self.low, self.high

    @property
    def summary(self) -> str:
        return f"bounds {self.low:g} to {self.high:g}"

    def describe_used_labels(self, limit: int) -> str:
        return self.summary

    def describe_values(self) -> str:
        return self.summary

    def choose_default_loss(self, *, plain: bool) -> str:
        return "none"

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

    def predict(self, scores: Doubles, cut: float) -> npt.NDArray[Any]:
        return scores[:, 0]

    def depends_on_score_scale(self, cut: float) -> bool:
        return True

    def write_prediction(self, scores: Any, cut: float, sql: SqlWriter) -> str:
        return str(scores[0])


NUMBER = Number("price")


@pytest.mark.parametrize(
    "use",
    [
        lambda: NUMBER.probabilities(np.zeros((1, 1)), Logistic()),
        lambda: NUMBER.resolve_class_weights("balanced"),
        lambda: NUMBER.resolve_threshold(0.5, Logistic()),
        lambda: NUMBER.describe_threshold(0.5),
        lambda: Schema(NUMBER, (Numeric("age", 0, 1),)).classes,
    ],
)
def test_what_only_classes_have_is_refused_for_another_kind(use: Callable[[], Any]) -> None:
    with pytest.raises(ParameterError, match=r"must be for a label with classes, got the target 'price' with bounds"):
        use()


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_refused_for_a_target_of_another_kind(name: str) -> None:
    loss = Multinomial(3) if name == "multinomial" else LOSSES[name]()
    with pytest.raises(ParameterError, match=f"^the loss '{name}' must be used for classes, got the target 'price'"):
        NUMBER.count_models(loss)


def test_a_kind_that_leaves_something_out_cannot_be_made() -> None:
    class Incomplete(Target):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Incomplete("y")  # type: ignore[abstract]


@pytest.mark.parametrize("declared", [{"classes": [0, 1]}, {"target": "y", "bounds": [0, 1]}, {}])
def test_an_unknown_kind_in_a_file_is_refused(declared: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=r"^the schema must declare 'label'$"):
        read_target(declared)


def test_the_label_of_another_kind_is_packed_by_its_column_and_missing_is_nan() -> None:
    schema = Schema(NUMBER, (Numeric("age", 0, 100),), intercept=False)
    batch = pa.RecordBatch.from_pydict({"price": [0.0, 7.5, 99.0, None], "age": [50, 50, 50, 50]})
    np.testing.assert_array_equal(Encoder(schema.encoding).encode(batch)[:, 0], np.array([-1, 0.5, 1, np.nan]))
    assert np.isnan(Encoder(schema.encoding).encode(batch.select(["age"]))[:, 0]).all()


@pytest.mark.parametrize(
    ("target", "loss", "models", "vectors", "named"),
    [
        (TWO, Logistic(), 1, 1, ("yes",)),
        (TWO, Multinomial(2), 1, 2, ("no", "yes")),
        (THREE, Logistic(), 3, 3, ("2", "0", "1")),
        (THREE, Multinomial(3), 1, 3, ("2", "0", "1")),
    ],
)
def test_models_and_vectors_of_a_loss(target: Classes, loss: Loss, models: int, vectors: int, named: Any) -> None:
    assert (target.count_models(loss), target.count_weight_vectors(loss), target.name_weight_vectors(loss)) == (
        models,
        vectors,
        named,
    )


def test_predictions_are_by_the_cut_or_the_first_of_the_greatest_scores() -> None:
    assert TWO.predict(np.array([[0.5], [0.6]]), 0.5).tolist() == ["no", "yes"]
    assert THREE.predict(np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.5]]), 0.0).tolist() == [2, 1]


def test_sorting_takes_the_prior_along() -> None:
    assert THREE.sort_classes().values == (0, 1, 2)
    assert replace(THREE, prior=(0.5, 0.3, 0.2)).sort_classes().prior == (0.3, 0.2, 0.5)
