"""Refusing to begin where the libraries would be ended by the C library, without a word."""

from __future__ import annotations

import resource
import sys

#: Least limit on a process's addresses. DuckDB, Arrow and NumPy start threads, and below it one of these may abort
#: ("cannot allocate memory for thread-local data"), fault or wait for ever, which Python cannot catch.
MIN_BYTES = 1_500_000_000


def check_limit() -> None:
    """End with our own message if the process may not have the addresses that the libraries need."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < MIN_BYTES:
        print(
            f"error: there is not enough memory: the process may have {limit / 1e6:,.0f} MB of addresses (ulimit -v), "
            f"and needs {MIN_BYTES / 1e6:,.0f}",
            file=sys.stderr,
        )
        sys.exit(1)
