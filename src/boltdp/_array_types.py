"""The kinds of NumPy arrays that pass between modules, each named once."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

#: Weights, margins, noise, sums: whatever is computed with.
Doubles: TypeAlias = npt.NDArray[np.float64]
#: Rows as the kernel reads them: the class index, then the features.
PackedRows: TypeAlias = npt.NDArray[np.float32]
#: Numbers as data has them.
Floats: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.float64]
#: Places of rows, and exact counts and sums of them.
Integers: TypeAlias = npt.NDArray[np.int64]
Booleans: TypeAlias = npt.NDArray[np.bool_]
