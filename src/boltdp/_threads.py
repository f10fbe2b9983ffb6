"""Parallel work on rows in threads: the kernel, Arrow and DuckDB release the GIL."""

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

#: Seconds between checks for an interrupt while waiting for a thread.
POLL_SECONDS = 0.1


def count_processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # on systems without processor affinity


def await_result(done: Future[T]) -> T:
    """Wait for the result of a thread; raise KeyboardInterrupt if the process is asked to stop."""
    from concurrent.futures import wait

    while not wait([done], timeout=POLL_SECONDS).done:
        _interrupts.check()
    return done.result()


@contextmanager
def close_at_end(items: Iterable[object]) -> Iterator[None]:
    """Close `items` at the end of the block if it is a generator, even if it was not exhausted."""
    try:
        yield
    finally:
        if isinstance(items, Generator):
            items.close()


def map_in_order(work: Callable[[T], R], items: Iterable[T], *, threads: int) -> Iterator[R]:
    """Apply `work` to each item in several threads, and yield the results in order, with few items in memory.

    Items are taken in the calling thread. An exception of `work` is raised when its item's turn comes. Then, or if the
    process is asked to stop, pending work is cancelled and running work is awaited.
    """

    def work_unless_interrupted(item: T) -> R:
        _interrupts.check()
        return work(item)

    if threads == 1:
        with close_at_end(items):
            yield from map(work_unless_interrupted, items)
        return
    from concurrent.futures import ThreadPoolExecutor  # imported here, as commands without rows need none

    begun: deque[Future[R]] = deque()
    with close_at_end(items), ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                begun.append(pool.submit(work_unless_interrupted, item))
                # One item more than threads, so that no thread is idle.
                if len(begun) > threads + 1:
                    yield await_result(begun.popleft())
            while begun:
                yield await_result(begun.popleft())
        finally:
            for future in begun:
                future.cancel()


def run_all(work: Callable[[T], object], items: Iterable[T], *, threads: int) -> None:
    """Apply `work` to each item in several threads, as `map_in_order` does, and discard the results."""
    deque(map_in_order(work, items, threads=threads), maxlen=0)
