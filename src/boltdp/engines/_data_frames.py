"""Which objects are data frames or tables, known without importing the libraries that they come from."""

from __future__ import annotations

from typing import Any


def is_pandas_frame(data: Any) -> bool:
    """Whether something is a data frame of pandas."""
    return type(data).__module__.split(".")[0] == "pandas" and hasattr(data, "columns")


def is_table(data: Any) -> bool:
    """Whether something can be read as an Arrow table: Arrow's own, those of Polars (lazy ones too) and of ibis.

    >>> import numpy, pyarrow
    >>> is_table(pyarrow.table({"age": [30]})), is_table(numpy.zeros((2, 2)))
    (True, False)
    """
    # pandas offers Arrow's stream interface too, but raises errors that quote values.
    if type(data).__module__.split(".")[0] == "pandas":
        return False
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__") or is_lazy_frame(data)


def is_lazy_frame(data: Any) -> bool:
    """Whether something is a lazy frame of Polars."""
    return type(data).__module__.split(".")[0] == "polars" and type(data).__name__ == "LazyFrame"
