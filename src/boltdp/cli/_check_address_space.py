"""A check of the memory limit at startup: below it, native libraries abort without a message."""

from __future__ import annotations

import resource
import sys

#: The minimum address space of a process. DuckDB, Arrow and NumPy start threads; with less memory one of them may abort
#: ("cannot allocate memory for thread-local data"), crash or hang, which Python cannot catch.
MIN_BYTES = 1_500_000_000


def check_memory_limit() -> None:
    """Exit with an error message if the address space limit is below `MIN_BYTES`."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < MIN_BYTES:
        print(
            f"error: there is not enough memory: the process may have {limit / 1e6:,.0f} MB of addresses (ulimit -v), "
            f"and needs {MIN_BYTES / 1e6:,.0f}",
            file=sys.stderr,
        )
        sys.exit(1)
