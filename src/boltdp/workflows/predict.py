"""Predictions of a released model for the rows of any source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from boltdp._array_types import Doubles
from boltdp.encoding.python_to_arrow import to_matrix
from boltdp.engines import use_source
from boltdp.engines._frame_types import is_sparse
from boltdp.engines.base import Engine, check_columns, scan_rows
from boltdp.engines.in_memory import count_array_columns, wrap_rows
from boltdp.errors import show_hints
from boltdp.model import Model
from boltdp.run_context import Context


def score_batches(model: Model, engine: Engine, context: Context | None = None) -> Iterator[Doubles]:
    """Yield the margins of the rows of `engine`, in their own order; the label need not be there."""
    check_columns(model.schema, engine.columns(), label=False)
    sparse = engine.encode_sparse_rows(model.schema, Context() if context is None else context, label=False)
    if sparse is not None:
        return iter([model.margins(sparse)])
    return scan_rows(engine, model.schema, model.margins, label=False, context=context)


def predict(model: Model, source: Any, context: Context | None = None, **options: Any) -> npt.NDArray[Any]:
    """Predict the class, or the number, of each row, in order; `source` and `options` are those of `open_source`.

    A table has the columns of the schema, in any order and among others; the label need not be there. The columns of
    an array are those of the schema, in its order.
    """
    return model.predict_margins(_compute_margins(model, source, context, options))


def predict_proba(model: Model, source: Any, context: Context | None = None, **options: Any) -> Doubles:
    """Compute the probability of each class, in the order of `classes`, for each row of `source`, as `predict` does."""
    return model.probabilities(_compute_margins(model, source, context, options))


def _compute_margins(model: Model, source: Any, context: Context | None, options: dict[str, Any]) -> Doubles:
    with show_hints():
        if isinstance(source, list):
            source = to_matrix(source, width=count_array_columns(model.schema))
        if isinstance(source, np.ndarray) or is_sparse(source):
            source = wrap_rows(model.schema, source)
        with use_source(source, **options) as engine:
            margins = [*score_batches(model, engine, context)]
    return np.concatenate([np.empty((0, len(model.weights))), *margins])
