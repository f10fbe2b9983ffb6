"""The aggregate that counts errors where the rows are: the counts of the kernel, and nothing unsound."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import psycopg
import pytest

from boltdp.kernel.misclassification import ErrorCounts

ROWS, DIMS = 700, 6
ERRORS = ErrorCounts(np.ones((3, 1, 2)), classes=2).to_bytes()


def packed_rows(classes: int) -> npt.NDArray[np.float32]:
    """Rows of every class, a few of them without one or with a feature that is no number."""
    random = np.random.default_rng(classes)
    rows = np.hstack([random.integers(0, classes, (ROWS, 1)), random.normal(0, 0.6, (ROWS, DIMS))]).astype(np.float32)
    rows[::50, 0] = np.nan
    rows[7::90, 3] = np.inf
    return rows


@pytest.fixture(params=[1, 39])
def block_rows(request: pytest.FixtureRequest, admin: psycopg.Connection) -> Iterator[int]:
    """A table for blocks. Those of one row are so short that the server stores their numbers unaligned."""
    admin.execute("CREATE TEMP TABLE blocks (place int, block real[])")
    yield request.param
    admin.execute("DROP TABLE blocks")


@pytest.mark.parametrize(("models", "vectors"), [(1, 1), (9, 1), (4, 3)])
def test_counts_in_the_server_are_those_of_the_kernel(
    admin: psycopg.Connection, block_rows: int, models: int, vectors: int
) -> None:
    classes = max(2, vectors)
    rows = packed_rows(classes)
    weights = np.random.default_rng(models).standard_normal((models, vectors, DIMS))
    here, there = (ErrorCounts(weights, classes=classes) for _ in range(2))
    here.add(rows)
    with admin.cursor().copy("COPY blocks FROM STDIN") as copy:
        for start in range(0, ROWS, block_rows):
            copy.write_row((start, rows[start : start + block_rows].tolist()))
    query = "SELECT boltdp.sums(%s, block ORDER BY place) FROM blocks"
    answer = admin.execute(query.encode(), [there.to_bytes()]).fetchone()
    assert answer is not None
    there.update(answer[0])
    assert there.counts == here.counts
    assert there.to_bytes() == here.to_bytes()
    assert 0 < min(here.counts) < ROWS


@pytest.mark.parametrize(
    ("state", "block", "message"),
    [
        (None, "{{1,0.5,0.5}}", "the state must not be NULL"),
        (b"", "{{1,0.5,0.5}}", "the state is corrupt"),
        (b"x" * 400, "{{1,0.5,0.5}}", "the state is corrupt"),
        (ERRORS[:-8], "{{1,0.5,0.5}}", "the state is corrupt"),
        (ERRORS + bytes(8), "{{1,0.5,0.5}}", "the state is corrupt"),
        # Three models that claim to be one, and to have a vector for each of four classes.
        (ERRORS[:48] + b"\1" + ERRORS[49:], "{{1,0.5,0.5}}", "the state is corrupt"),
        (ERRORS[:56] + b"\4" + ERRORS[57:], "{{1,0.5,0.5}}", "the state is corrupt"),
        (ERRORS, None, "a block of rows must not be NULL"),
        (ERRORS, "{1,0.5,0.5}", "a block must have two dimensions and rows of 3 numbers, got 1 and 0"),
        (ERRORS, "{{1,0.5}}", "a block must have two dimensions and rows of 3 numbers, got 2 and 2"),
        (ERRORS, "{{1,0.5,NULL}}", "a block of rows must not contain NULL"),
    ],
)
def test_what_is_unsound_is_refused(
    admin: psycopg.Connection, state: bytes | None, block: str | None, message: str
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        admin.execute("SELECT boltdp.sums(%s::bytea, %s::real[])", (state, block))
    assert caught.value.diag.message_primary == message


def test_counts_are_no_window_function(admin: psycopg.Connection) -> None:
    with pytest.raises(psycopg.Error, match=r"boltdp\.sums"):
        admin.execute("SELECT boltdp.sums(%s::bytea, '{{1,0.5,0.5}}'::real[]) OVER ()", [ERRORS])


def test_counts_of_no_rows_are_null(admin: psycopg.Connection) -> None:
    assert admin.execute("SELECT boltdp.sums(%s, NULL) FROM pg_class WHERE false", (ERRORS,)).fetchone() == (None,)
