"""The suite that every engine must pass, on a real server: packed, a row a tuple, streamed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from boltdp.data.encode import projection_matrix
from boltdp.data.schema import Projection
from boltdp.engines.postgres import PostgresEngine
from boltdp.engines.postgres.server import Server
from boltdp.kernel import project
from tests.engines.sources import ROWS, SCHEMA, Source, columns, reference
from tests.engines.test_conformance import (  # noqa: F401
    test_bad_positions_are_refused_before_they_are_fed,
    test_bad_row_is_an_error_when_asked_for_and_the_message_has_no_value,
    test_batches_are_short_and_in_order,
    test_columns_tell_names_and_kinds,
    test_count_is_the_number_of_rows,
    test_derivatives_have_the_bits_of_those_over_the_array,
    test_drawing_and_passes_may_alternate,
    test_drawing_nothing_changes_nothing,
    test_drawn_rows_give_the_bits_of_a_run_over_them,
    test_drawn_rows_of_a_portion_are_counted_from_its_start,
    test_encoded_rows_are_those_of_plain_numpy,
    test_label_is_not_needed_for_prediction,
    test_markers_end_batches_of_any_length,
    test_missing_column_is_told_before_a_row_is_read,
    test_missing_label_is_told_before_a_row_is_read,
    test_moments_are_those_of_the_encoded_rows,
    test_passes_of_several_models_give_the_bits_of_one_run_over_the_array,
    test_portion_outside_the_rows_is_refused,
    test_portions_are_cut_by_position,
    test_prepared_rows_are_in_the_reference_order,
    test_progress_tells_rows_and_ends_with_all_of_them,
    test_reshuffle_permutes_the_current_order,
    test_reshuffling_a_portion_leaves_the_others_alone,
    test_standardized_rows_are_those_of_the_arrays,
    test_tuning_gives_the_bits_of_tuning_over_the_array,
)

ENGINES: dict[str, dict[str, Any]] = {
    "packed": {"table": "conformance"},
    "row a tuple": {"table": "conformance", "layout": "rows"},
    "streamed": {"table": "conformance", "where": "client"},
    "view": {"table": "conformance view"},
    "query": {"query": "SELECT sick, scan, sex, visits, age FROM conformance ORDER BY id -- the end"},
    "packed, projected": {"table": "conformance"},
    "streamed, projected": {"table": "conformance", "where": "client"},
}


@pytest.fixture(scope="module")
def table(server: Server) -> Iterator[None]:
    with psycopg.connect(server.uri, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE conformance (id int, age float8, visits int, sex text, scan float8[], sick int)"
        )
        with connection.cursor().copy("COPY conformance FROM STDIN") as copy:
            for row in zip(*columns().values(), strict=True):
                copy.write_row(row)
        connection.execute('CREATE VIEW "conformance view" AS SELECT * FROM conformance')
        yield
        connection.execute("DROP TABLE conformance CASCADE")


@pytest.fixture(params=ENGINES)
def source(request: pytest.FixtureRequest, server: Server, table: None) -> Iterator[Source]:
    del table
    packed, schema = reference(), SCHEMA
    if request.param.endswith("projected"):
        schema = replace(SCHEMA, projection=Projection(dims=3, seed=17))
        assert schema.projection is not None
        unprojected, packed = packed, np.empty((ROWS, 4), np.float32)
        project(unprojected, projection_matrix(schema.projection, SCHEMA.dims), packed)
    with PostgresEngine(server.uri, **ENGINES[request.param]) as engine:
        yield Source(engine, schema, packed)


@pytest.fixture
def spooled(source: Source, tmp_path: Path) -> Source:
    """Streamed rows in a file of few buckets; the others stay in the server."""
    assert isinstance(source.engine, PostgresEngine)
    source.engine.bucket_bytes = 4 * 4 * (ROWS - 1)
    source.engine.spool = tmp_path
    return source
