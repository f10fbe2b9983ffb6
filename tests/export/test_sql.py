from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from boltdp import Model
from boltdp.encoding.declared_values import Value
from boltdp.engines import open_source
from boltdp.engines.base import encode_rows
from boltdp.errors import ParameterError
from boltdp.export.original_units import convert_to_original_units
from boltdp.export.sql import _write_row, write_probability_expression, write_scoring_expression
from boltdp.export.sql_dialects import DIALECTS
from boltdp.model import CLIPPED_LINK
from boltdp.schema.schema import (
    Categorical,
    Classes,
    Column,
    Numeric,
    Projection,
    Schema,
    Standardization,
    TimePart,
    Vector,
)
from boltdp.settings import Multiclass, Settings
from tests.plans import plan_certificate

NAN, INF = math.nan, math.inf

#: Quotes, keywords, blanks, other scripts, what starts a comment or a placeholder, and the names the SQL itself binds.
HOSTILE_NAMES = ('a"b', "select", "x", "margin", "größe in cm", "'; DROP TABLE t; --", "a{0}?%s:b", "tab\there", "`")


def make_model(
    schema: Schema,
    *,
    seed: int = 0,
    loss: str = "logistic",
    multiclass: Multiclass = "multinomial",
    weights: npt.NDArray[np.float64] | None = None,
) -> Model:
    settings = Settings(epsilon=None, loss=loss, multiclass=multiclass)
    certificate = plan_certificate(
        settings, rows=100, dims=schema.dims, classes=len(schema.classes), person_rows=schema.max_rows_per_person
    )
    vectors = max(certificate.model_count, certificate.problem.loss.vector_count)
    if weights is None:
        weights = np.random.default_rng(seed).standard_normal((vectors, schema.dims))
    return Model(schema=schema, weights=weights, certificate=certificate)


def in_duckdb(table: pa.Table, expression: str) -> list[Any]:
    with duckdb.connect() as connection:
        connection.register("private", table)
        return [row[0] for row in connection.execute(f"SELECT {expression} AS prediction FROM private").fetchall()]


def assert_same(model: Model, table: pa.Table) -> None:
    assert in_duckdb(table, write_scoring_expression(model, "duckdb")) == model.predict(open_source(table)).tolist()


def random_floats(generator: np.random.Generator, count: int) -> list[float | None]:
    special: list[float | None] = [None, NAN, INF, -INF, 1e300, -1e300, 1e-60, 0.0, -0.0]
    plain: list[float | None] = generator.normal(0, 30, count).tolist()
    return [special[i % len(special)] if generator.random() < 0.3 else value for i, value in enumerate(plain)]


@pytest.mark.parametrize(
    "classes", [(0, 1), ("it's", 'q"{}\\'), (False, True), (1.5, -2.0), (3, 2, 1), ("a", "b", "c", "d")]
)
@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_sql_predicts_what_the_model_predicts(name: str, classes: tuple[Value, ...]) -> None:
    generator = np.random.default_rng(len(name))
    columns = (Numeric(name, -20, 50), Numeric("other", 0, 1e-3), Categorical(name + "2", ("a'b", 'c"d', "")))
    schema = Schema(Classes("label", classes), columns)
    texts = np.array(["a'b", 'c"d', "", "not declared", None], dtype=object)
    table = pa.table(
        {
            name: pa.array(random_floats(generator, 500), pa.float64()),
            "other": pa.array(random_floats(generator, 500), pa.float32()),
            name + "2": pa.array(texts[generator.integers(5, size=500)].tolist(), pa.string()),
        }
    )
    assert_same(make_model(schema, seed=len(name)), table)


@pytest.mark.parametrize("threshold", [0.11, 0.5, 0.8])
@pytest.mark.parametrize("classes", [(0, 1), ("it's {0}", 'q"{}\\')])
def test_sql_decides_by_the_threshold(classes: tuple[Value, ...], threshold: float) -> None:
    generator = np.random.default_rng(7)
    columns = (Numeric("x", -20, 50), Numeric("other", 0, 1), Categorical("c", ("a", "b")))
    # Rows that are longer than the clip norm are shortened before they are compared.
    schema = Schema(Classes("label", classes), columns, clip_norm=1.1)
    table = pa.table(
        {
            "x": pa.array(random_floats(generator, 2000), pa.float64()),
            "other": pa.array(generator.uniform(0, 1, 2000)),
            "c": pa.array(np.array(["a", "b", None], dtype=object)[generator.integers(3, size=2000)].tolist()),
        }
    )
    model = make_model(schema, weights=np.array([[3.0, 1.0, 2.0, -2.0, -1.0]])).with_threshold(threshold)
    assert_same(model, table)
    decided, plain = (one.predict(open_source(table)).tolist() for one in (model, model.with_threshold(None)))
    assert len(set(decided)) == 2
    assert (decided == plain) == (threshold == 0.5)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_threshold_of_a_half_is_the_expression_without_one(dialect: str) -> None:
    model = make_model(Schema(Classes("label", (0, 1)), (Numeric("x", -20, 50),)))
    plain = write_scoring_expression(model, dialect)
    assert write_scoring_expression(model.with_threshold(0.5), dialect) == plain
    assert write_scoring_expression(model.with_threshold(0.4), dialect) != plain
    assert write_probability_expression(model.with_threshold(0.4), dialect) == write_probability_expression(
        model, dialect
    )


def test_a_threshold_is_compared_after_the_projection() -> None:
    generator = np.random.default_rng(8)
    columns = tuple(Numeric(f"f{i}", -40, 60) for i in range(5))
    schema = Schema(Classes("label", (0, 1)), columns, clip_norm=1.1, projection=Projection(dims=3, seed=1))
    model = make_model(schema).with_threshold(0.4)
    table = pa.table({column.name: random_floats(generator, 1000) for column in columns})
    assert_same(model, table)
    assert model.predict(open_source(table)).tolist() != model.with_threshold(None).predict(open_source(table)).tolist()


@pytest.mark.parametrize("classes", [("b", "a"), (0, 1)])
def test_scikit_learn_decides_by_the_threshold(classes: tuple[Value, ...]) -> None:
    generator = np.random.default_rng(7)
    schema = Schema(Classes("label", classes), (Numeric("x", -2, 5), Numeric("other", 0, 1)))
    table = pa.table({"x": generator.uniform(-2, 5, 500), "other": generator.uniform(0, 1, 500)})
    X = table.to_pandas()
    model = make_model(schema, weights=np.array([[4.0, 1.0, -1.0]]))
    decided, plain = model.with_threshold(0.2).to_sklearn(), model.to_sklearn()
    assert decided.predict(X).tolist() == model.with_threshold(0.2).predict(open_source(table)).tolist()
    assert decided.predict(X).tolist() != plain.predict(X).tolist()
    np.testing.assert_array_equal(decided.predict_proba(X), plain.predict_proba(X))
    # Exactly at the threshold it is not exceeded.
    cut = decided.threshold
    assert np.nextafter(cut, -np.inf) == model.with_threshold(0.2).margin_threshold


@pytest.mark.parametrize("loss", ["logistic", "huber"])
def test_one_vs_all_models_agree(loss: str) -> None:
    generator = np.random.default_rng(3)
    schema = Schema(Classes("label", ("a", "b", "c")), (Numeric("x", -20, 50), Numeric("y", 0, 9)), clip_norm=0.5)
    table = pa.table({"x": random_floats(generator, 300), "y": random_floats(generator, 300)})
    assert_same(make_model(schema, loss=loss, multiclass="one-vs-all"), table)


def test_projection_is_folded_into_the_weights() -> None:
    generator = np.random.default_rng(4)
    columns = tuple(Numeric(f"f{i}", -40, 60) for i in range(20))
    schema = Schema(Classes("label", (0, 1, 2)), columns, clip_norm=2.0, projection=Projection(dims=7, seed=1))
    table = pa.table({column.name: random_floats(generator, 1000) for column in columns})
    assert_same(make_model(schema), table)


CELLS: dict[str, tuple[Any, list[Any]]] = {
    "text": (
        pa.string(),
        ["1", "1.0", "1.00", "01", "true", "True", "nan", "a", "", " 1", "2.5", "1e3", "1e+16", None],
    ),
    "enum": (pa.dictionary(pa.int8(), pa.string()), ["1", "1.0", "a", "true", "", None]),
    "bool": (pa.bool_(), [True, False, None]),
    "tiny": (pa.int8(), [0, 1, -1, 3, 100, None]),
    "big": (pa.int64(), [0, 1, 2**53, 2**53 + 1, 1000, None]),
    "unsigned": (pa.uint64(), [0, 1, 2**53, 2**53 + 1, 1000, None]),
    "double": (pa.float64(), [0.0, -0.0, 1.0, 2.5, 0.1, 1000.0, 1e16, 1e-5, NAN, INF, None]),
    "float": (pa.float32(), [0.0, 1.0, 2.5, 0.1, 1000.0, NAN, -INF, None]),
    "decimal": (pa.decimal128(10, 2), [Decimal("1.00"), Decimal("2.50"), Decimal("0.10"), Decimal("3.14"), None]),
}


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize(
    "categories",
    [
        (0, 1, 2.5, 0.1, 1000),
        ("0", "1", "2.5", "a", ""),
        ("01", "1e3", "nan", "-0", "inf"),
        (False, True),
        ("true", "False", "yes"),
        (1e16, "1e-05", "1"),
        (2**53, 2**53 + 1, -1),
        ("1e300", "1.0", "2.50", "a"),
    ],
)
def test_categories_of_all_types_match_as_in_training(kind: str, categories: tuple[Value, ...]) -> None:
    arrow, cells = CELLS[kind]
    table = pa.table({"c": pa.array(cells, arrow)})
    schema = Schema(Classes("label", tuple(range(len(categories) + 1))), (Categorical("c", categories),), clip_norm=1.0)
    # Class k + 1 wins where category k is met, and class 0 where none is.
    weights = np.vstack([np.full(schema.dims, 0.5), np.eye(schema.dims)[:-1]])
    weights[:, -1] = [0.1] + [0.0] * len(categories)
    assert_same(make_model(schema, weights=weights), table)


@pytest.mark.parametrize("arrow", [pa.list_(pa.float64()), pa.list_(pa.float32()), pa.list_(pa.int64())])
def test_vectors_of_another_length_add_nothing(arrow: Any) -> None:
    cells = [[1, 2, 3], [3, -2, 1], [1, 2], [], None, [1, None, 3], [9, 9, 9, 9], [-5, 0, 0]]
    schema = Schema(Classes("label", ("no", "yes")), (Vector("v", 3, -4, 4),))
    table = pa.table({"v": pa.array(cells, arrow)})
    for seed in range(5):
        assert_same(make_model(schema, seed=seed), table)


def test_fixed_length_vectors_agree() -> None:
    cells = [[1, 2, 3], [3, -2, 1], None, [1, None, 3], [9, 9, 9]]
    schema = Schema(Classes("label", ("no", "maybe", "yes")), (Vector("v", 3, -4, 4),))
    assert_same(make_model(schema), pa.table({"v": pa.array(cells, pa.list_(pa.float32(), 3))}))


def test_booleans_and_integers_are_numbers_too() -> None:
    schema = Schema(Classes("label", (0, 1)), (Numeric("flag", 0, 1), Numeric("count", 0, 10)))
    table = pa.table({"flag": [True, False, None, True], "count": pa.array([3, None, 11, -1], pa.int16())})
    for seed in range(5):
        assert_same(make_model(schema, seed=seed), table)


#: Steps at cells of the rows and beside them, of columns with the same bounds, and of one that may be boolean.
PLACES = (0.1, float(np.float32(0.1)), math.nextafter(float(np.float32(0.1)), 1.0), 7.0)
CURVED = (
    Numeric("double", -20, 50, curve=PLACES),
    Numeric("single", -20, 50, curve=PLACES),
    Numeric("count", -20, 50, curve=(3, 7)),
    Numeric("plain", -20, 50),
    Numeric("other", -20, 50),
    Numeric("flag", 0, 1, curve=(0.5,)),
    Categorical("sex", ("F", "M")),
)


def curved_rows(count: int = 400) -> pa.Table:
    generator = np.random.default_rng(12)

    def cells() -> list[float | None]:
        near = [*PLACES, *(math.nextafter(place, end) for place in PLACES for end in (-INF, INF))]
        return [near[i % len(near)] if i % 3 == 0 else x for i, x in enumerate(random_floats(generator, count))]

    return pa.table(
        {
            "double": pa.array(cells(), pa.float64()),
            "single": pa.array(cells(), pa.float32()),
            "count": pa.array([[2, 3, 6, 7, 99, None][i % 6] for i in range(count)], pa.int16()),
            "plain": pa.array(cells(), pa.float64()),
            "other": pa.array(cells(), pa.float64()),
            "flag": [[True, False, None][i % 3] for i in range(count)],
            "sex": [["F", "M", None, "X"][i] for i in generator.integers(0, 4, count)],
        }
    )


def curved_schema(classes: tuple[Value, ...] = (0, 1), *, standardized: bool = False, **more: Any) -> Schema:
    schema = Schema(Classes("label", classes), CURVED, **more)
    if not standardized:
        return schema
    generator, n = np.random.default_rng(3), schema.encoded_dims - 1
    centers, scales = generator.uniform(0, 1, n).tolist(), generator.uniform(0.2, 2, n).tolist()
    return replace(schema, standardization=Standardization(tuple(centers), tuple(scales), clip_norm=2.5))


@pytest.mark.parametrize("classes", [(0, 1), ("a", "b", "c")])
@pytest.mark.parametrize("standardized", [False, True])
@pytest.mark.parametrize("projection", [None, Projection(dims=5, seed=1)])
def test_curves_score_as_the_model_does(
    classes: tuple[Value, ...], standardized: bool, projection: Projection | None
) -> None:
    schema = curved_schema(classes, standardized=standardized, projection=projection)
    table = curved_rows()
    for seed in range(3):
        assert_same(make_model(schema, seed=seed), table)


@pytest.mark.parametrize("standardized", [False, True])
def test_steps_in_sql_have_the_bits_of_the_encoder(standardized: bool) -> None:
    schema = curved_schema(standardized=standardized)
    (cells,) = encode_rows(open_source(curved_rows()), schema, label=False)
    packed = schema.encoding.read_features(cells)
    rows = in_duckdb(curved_rows(), _write_row(schema.encoding, DIALECTS["duckdb"]))
    np.testing.assert_array_equal(np.array(rows), packed[:, 1:].astype(np.float64))


def test_steps_that_every_number_reaches_are_those_of_the_encoder_in_sql() -> None:
    schema = Schema(Classes("label", (0, 1)), (Numeric("a", 0, 90, curve=(1e-12, 1.0)),), intercept=False)
    table = pa.table({"a": [-INF, -1.0, 0.0, 1.0, INF, math.nan, None]})
    (cells,) = encode_rows(open_source(table), schema, label=False)
    features = schema.encoding.read_features(cells)[:, 1:]
    assert (features[:, 1] > 0).tolist() == [True] * 5 + [False] * 2
    np.testing.assert_array_equal(in_duckdb(table, _write_row(schema.encoding, DIALECTS["duckdb"])), features)


def test_probability_is_that_of_a_model_with_curves() -> None:
    model = make_model(curved_schema(standardized=True))
    margins = np.concatenate(list(model.score_batches(open_source(curved_rows()))))
    found = in_duckdb(curved_rows(), write_probability_expression(model, "duckdb"))
    np.testing.assert_allclose(found, model.probabilities(margins)[:, 1], rtol=1e-12)


def test_the_steps_of_a_number_are_one_term() -> None:
    places = tuple(range(1, 65))
    schema = Schema(
        Classes("label", (0, 1)), tuple(Numeric(f"x{i}", 0, 100, curve=places) for i in range(20)), intercept=False
    )
    model = make_model(schema)
    for dialect, sql in DIALECTS.items():
        expression = write_scoring_expression(model, dialect)
        # A number, its steps, and the choice between the classes; none is read or clipped more than once.
        cells = 20 * (64 + 2) if dialect == "duckdb" else 2 * 20
        assert expression.count("CASE") == 20 + 1 + cells * sql.cell.count("CASE")
        assert expression.count("least(") == 20 + cells * sql.cell.count("least(")
        assert expression.count("\n+ ") == 2 * 20 - 1
    generator = np.random.default_rng(5)
    assert_same(model, pa.table({f"x{i}": generator.uniform(-5, 105, 200) for i in range(20)}))
    many = Schema(Classes("label", (0, 1)), tuple(Numeric(f"x{i}", 0, 100, curve=places[::8]) for i in range(51)))
    assert "\n+ " not in write_scoring_expression(make_model(many), "duckdb")
    assert_same(make_model(many), pa.table({f"x{i}": generator.uniform(-5, 105, 200) for i in range(51)}))


#: Texts of a column that is declared numeric: numbers in the ways in which they are written, and what is none.
NUMERALS = [
    *("1.5", " 1.5 ", "\t-7\r\n", "1e1", "2E+1", "-3.e-1", ".5", "+12", "1_0", "1_0.5_0", "007", "-0", "-"),
    *("inf", "-inf", "+Infinity", "-INFINITY", "nan", "NaN", "1e400", "-1e400", "1e-400", "-1e9999", "9" * 400),
    *("", "  ", "1.0h", "1,5", "1d", "2f", "0x10", "0x1p3", "1 2", "1__0", "_1", "1_", "1e", "e5", ".", "+-", "true"),
    *("1e5.5", "--1", "- 1", "x\n1", "1\n2", "infin", None, "NULL", "1;2", "1\u2028"),
]


def texts_schema(**more: Any) -> Schema:
    columns = (Numeric("a", -20, 50), Numeric("flag", 0, 1), Numeric("b", -20, 50, curve=(0, 1.5, 10)))
    return Schema(Classes("label", (0, 1)), columns, **more)


def rows_of_texts() -> pa.Table:
    generator = np.random.default_rng(8)
    return pa.table(
        {name: generator.permutation(np.array(NUMERALS * 5, object)).tolist() for name in ("a", "flag", "b")}
    )


@pytest.mark.parametrize("many", [False, True])
def test_texts_that_are_declared_numbers_are_read_as_predict_reads_them(many: bool) -> None:
    rows, schema = rows_of_texts(), texts_schema()
    if many:
        schema = replace(schema, target=Classes(schema.label, ("a", "b", "c")))
    model = make_model(schema, seed=2)
    assert len(set(model.predict(open_source(rows)).tolist())) > 1
    assert_same(model, rows)
    assert in_duckdb(rows, write_probability_expression(model, "duckdb")) is not None


def test_exact_ties_go_to_the_first_class() -> None:
    schema = Schema(Classes("label", ("first", "second")), (Numeric("x", -1, 1),), intercept=False)
    table = pa.table({"x": [0.0, None, NAN, 1e-60]})
    expression = write_scoring_expression(make_model(schema, weights=np.ones((1, 1))), "duckdb")
    assert in_duckdb(table, expression) == ["first"] * 4
    three = replace(schema, target=Classes(schema.label, ("first", "second", "third")))
    expression = write_scoring_expression(make_model(three, weights=np.array([[-1.0], [1.0], [1.0]])), "duckdb")
    assert in_duckdb(pa.table({"x": [0.0, 1.0, -1.0]}), expression) == ["first", "second", "first"]


@hypothesis_settings(max_examples=50)
@given(
    cells=st.lists(st.none() | st.floats(width=64), min_size=1, max_size=20),
    low=st.floats(-1e6, 1e6),
    width=st.floats(1e-6, 1e6),
    weight=st.floats(-10, 10),
    constant=st.floats(-10, 10),
)
def test_encoded_numbers_have_the_bits_of_the_encoder(
    cells: list[float | None], low: float, width: float, weight: float, constant: float
) -> None:
    schema = Schema(Classes("label", (0, 1)), (Numeric("x", low, low + width),))
    model = make_model(schema, weights=np.array([[weight, constant]]))
    table = pa.table({"x": pa.array(cells, pa.float64())})
    margins = np.concatenate(list(model.score_batches(open_source(table))))
    # NumPy may round a product and a sum at once, so a tie is one only up to that.
    assume(np.all(np.abs(margins) > 1e-15 * (abs(weight) + abs(constant))))
    assert_same(model, table)


@pytest.mark.parametrize("low", [5.0, -5.0, 1e6])
@pytest.mark.parametrize("center", [0.0, 0.25])
def test_numbers_between_bounds_that_are_next_to_each_other_are_clipped_after_scaling(
    low: float, center: float
) -> None:
    """The middle of such bounds is one of them, so that the other would be scaled to 2."""
    high = math.nextafter(low, math.inf)
    plain = Schema(Classes("label", (0, 1)), (Numeric("x", low, high), Numeric("z", low, high)))
    schema = replace(plain, standardization=Standardization((center,) * 2, (1.0,) * 2, clip_norm=4.0))
    margins = {low: -1.0, high: 0.0} if (low + high) / 2 == high else {low: 0.0, high: 1.0}
    table = pa.table({"x": [low, high, None], "z": [low, high, None]})
    for sign in (1.0, -1.0):  # a number of 2 and not 1 would change the sign
        ends = [sum(one - center for one in (margins[cell],) * 2) for cell in (low, high)]
        constant = -1.5 * max(ends, key=abs)
        model = make_model(schema, weights=sign * np.array([[1.0, 1.0, constant]]))
        assert_same(model, table)


def test_many_columns_and_classes_stay_of_sane_size() -> None:
    generator = np.random.default_rng(0)
    pixels = tuple(Numeric(f"f{i}", -255, 255) for i in range(784))
    model = make_model(Schema(Classes("label", tuple(range(10))), pixels, clip_norm=9.0))
    table = pa.table({column.name: generator.integers(0, 256, 50).astype(np.float32) for column in pixels})
    for dialect in DIALECTS:
        assert len(write_scoring_expression(model, dialect)) < 600_000
    assert_same(model, table)


#: Adjacent numbers whose bounds differ, one end of them, or none; and those whose bounds are next to each other.
BOUNDS = (
    *((-20, 50), (-20, 50), (0, 1e-3), (-20, 1e9), (5, 6), (0, 1e-250), (-1e-290, 1e-290)),
    *((5, math.nextafter(5, 6)), (1e6, 1e6 + 1), (-1e300, 1e300), (0, 90)),
)


def make_adjacent_schema(classes: tuple[Value, ...] = (0, 1), *, centred: bool = False, **more: Any) -> Schema:
    columns = tuple(Numeric(f"f{i}", low, high) for i, (low, high) in enumerate(BOUNDS))
    schema = Schema(Classes("label", classes), columns, **more)
    generator, n = np.random.default_rng(3), len(columns)
    centers = generator.uniform(-0.5, 0.5, n).tolist() if centred else [0.0] * n
    scales = generator.uniform(0.2, 2, n).tolist()
    return replace(schema, standardization=Standardization((*centers,), (*scales,), clip_norm=2.5))


def make_adjacent_rows(count: int = 400) -> pa.Table:
    """Make numbers on both sides of the bounds and at them, missing ones, NaN, infinities and the tiniest."""
    generator = np.random.default_rng(4)

    def make_cells(low: float, high: float) -> list[float | None]:
        ends = [low, high, math.nextafter(low, INF), math.nextafter(high, -INF), (low + high) / 2, 5e-324, 1e-30]
        return [ends[i % len(ends)] if i % 3 == 0 else x for i, x in enumerate(random_floats(generator, count))]

    return pa.table({f"f{i}": pa.array(make_cells(*bounds), pa.float64()) for i, bounds in enumerate(BOUNDS)})


@pytest.mark.parametrize("centred", [False, True])
def test_adjacent_numbers_of_any_bounds_have_the_bits_of_the_encoder(centred: bool) -> None:
    schema, rows = make_adjacent_schema(centred=centred), make_adjacent_rows()
    (cells,) = encode_rows(open_source(rows), schema, label=False)
    features = schema.encoding.read_features(cells)[:, 1:].astype(np.float64)
    written = _write_row(schema.encoding, DIALECTS["duckdb"])
    np.testing.assert_array_equal(np.array(in_duckdb(rows, written)), features)
    assert written.count("list_zip") == 2  # all but those whose width is hardly a number


@pytest.mark.parametrize("classes", [(0, 1), ("a", "b", "c")])
@pytest.mark.parametrize("centred", [False, True])
def test_adjacent_numbers_of_any_bounds_are_scored_as_the_model_does(classes: tuple[Value, ...], centred: bool) -> None:
    schema, rows = make_adjacent_schema(classes, centred=centred), make_adjacent_rows()
    for seed in range(3):
        model = make_model(schema, seed=seed)
        assert_same(model, rows)
        odds = model.predict_proba(rows)
        found = in_duckdb(rows, write_probability_expression(model, "duckdb"))
        np.testing.assert_allclose(found, odds[:, 1] if len(classes) == 2 else odds, rtol=1e-12)


@pytest.mark.parametrize("classes", [(0, 1), ("a", "b", "c")])
def test_many_standardized_columns_of_different_bounds_are_short(classes: tuple[Value, ...]) -> None:
    generator, n = np.random.default_rng(1), 1500
    columns = tuple(Numeric(f"c{i}", -generator.random(), 2 + generator.random()) for i in range(n))
    standardization = Standardization((*generator.uniform(-0.1, 0.1, n),), (*generator.uniform(0.5, 2, n),), 30.0)
    model = make_model(Schema(Classes("label", classes), columns, standardization=standardization))
    rows = pa.table({column.name: generator.normal(1, 2, 20) for column in columns})
    assert_same(model, rows)
    for dialect, longest in (("duckdb", 125), ("postgres", 160)):
        for write in (write_scoring_expression, write_probability_expression):
            weights = 25 * len(model.weights) * n
            assert len(write(model, dialect)) < longest * n + weights


def test_many_columns_that_are_no_plain_numbers_are_no_deep_expression() -> None:
    """DuckDB refuses more than 1,000 levels."""
    columns = tuple(Categorical(f"c{i}", ("a",)) for i in range(1100))
    model = make_model(Schema(Classes("label", ("x", "y", "z")), columns))
    assert_same(model, pa.table({column.name: ["a", "b", None] for column in columns}))


def test_probability_is_that_of_the_model_for_long_rows_too() -> None:
    generator = np.random.default_rng(5)
    schema = Schema(Classes("label", (0, 1)), (Numeric("x", -20, 50), Numeric("y", 0, 9)), clip_norm=0.5)
    table = pa.table({"x": random_floats(generator, 300), "y": random_floats(generator, 300)})
    model = make_model(schema)
    expected = np.concatenate(
        [model.probabilities(margins)[:, 1] for margins in model.score_batches(open_source(table))]
    )
    found = in_duckdb(table, write_probability_expression(model, "duckdb"))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("classes", [(0, 1), ("a", "b", "it's")])
@pytest.mark.parametrize("multiclass", ["multinomial", "one-vs-all"])
@pytest.mark.parametrize("loss", ["logistic", "margin"])
@pytest.mark.parametrize("longer", [1.0, 2000.0])
@pytest.mark.parametrize("projection", [None, Projection(dims=3, seed=1)])
def test_probabilities_of_all_classes_are_those_of_the_model(
    classes: tuple[Value, ...], multiclass: Multiclass, loss: str, longer: float, projection: Projection | None
) -> None:
    generator = np.random.default_rng(5)
    columns: tuple[Column, ...] = (*(Numeric(f"f{i}", -40, 60) for i in range(4)), Categorical("c", ("a", "b")))
    table = pa.table(
        {
            **{f"f{i}": pa.array(random_floats(generator, 300), pa.float64()) for i in range(4)},
            "c": pa.array(np.array(["a", "b", None], dtype=object)[generator.integers(3, size=300)].tolist()),
        }
    )
    schema = Schema(Classes("label", classes), columns, clip_norm=1.1, projection=projection)
    model = make_model(schema, loss=loss, multiclass=multiclass)
    model = replace(model, weights=longer * model.weights)
    expected = np.concatenate([model.probabilities(margins) for margins in model.score_batches(open_source(table))])
    found = np.array(in_duckdb(table, write_probability_expression(model, "duckdb")))
    # The encoder rounds a projected row to float32.
    near = 1e-12 if projection is None else 1e-7 * longer
    np.testing.assert_allclose(found, expected[:, 1] if len(classes) == 2 else expected, rtol=0, atol=near)
    for place, name in enumerate(classes):
        found = np.array(in_duckdb(table, write_probability_expression(model, "duckdb", of=name)))
        np.testing.assert_allclose(found, expected[:, place], rtol=0, atol=near)


def make_clipped_model(
    schema: Schema, *, class_weights: tuple[float, ...] | None = None, multiclass: Multiclass = "multinomial"
) -> Model:
    """A model whose scores are corrected for clipped gradients."""
    settings = Settings(
        epsilon=1.0, delta=1e-6, algorithm="noisy-gd", multiclass=multiclass, class_weights=class_weights
    )
    certificate = plan_certificate(settings, rows=100, dims=schema.dims, classes=len(schema.classes))
    vectors = max(certificate.model_count, certificate.problem.loss.vector_count)
    weights = 4.0 * np.random.default_rng(3).standard_normal((vectors, schema.dims))
    return Model(schema=schema, weights=weights, certificate=certificate, link=CLIPPED_LINK)


@pytest.mark.parametrize("clip_norm", [0.5, 1.1, 40.0])
@pytest.mark.parametrize(
    ("classes", "class_weights", "multiclass"),
    [
        ((0, 1), None, "multinomial"),
        ((0, 1), (1.0, 0.2), "multinomial"),
        (("a", "b", "it's"), None, "multinomial"),
        (("a", "b", "it's"), (0.1, 1.0, 0.4), "multinomial"),
        (("a", "b", "it's"), None, "one-vs-all"),
    ],
)
@pytest.mark.parametrize("projection", [None, Projection(dims=3, seed=1)])
def test_scores_are_corrected_for_clipped_gradients_in_sql_too(
    classes: tuple[Value, ...],
    class_weights: tuple[float, ...] | None,
    multiclass: Multiclass,
    clip_norm: float,
    projection: Projection | None,
) -> None:
    """Rows of any norm, also of none; and the class that is predicted is the likeliest, or the second above the cut."""
    generator = np.random.default_rng(5)
    schema = Schema(
        Classes("label", classes),
        tuple(Numeric(f"f{i}", -40, 40) for i in range(4)),
        clip_norm=clip_norm,
        projection=projection,
        intercept=False,
    )
    table = pa.table({f"f{i}": pa.array(random_floats(generator, 400), pa.float64()) for i in range(4)})
    table = pa.concat_tables([table, pa.table({f"f{i}": [0.0] for i in range(4)})])
    model = make_clipped_model(schema, class_weights=class_weights, multiclass=multiclass)
    expected = model.predict_proba(table)
    found = np.array(in_duckdb(table, write_probability_expression(model, "duckdb")))
    near = 1e-13 if projection is None else 1e-6
    np.testing.assert_allclose(found, expected[:, 1] if len(classes) == 2 else expected, rtol=0, atol=near)
    plain = replace(model, link=None).predict_proba(table)
    assert (np.abs(plain - expected).max() > 1e-3) == (clip_norm < 40)
    assert_same(model, table)
    assert model.predict(table).tolist() == np.array(classes)[expected.argmax(axis=1)].tolist()
    if len(classes) == 2:
        assert_same(model.with_threshold(0.3), table)
        assert (model.with_threshold(0.3).predict(table) == np.array(classes)[(expected[:, 1] > 0.3).astype(int)]).all()


def test_a_model_that_is_sure_of_no_class_has_all_equally_likely_in_sql_too() -> None:
    schema = Schema(Classes("label", (0, 1, 2)), (Numeric("x", -1, 1),), intercept=False)
    model = make_model(schema, multiclass="one-vs-all", weights=np.full((3, 1), -1000.0))
    assert in_duckdb(pa.table({"x": [1.0]}), write_probability_expression(model, "duckdb")) == [[1 / 3] * 3]


def test_a_probability_that_there_is_not_is_refused() -> None:
    schema = Schema(Classes("y", (0, 1, 2)), (Numeric("x", 0, 1),))
    with pytest.raises(
        ParameterError, match=r"^a probability must be that of a model that gives some, got the loss 'multiclass_hu"
    ):
        write_probability_expression(make_model(schema, loss="huber"), "duckdb")
    with pytest.raises(ParameterError, match=r"^the class must be one of 0, 1, 2, got 3"):
        write_probability_expression(make_model(schema), "duckdb", of=3)


def test_an_unknown_dialect_is_refused() -> None:
    schema = Schema(Classes("y", (0, 1)), (Numeric("x", 0, 1),))
    with pytest.raises(ParameterError, match="dialect must be one of duckdb, postgres, spark, got 'oracle'"):
        write_scoring_expression(make_model(schema), "oracle")


@pytest.mark.parametrize("dialect", ["postgres", "spark"])
def test_other_dialects_quote_as_they_must(dialect: str) -> None:
    schema = Schema(Classes("y", ("it's", "a\\b")), (Categorical('co"l`umn', ("x'y\\z",)), Numeric("n", 0, 1)))
    expression = write_scoring_expression(make_model(schema), dialect)
    if dialect == "postgres":
        assert 'pg_catalog.concat("co""l`umn")' in expression
        assert "cell IN ('x''y\\z')" in expression
        assert "THEN 'a\\b' ELSE 'it''s' END" in expression
    else:
        assert "CAST(`co\"l``umn` AS STRING) IN ('x\\'y\\\\z')" in expression
        assert "THEN 'a\\\\b' ELSE 'it\\'s' END" in expression


# ---- scikit-learn -----------------------------------------------------------------------------------------------

COLUMNS: tuple[Column, ...] = (Numeric("age", 0, 100), Numeric("pay", -1e3, 1e5), Categorical("sex", ("F", "M")))


@pytest.mark.parametrize("classes", [(0, 1), ("yes", "no"), ("c", "a", "b")])
@pytest.mark.parametrize("loss", ["logistic", "huber"])
@pytest.mark.parametrize("multiclass", ["multinomial", "one-vs-all"])
@pytest.mark.parametrize("projection", [None, Projection(dims=3, seed=2)])
def test_to_sklearn_predicts_what_the_model_predicts(
    classes: tuple[Value, ...], loss: str, multiclass: Multiclass, projection: Projection | None
) -> None:
    generator = np.random.default_rng(6)
    model = make_model(
        Schema(Classes("y", classes), COLUMNS, projection=projection), loss=loss, multiclass=multiclass, seed=9
    )
    age, pay, sex = generator.uniform(0, 100, 400), generator.uniform(-1e3, 1e5, 400), generator.integers(2, size=400)
    table = pa.table({"age": age, "pay": pay, "sex": np.array(["F", "M"])[sex]})
    estimator = model.to_sklearn()
    names = list(estimator.feature_names_in_)
    assert names == ["age", "pay", "sex=F", "sex=M"]
    frame = pa.table(dict(zip(names, (age, pay, 1 - sex, sex), strict=True))).to_pandas()
    assert estimator.predict(frame).tolist() == model.predict(open_source(table)).tolist()
    assert estimator.n_features_in_ == 4
    assert set(estimator.classes_) == set(classes)


def test_to_sklearn_takes_arrays_for_a_vector_column() -> None:
    generator = np.random.default_rng(7)
    model = make_model(Schema(Classes("y", (0, 1)), (Vector("x", 5, -1, 1),)))
    X = generator.uniform(-1, 1, (200, 5))
    table = pa.table({"x": list(X)})
    estimator = model.to_sklearn()
    assert estimator.predict(X).tolist() == model.predict(open_source(table)).tolist()
    assert not hasattr(estimator, "feature_names_in_")


def test_to_sklearn_has_the_models_probabilities_for_rows_within_the_clip_norm() -> None:
    model = make_model(Schema(Classes("y", (0, 1, 2)), (Numeric("age", 0, 100),)))
    ages = np.linspace(0, 100, 50)
    margins = next(model.score_batches(open_source(pa.table({"age": ages}))))
    frame = pa.table({"age": ages}).to_pandas()
    np.testing.assert_allclose(model.to_sklearn().predict_proba(frame), model.probabilities(margins), rtol=1e-6)


def test_raw_weights_reproduce_the_margins() -> None:
    schema = Schema(Classes("y", (0, 1)), COLUMNS)
    model = make_model(schema)
    coefficients, constants = convert_to_original_units(schema, model.weights)
    table = pa.table({"age": [30.0], "pay": [5e4], "sex": ["M"]})
    margin = next(model.score_batches(open_source(table)))
    np.testing.assert_allclose(coefficients @ [30.0, 5e4, 0.0, 1.0] + constants, margin[0], rtol=1e-6)


@pytest.mark.parametrize("classes", [(0, 1), ("c", "a", "b")])
def test_to_sklearn_takes_the_steps_of_numbers_by_name(classes: tuple[Value, ...]) -> None:
    schema = Schema(Classes("y", classes), (Numeric("age", 0, 100, curve=(18, 65.5)), Categorical("sex", ("F", "M"))))
    model, generator = make_model(schema, seed=9), np.random.default_rng(6)
    age, sex = np.append(generator.uniform(0, 100, 398), [18, 65.5]), generator.integers(2, size=400)
    estimator = model.to_sklearn()
    names = list(estimator.feature_names_in_)
    assert names == ["age", "age>=18", "age>=65.5", "sex=F", "sex=M"]
    frame = pa.table(dict(zip(names, (age, age >= 18, age >= 65.5, 1 - sex, sex), strict=True))).to_pandas()
    table = pa.table({"age": age, "sex": np.array(["F", "M"])[sex]})
    assert estimator.predict(frame).tolist() == model.predict(open_source(table)).tolist()
    coefficients, constants = convert_to_original_units(schema, model.weights)
    margins = np.concatenate(list(model.score_batches(open_source(table))))
    np.testing.assert_allclose(frame.to_numpy(float) @ coefficients.T + constants, margins, rtol=1e-5, atol=1e-6)


def make_paired_schema(classes: tuple[Value, ...], count: int) -> Schema:
    """A schema with `count` pairs of columns of every kind, whose names are those that the SQL binds."""
    columns = (
        Numeric("sides", -20, 50, curve=(-3, 0, 0.1, 7, 30)),
        Numeric("number", 0, 1),
        Numeric("x", -5, 5, curve=(1,)),
        Categorical("cell", ("a'b", 'c"d', "")),
        Categorical("kind", (1, 2.5, 4), reference=1),
        TimePart("moment", "weekday"),
    )
    names = [column.name for column in columns]
    pairs = tuple((one, other) for place, one in enumerate(names) for other in names[:place])[:count]
    return Schema(Classes("label", classes), columns, pairs=pairs)


def make_paired_rows(rows: int = 800) -> pa.Table:
    generator = np.random.default_rng(9)
    texts = np.array(["a'b", 'c"d', "", "not declared", None], dtype=object)
    return pa.table(
        {
            "sides": pa.array(random_floats(generator, rows), pa.float64()),
            "number": pa.array(random_floats(generator, rows), pa.float32()),
            "x": pa.array(generator.integers(-5, 6, rows)),
            "cell": pa.array(texts[generator.integers(5, size=rows)].tolist(), pa.string()),
            "kind": pa.array(generator.choice([1.0, 2.5, 7.0], rows)),
            "moment": pa.array([f"2024-01-{day:02}" for day in generator.integers(1, 33, rows)], pa.string()),
        }
    )


def standardize_paired(schema: Schema) -> Schema:
    count = schema.column_feature_count
    centers = np.random.default_rng(6).uniform(-0.2, 0.2, count).tolist()
    return replace(schema, standardization=Standardization((*centers,), (1.0,) * count, clip_norm=1.5))


@pytest.mark.parametrize("count", [2, 7, 12])
@pytest.mark.parametrize("classes", [(0, 1), ("a", "b", "c")])
def test_sql_predicts_what_a_model_with_pairs_predicts(classes: tuple[Value, ...], count: int) -> None:
    """There are as many pairs as a plain sum has, and more."""
    table, plain = make_paired_rows(), make_paired_schema(classes, count)
    for schema in (plain, standardize_paired(plain)):
        for seed in range(3):
            model = make_model(schema, seed=seed)
            assert_same(model, table)
            released = map(Model.from_released, (model, drop_pairs(model)))
            margins, without = (np.concatenate([*one.score_batches(open_source(table))]) for one in released)
            assert np.abs(margins - without).max() > 0.1
        if len(classes) == 2:
            found = in_duckdb(table, write_probability_expression(model, "duckdb"))
            np.testing.assert_allclose(found, model.probabilities(margins)[:, 1], rtol=1e-12)


def drop_pairs(model: Model) -> Model:
    """The model whose weights of pairs are 0."""
    weights, first = model.weights.copy(), model.schema.column_feature_count
    weights[:, first:-1] = 0.0
    return replace(model, weights=weights)
