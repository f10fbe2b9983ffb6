"""Scoring in Spark by the model's SQL expression, without Python workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from boltdp.errors import ParameterError
from boltdp.export.sql import write_probability_expression, write_scoring_expression

if TYPE_CHECKING:
    from boltdp.model import Model


def add_predictions(model: Model, frame: Any, *, column: str = "prediction", probability: str | None = None) -> Any:
    """Return the DataFrame with the predicted class as a new column, and the probability as one named `probability`.

    The probability is that of the second of two classes; for more classes, an array in the order of the model's
    classes. The DataFrame needs no label.
    """
    from pyspark.sql import functions

    added = {column: write_scoring_expression(model, "spark")}
    if probability is not None:
        added[probability] = write_probability_expression(model, "spark")
    for name in added:
        if name in frame.columns:
            raise ParameterError(f"the new column must have a name of its own, got {name!r}, which exists")
    return frame.withColumns({name: functions.expr(expression) for name, expression in added.items()})
