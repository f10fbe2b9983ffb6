"""Work on rows in several threads: the kernel, Arrow and DuckDB release Python's lock while they are busy."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from boltdp import _interrupts

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")
R = TypeVar("R")

#: Seconds after which work that is waited for is looked after, in case it is to be stopped.
POLL_SECONDS = 0.1


def processors() -> int:
    """How many processors this process may use.

    >>> processors() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # where processes cannot be bound to some


def await_result(done: Future[T]) -> T:
    """What a thread makes, unless the process is asked to stop before."""
    from concurrent.futures import wait

    while not wait([done], timeout=POLL_SECONDS).done:
        _interrupts.check()
    return done.result()


@contextmanager
def close_at_end(items: Iterable[object]) -> Iterator[None]:
    """Close an iterator at the end, if it can be: one that nobody asks any more may still hold something open."""
    try:
        yield
    finally:
        if isinstance(items, Generator):
            items.close()


def map_in_order(work: Callable[[T], R], items: Iterable[T], *, threads: int) -> Iterator[R]:
    """What `work` makes of each item, in the order of the items; few of them are in memory at a time.

    The items are taken in the calling thread. What one of them raises is raised here, when its turn comes; then, and if
    the process is asked to stop, no more work begins, and what has begun is ended before this is.

    >>> list(map_in_order(abs, [-3, 2, -1], threads=2))
    [3, 2, 1]
    """
    if threads == 1:
        with close_at_end(items):
            for item in items:
                _interrupts.check()
                yield work(item)
        return

    def checked(item: T) -> R:
        _interrupts.check()
        return work(item)

    from concurrent.futures import ThreadPoolExecutor  # only here, as commands that read no rows need none

    begun: deque[Future[R]] = deque()
    with close_at_end(items), ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                begun.append(pool.submit(checked, item))
                # One more than there are threads, so that none waits for the next.
                if len(begun) > threads + 1:
                    yield await_result(begun.popleft())
            while begun:
                yield await_result(begun.popleft())
        finally:
            for one in begun:
                one.cancel()


def run_all(work: Callable[[T], object], items: Iterable[T], *, threads: int) -> None:
    """Do `work` with each item, as `map_in_order` does."""
    deque(map_in_order(work, items, threads=threads), maxlen=0)
