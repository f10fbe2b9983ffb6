"""Recognition of data frames and tables without importing their libraries.

Their types are asked, since an attribute of an object may be a column: a DataFrame of Spark Connect has all names.
"""

from __future__ import annotations

from typing import Any


def is_pandas_frame(data: Any) -> bool:
    """Return whether `data` is a pandas data frame."""
    return type(data).__module__.split(".")[0] == "pandas" and hasattr(type(data), "columns")


def is_sparse(data: Any) -> bool:
    """Return whether `data` is a sparse matrix or array of SciPy."""
    return hasattr(type(data), "tocsr")


def is_table(data: Any) -> bool:
    """Return whether `data` can be read as an Arrow table: Arrow's own tables, and those of Polars and ibis."""
    # pandas implements Arrow's stream interface too, but its errors quote values.
    if type(data).__module__.split(".")[0] == "pandas":
        return False
    return any(hasattr(type(data), f"__arrow_c_{kind}__") for kind in ("stream", "array")) or is_lazy_frame(data)


def is_lazy_frame(data: Any) -> bool:
    """Return whether `data` is a lazy frame of Polars."""
    return type(data).__module__.split(".")[0] == "polars" and type(data).__name__ == "LazyFrame"
