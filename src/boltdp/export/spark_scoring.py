"""Scoring in Spark: predictions as a DataFrame, by the model's SQL expression, without Python beside the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from boltdp.errors import ParameterError
from boltdp.export.sql import probability_expression, scoring_expression

if TYPE_CHECKING:
    from boltdp.model import Model


def predicted(model: Model, frame: Any, *, column: str = "prediction", probability: str | None = None) -> Any:
    """The DataFrame with one more column, the class that the model predicts; with `probability`, another of that name.

    That is the probability of the second of two classes; of more classes, an array of all, in the order of the model's.
    The label need not be there.
    """
    from pyspark.sql import functions

    added = {column: scoring_expression(model, "spark")}
    if probability is not None:
        added[probability] = probability_expression(model, "spark")
    for name in added:
        if name in frame.columns:
            raise ParameterError(f"the new column must have a name of its own, got {name!r}, which exists")
    return frame.withColumns({name: functions.expr(expression) for name, expression in added.items()})
