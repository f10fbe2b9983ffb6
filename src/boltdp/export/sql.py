"""Scoring where the data is: a model as one SQL expression.

The expression gives the class that `Model.predict` gives: numbers are clipped, scaled and rounded to float32 as the
encoder does, then centred, and missing or undeclared values add nothing. Shortening a long row cannot change which
class wins, so it is left out, unless the model has a threshold other than 0.5. Sums are added in another order, so a
row whose margins are equal up to rounding (about 1e-15 of them; 1e-7 with a projection, which is folded into the
weights, and which the encoder rounds to float32) may fall on the other side. Probabilities are those of the model up to
the same rounding.

A model of two classes and few features is a plain sum, in which all steps of a number are one term. Others are made of
arrays, so that each column and each weight is written once: 784 columns and 10 classes are 200 kB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from boltdp._arrays import Doubles
from boltdp.encoding.plan import ColumnReading, column_readings
from boltdp.encoding.timestamps import HOUR_AT, PATTERN
from boltdp.encoding.values import Matcher, Value
from boltdp.errors import ParameterError
from boltdp.export.original_units import encoded_weights, matrix_of
from boltdp.schema.schema import Categorical, Column, Numeric, Schema, TimePart, Vector

if TYPE_CHECKING:
    from boltdp.model import Model

Dialect = Literal["duckdb", "postgres", "spark"]

#: Up to this many features are a sum that a reader can follow; databases take long to plan larger ones.
MOST_TERMS = 100
#: An expression longer than this is bound to a name rather than written for each step.
LONGEST_REPEATED = 200


def _numeral(blanks: str) -> str:
    """The texts that are numbers in every engine, as a pattern, where a database has a rule of its own for them."""
    digits = "[0-9](_?[0-9])*"
    exponent = "[eE][+-]?0*[0-9][0-9]?[0-9]?[0-9]?"
    words = "[iI][nN][fF]([iI][nN][iI][tT][yY])?|[nN][aA][nN]"
    return f"[ {blanks}]*[+-]?(({digits}[.]?|({digits})?[.]{digits})({exponent})?|{words})[ {blanks}]*"


@dataclass(frozen=True)
class Grammar:
    """Where the dialects differ. `{}` stands for the operand."""

    quote: str  #: around identifiers
    double: str
    real: str
    text: str
    number: str  #: a literal that is a double wherever doubles are used
    array: str
    first: int  #: the index of an array's first element
    length: str
    map: str  #: the array of `{body}` for each element `{name}` of the array `{value}`
    nulls: str  #: an array of `{}` times NULL
    dot: str  #: the sum of the products of the elements of two arrays
    let: str  #: `{body}`, in which `{name}` stands for `{value}`
    type_name: str
    parse: str  #: a number of any type, or a text where the branch is not taken, as `{kind}`
    booleans: str  #: the type names of each kind of cell; all others are texts
    reals: str
    doubles: str
    integers: str
    moment: str  #: a timestamp, date or text as ISO 8601, in UTC if its type has a zone
    fits: str  #: whether a text is as a whole of a pattern that has no backslash
    weekday: str  #: of a text that is a date, counted from Monday, which is 0
    backslashes: bool  #: whether a backslash in a literal is an escape
    underflow: bool  #: whether a product or a cast that underflows is an error
    cell: str  #: a column as a double: a text by the rule of CSV files, NULL if it is no number
    flag: str | None = None  #: the same of one with the bounds 0 and 1, which may be boolean, where that differs

    def column(self, name: str) -> str:
        """A column's name, quoted."""
        return self.quote + name.replace(self.quote, 2 * self.quote) + self.quote

    def literal(self, value: Value) -> str:
        """A class or a text as it stands in a statement."""
        if isinstance(value, bool):
            return "TRUE" if value else "FALSE"
        if isinstance(value, int):
            return str(value)
        if isinstance(value, float):
            return f"CAST({self.constant(value)} AS {self.double})"
        if "\0" in value:
            raise ParameterError("a value with a NUL character cannot be written in SQL")
        if self.backslashes:
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        return "'" + value.replace("'", "''") + "'"

    def constant(self, value: float | np.float32) -> str:
        """A number, to the bit."""
        digits = repr(float(value))
        return self.number.format(digits if "e" in digits else digits + "e0")

    def joined(self, expressions: Sequence[str]) -> str:
        """An array of expressions."""
        return self.array.format(",\n".join(expressions))

    def constants(self, values: Iterable[float]) -> str:
        """An array of numbers."""
        return self.array.format(", ".join(map(self.constant, values)))

    def element(self, array: str, index: int) -> str:
        """The element `index`, counted from 0."""
        return f"{array}[{index + self.first}]"


def _postgres_number(otherwise: str) -> str:
    """A column as a number in PostgreSQL, which before version 16 cannot try a cast; `otherwise` if it has no texts.

    By way of numeric, since a text that over- or underflows a double is an error.
    """
    is_text = "pg_typeof({0}) IN ('text'::regtype, 'varchar'::regtype, 'bpchar'::regtype)"
    numeral = _numeral(r"\t\n\v\f\r")
    return (
        f"CASE WHEN {is_text} THEN CASE WHEN {{0}}::text ~ '^({numeral})$' THEN"
        " CASE WHEN {0}::text ~ '[nN]' THEN {0}::text::float8"
        " ELSE least(greatest(round(replace({0}::text, '_', '')::numeric, 307), -1e308), 1e308)::float8 END END"
        f" {otherwise} END"
    )


GRAMMARS: dict[Dialect, Grammar] = {
    "duckdb": Grammar(
        quote='"',
        double="DOUBLE",
        real="FLOAT",
        text="VARCHAR",
        number="{}",
        array="[{}]",
        first=1,
        length="len({})",
        map="list_transform({value}, lambda {name}: {body})",
        nulls="list_resize(CAST([] AS DOUBLE[]), {})",
        dot="list_dot_product({}, {})",
        let="list_transform([{value}], lambda {name}: {body})[1]",
        type_name="split_part(typeof({}), '(', 1)",
        parse="TRY_CAST({} AS {kind})",
        booleans="'BOOLEAN'",
        reals="'FLOAT'",
        doubles="'DOUBLE', 'DECIMAL'",
        integers="'TINYINT', 'SMALLINT', 'INTEGER', 'BIGINT', 'UTINYINT', 'USMALLINT', 'UINTEGER', 'UBIGINT'",
        # By microseconds: what it prints of a timestamp with a zone is in that of the session.
        moment="CASE typeof({0}) WHEN 'TIMESTAMP WITH TIME ZONE' THEN CAST(make_timestamp(epoch_us("
        "TRY_CAST({0} AS TIMESTAMPTZ))) AS VARCHAR) ELSE CAST({0} AS VARCHAR) END",
        fits="regexp_full_match({}, '{}')",
        weekday="isodow(TRY_CAST({} AS DATE)) - 1",
        backslashes=False,
        underflow=False,
        cell="TRY_CAST({} AS DOUBLE)",
    ),
    "postgres": Grammar(
        quote='"',
        double="double precision",
        real="real",
        text="text",
        # Constants are numeric, and become double precision beside one.
        number="{}",
        array="CAST(ARRAY[{}] AS double precision[])",
        first=1,
        length="cardinality({})",
        map="ARRAY(SELECT {body} FROM unnest({value}) WITH ORDINALITY AS cell({name}, place) ORDER BY place)",
        nulls="array_fill(CAST(NULL AS double precision), ARRAY[{}])",
        dot="(SELECT sum(a * b) FROM unnest({}, {}) AS pair(a, b))",
        # Without OFFSET 0 the planner would write the value wherever its name stands.
        let="(SELECT {body} FROM (SELECT {value} AS {name} OFFSET 0) AS bound_{name})",
        type_name="CAST(pg_typeof({}) AS text)",
        # By way of text, since there is no cast from boolean to a number, not even where it is not executed.
        parse="CAST(CAST({} AS text) AS {kind})",
        booleans="'boolean'",
        reals="'real'",
        doubles="'double precision', 'numeric'",
        integers="'smallint', 'integer', 'bigint'",
        # JSON has ISO 8601 whatever the session's DateStyle is, but timestamps with a zone in that of the session; and
        # the blanks that char(n) adds.
        moment="CASE CAST(pg_typeof({0}) AS text) WHEN 'timestamp with time zone' THEN"
        " to_jsonb(CAST(to_jsonb({0}) #>> '{{}}' AS timestamptz) AT TIME ZONE 'UTC')"
        " WHEN 'character' THEN to_jsonb(CAST({0} AS text)) ELSE to_jsonb({0}) END #>> '{{}}'",
        fits="{} ~ '^({})$'",
        weekday="CAST(extract(isodow FROM CAST({} AS date)) AS int) - 1",
        backslashes=False,
        underflow=True,
        cell=_postgres_number("ELSE {0}::float8"),
        # There is no cast from boolean to double precision, and one by way of text must know a real.
        flag=_postgres_number(
            "WHEN pg_typeof({0}) = 'boolean'::regtype THEN ({0}::text = 'true')::int"
            " WHEN pg_typeof({0}) = 'real'::regtype THEN {0}::text::real ELSE {0}::text::float8"
        ),
    ),
    "spark": Grammar(
        quote="`",
        double="DOUBLE",
        real="FLOAT",
        text="STRING",
        number="{}D",
        array="array({})",
        first=0,
        length="size({})",
        map="transform({value}, {name} -> {body})",
        nulls="array_repeat(CAST(NULL AS DOUBLE), {})",
        dot="aggregate(zip_with({}, {}, (a, b) -> a * b), 0D, (total, product) -> total + product)",
        let="transform(array({value}), {name} -> {body})[0]",
        type_name="split_part(typeof({}), '(', 1)",
        parse="try_cast({} AS {kind})",
        booleans="'boolean'",
        reals="'float'",
        doubles="'double', 'decimal'",
        integers="'tinyint', 'smallint', 'int', 'bigint'",
        # By seconds: what it prints of a timestamp with a zone is in that of the session.
        moment="CASE typeof({0}) WHEN 'timestamp' THEN transform(array(unix_seconds(try_cast({0} AS TIMESTAMP))),"
        " second -> concat(CAST(date_add(DATE'1970-01-01', CAST((second - pmod(second, 86400)) div 86400 AS INT))"
        " AS STRING), ' ', lpad(CAST(pmod(second, 86400) div 3600 AS STRING), 2, '0'), ':00'))[0]"
        " ELSE CAST({0} AS STRING) END",
        # Java takes $ for an end before a last line break.
        fits="{} RLIKE '(?s)^({})(?!.)'",
        weekday="weekday(try_cast({} AS DATE))",
        backslashes=True,
        underflow=False,
        # Java reads 1d and 0x1p3 too, and no underscores.
        cell="CASE WHEN typeof({0}) <> 'string' THEN try_cast({0} AS DOUBLE)"
        " WHEN CAST({0} AS STRING) RLIKE '(?s)^(" + _numeral(r"\t\n\u000B\u000C\r") + ")(?!.)'"
        " THEN try_cast(replace(CAST({0} AS STRING), '_', '') AS DOUBLE) END",
    ),
}


def scoring_expression(model: Model, dialect: Dialect) -> str:
    """SQL over the columns of the schema that gives the class `model` predicts, by its threshold.

    >>> from boltdp.schema.schema import Classes
    >>> from boltdp.engines import open_source
    >>> from boltdp.settings import Settings
    >>> from boltdp.workflows.train import train
    >>> import pyarrow as pa
    >>> rows = pa.table({"age": range(100), "sick": [age > 60 for age in range(100)]})
    >>> schema = Schema(Classes("sick", (False, True)), (Numeric("age", 0, 100),))
    >>> model = train(open_source(rows), schema, Settings(epsilon=None))
    >>> scoring_expression(model, "duckdb").splitlines()[-1]
    'THEN TRUE ELSE FALSE END'
    """
    grammar = _grammar(dialect)
    weights = encoded_weights(model.schema, model.weights)
    classes = [grammar.literal(value) for value in np.array(model.classes).tolist()]
    if len(weights) == 1:
        decision = f"THEN {classes[1]} ELSE {classes[0]} END"
        if model.cut:
            cut = grammar.constant(model.cut)
            return _of_shortened_row(model, grammar, lambda margins: f"CASE WHEN {margins[0]} > {cut}\n{decision}")
        return f"CASE WHEN\n{_margin(model.schema, weights[0], grammar)} > 0\n{decision}"
    margins = [grammar.element("margin", index) for index in range(len(classes))]
    # The first of the classes that reach the greatest margin, as numpy.argmax has it.
    cases = [f"WHEN {margin} THEN {name}" for margin, name in zip(margins, classes, strict=True)]
    choice = f"CASE greatest({', '.join(margins)}) {' '.join(cases)} END"
    products = grammar.joined([grammar.dot.format("x", grammar.constants(row)) for row in weights])
    chosen = grammar.let.format(name="margin", value=products, body=choice)
    return grammar.let.format(name="x", value=_row(model.schema, grammar), body=chosen)


def probability_expression(model: Model, dialect: Dialect, *, of: Value | None = None) -> str:
    """SQL that gives the probability of the second of two classes; of more, an array of all, in the order of classes.

    With `of`, it is the probability of that class, of however many.

    >>> from boltdp.schema.schema import Classes
    >>> from boltdp.engines import open_source
    >>> from boltdp.settings import Settings
    >>> from boltdp.workflows.train import train
    >>> import duckdb
    >>> rows = duckdb.sql("SELECT age, age > 60 AS sick FROM range(100) AS r(age)")
    >>> schema = Schema(Classes("sick", (False, True)), (Numeric("age", 0, 100),))
    >>> model = train(open_source(rows), schema, Settings(epsilon=None))
    >>> rows.project(probability_expression(model, "duckdb")).limit(1).fetchall()[0][0] < 0.5
    True
    """
    grammar, classes = _grammar(dialect), model.classes
    loss = model.certificate.problem.loss
    if not loss.probabilistic:
        raise ParameterError(f"a probability must be that of a model that gives some, got the loss {loss.name!r}")
    if of is not None and of not in classes:
        raise ParameterError(f"the class must be one of {', '.join(map(str, classes))}, got {of!r}")
    if len(model.weights) == 1:

        def second(margins: Sequence[str]) -> str:
            return _linked(model, margins[0], grammar)

        expression = _of_shortened_row(model, grammar, second)
        return expression if of in (None, classes[1]) else f"{grammar.constant(1.0)} - ({expression})"
    every = _of_shortened_row(model, grammar, lambda margins: _shares(model, margins, grammar))
    return every if of is None else grammar.element(f"({every})", classes.index(of))


def _linked(model: Model, margin: str, grammar: Grammar) -> str:
    """The probability of the class that has this margin, or its odds among others that have theirs."""
    linked = model.certificate.problem.loss.link(margin, grammar.constant)
    assert linked is not None  # a loss of one vector that tells probabilities has a link
    return linked


def _shares(model: Model, margins: Sequence[str], grammar: Grammar) -> str:
    """The probability of each class, from the margins: the odds of each over their sum."""
    one, count = grammar.constant(1.0), len(margins)
    # No odds are smaller than e^-700: less would be an error in PostgreSQL.
    odds = f"exp(greatest(v - top, {grammar.constant(-700.0)}))"
    if model.certificate.problem.loss.vectors == 1:
        odds = _linked(model, "v", grammar)  # of a model for each class
    total = grammar.dot.format("odds", grammar.constants([1.0] * count))
    # Where every one of the models is sure of "no", all classes are equally likely.
    share = f"CASE WHEN total > {grammar.constant(0.0)} THEN v / total ELSE {one} / {grammar.constant(count)} END"
    shares = grammar.let.format(name="total", value=total, body=grammar.map.format(name="v", value="odds", body=share))
    of_odds = grammar.let.format(
        name="odds", value=grammar.map.format(name="v", value="margin", body=odds), body=shares
    )
    top = f"greatest({', '.join(grammar.element('margin', index) for index in range(count))})"
    of_top = grammar.let.format(name="top", value=top, body=of_odds)
    return grammar.let.format(name="margin", value=grammar.joined(margins), body=of_top)


def _of_shortened_row(model: Model, grammar: Grammar, body: Callable[[Sequence[str]], str]) -> str:
    """What `body` makes of the margins, where their size matters: a row longer than 1 is shortened.

    If there is a projection, both before and after it.
    """
    row, matrix = _row(model.schema, grammar), matrix_of(model.schema)
    margins = _over_length("x", "norm", model.weights, grammar, body)
    if matrix is None:
        return grammar.let.format(name="x", value=row, body=margins)

    def projected(features: Sequence[str]) -> str:
        return grammar.let.format(name="x", value=grammar.joined(features), body=margins)

    whole = _over_length("whole", "outer_norm", matrix.T, grammar, projected)
    return grammar.let.format(name="whole", value=row, body=whole)


def _over_length(
    name: str, length: str, weights: Doubles, grammar: Grammar, body: Callable[[Sequence[str]], str]
) -> str:
    """What `body` makes of the products of an array and weights, over the length of the array if that exceeds 1."""
    products = [f"{grammar.dot.format(name, grammar.constants(row))} / {length}" for row in weights]
    value = f"greatest({grammar.constant(1.0)}, sqrt({grammar.dot.format(name, name)}))"
    return grammar.let.format(name=length, value=value, body=body(products))


def _grammar(dialect: Dialect) -> Grammar:
    if dialect not in GRAMMARS:
        raise ParameterError(f"dialect must be one of {', '.join(get_args(Dialect))}, got {dialect!r}")
    return GRAMMARS[dialect]


def _margin(schema: Schema, weights: Doubles, grammar: Grammar) -> str:
    curves = [len(column.curve) for column in schema.columns if isinstance(column, Numeric) and column.curve]
    parts = [len(column.names) for column in schema.columns if isinstance(column, TimePart)]
    if len(weights) - sum(curves + parts) + len(curves + parts) > MOST_TERMS:
        return grammar.dot.format(_row(schema, grammar), grammar.constants(weights))
    terms: list[str] = []
    at = 0
    for reading in column_readings(schema):
        width = len(reading.a)
        terms += _terms(reading, weights[at : at + width], grammar)
        at += width
    terms += [f"{x} * {grammar.constant(weights[at])}" for x in _constant_feature(schema, grammar)]
    return "\n+ ".join(terms)


def _terms(reading: ColumnReading, weights: Doubles, grammar: Grammar) -> Iterator[str]:
    """What the features of a column add to the margin: one term each, but a single one for all steps of a number.

    A part of a timestamp is a single term too, so that it is found once.
    """
    column, absent, present = reading
    if isinstance(column, TimePart):
        of_none, of_each = absent * weights, present * weights
        known = {k: math.fsum([*of_none[:k], of_each[k], *of_none[k + 1 :]]) for k in range(len(weights))}
        yield _by_code(_part_code(column, grammar), known, math.fsum(of_none), grammar)
        return
    curve = column.curve if isinstance(column, Numeric) else ()
    of_single = len(weights) - len(curve)
    for feature, weight in zip(_features(reading, grammar), weights[:of_single], strict=False):
        yield f"{feature} * {grammar.constant(weight)}"
    if isinstance(column, Numeric) and curve:
        below, above = (x[of_single:] * weights[of_single:] for x in (absent, present))
        sums = [math.fsum([*above[:passed], *below[passed:]]) for passed in range(1 + len(curve))]
        yield _from_places(column, curve, sums, grammar)


def _row(schema: Schema, grammar: Grammar) -> str:
    """The encoded row before its projection, as an array of doubles.

    Columns with the same bounds that stand side by side are encoded together.
    """
    arrays = []
    for _, run in groupby(column_readings(schema), key=_encoding):
        readings = list(run)
        column, a, b = readings[0]
        if isinstance(column, TimePart):
            features = [_by_code("part", {code: b[code]}, a[code], grammar) for code in range(len(a))]
            value = _part_code(column, grammar)
            arrays.append(grammar.let.format(name="part", value=value, body=grammar.joined(features)))
            continue
        names = [_cell(column, grammar) for column, *_ in readings]
        alike = len(set(zip(a, b, strict=True))) == 1
        if isinstance(column, Vector) and alike:
            fits = f"{grammar.length.format(names[0])} = {column.length}"
            cells = f"CASE WHEN {fits} THEN {names[0]} ELSE {grammar.nulls.format(column.length)} END"
        elif isinstance(column, Numeric) and len(readings) > 1:
            cells = grammar.array.format(", ".join(names))
        else:
            arrays.append(grammar.joined([feature for one in readings for feature in _features(one, grammar)]))
            continue
        body = _number("v", column, float(a[0]), float(b[0]), grammar)
        arrays.append(grammar.map.format(name="v", value=cells, body=body))
    if schema.intercept:
        arrays.append(grammar.joined(_constant_feature(schema, grammar)))
    return "\n|| ".join(arrays)


def _encoding(reading: ColumnReading) -> object:
    """Columns are encoded alike if this is equal."""
    column, a, b = reading
    if isinstance(column, Numeric) and not column.curve:
        return column.low, column.high, a[0], b[0]
    return column


def _by_code(code: str, values: Mapping[int, float], otherwise: float, grammar: Grammar) -> str:
    """What stands for each of some codes, and for all others and NULL."""
    cases = " ".join(f"WHEN {each} THEN {grammar.constant(value)}" for each, value in values.items())
    return f"CASE {code} {cases} ELSE {grammar.constant(otherwise)} END"


def _part_code(column: TimePart, grammar: Grammar) -> str:
    """The code of a part of a timestamp by the rule of `boltdp.encoding.timestamps`, NULL where it is missing."""
    digits, first = {"hour": (HOUR_AT, 0), "month": (6, 1), "day": (9, 1)}.get(column.part, (1, 0))
    code = f"CAST(substr(moment, {digits}, 2) AS int) - {first}"
    if column.part == "weekday":
        code = grammar.weekday.format("substr(moment, 1, 10)")
    fits = f"{grammar.fits.format('moment', PATTERN)} AND length(moment) > {digits}"
    value = grammar.moment.format(grammar.column(column.source))
    return grammar.let.format(name="moment", value=value, body=f"CASE WHEN {fits} THEN {code} END")


def _constant_feature(schema: Schema, grammar: Grammar) -> list[str]:
    return [grammar.constant(schema.constant)] if schema.intercept else []


def _features(reading: ColumnReading, grammar: Grammar) -> Iterator[str]:
    """The features of a column, one expression each."""
    column, a, b = reading
    name = _cell(column, grammar)
    if isinstance(column, Categorical):
        for index, condition in enumerate(_matches(column, grammar)):
            yield f"CASE WHEN {condition} THEN {grammar.constant(b[index])} ELSE {grammar.constant(a[index])} END"
        return
    cells = [name]
    if isinstance(column, Vector):
        fits = f"{grammar.length.format(name)} = {column.length}"
        cells = [f"CASE WHEN {fits} THEN {grammar.element(name, index)} END" for index in range(column.length)]
    for cell, center, factor in zip(cells, a, b, strict=False):
        yield _number(cell, column, float(center), float(factor), grammar)
    if isinstance(column, Numeric):
        for place, *values in zip(column.curve, a[1:], b[1:], strict=True):
            yield _from_places(column, [place], values, grammar)


def _cell(column: Column, grammar: Grammar) -> str:
    """A column; a number where it is declared one."""
    name = grammar.column(column.name)
    if not isinstance(column, Numeric):
        return name
    is_flag = (column.low, column.high) == (0.0, 1.0)
    return (grammar.flag if is_flag and grammar.flag is not None else grammar.cell).format(name)


def _number(cell: str, column: Numeric | Vector, center: float, factor: float, grammar: Grammar) -> str:
    """A cell clipped, scaled to [-1, 1] and rounded as the encoder does it, then centred; 0 for NULL and NaN.

    All three dialects have NaN = NaN, so NULLIF finds it, and NaN above Infinity.
    """
    half = (column.high - column.low) / 2.0
    middle = grammar.constant((column.low + column.high) / 2.0)
    double = cell if isinstance(column, Numeric) else f"CAST({cell} AS {grammar.double})"
    known = double if center else f"coalesce(nullif({double}, CAST('NaN' AS {grammar.double})), {middle})"
    offset = f"least(greatest({known}, {grammar.constant(column.low)}), {grammar.constant(column.high)}) - {middle}"
    if grammar.underflow:
        # Drops what is too small for a float32, and changes nothing else by more than a rounding of a double.
        tiny = grammar.constant(1e-28 * half)
        offset = f"{offset} + {tiny} - {tiny}"
    scaled = f"CAST(CAST(({offset}) / {grammar.constant(half)} AS {grammar.real}) AS {grammar.double})"
    if not center:
        return f"{scaled} * {grammar.constant(factor)}"
    centred = f"({scaled} - {grammar.constant(center)}) * {grammar.constant(factor)}"
    return f"CASE WHEN {double} <= CAST('Infinity' AS {grammar.double}) THEN {centred} ELSE {grammar.constant(0.0)} END"


def _from_places(column: Numeric, places: Sequence[float], values: Sequence[float], grammar: Grammar) -> str:
    """The first value below the first place, and another from each place on; 0 for NULL and NaN.

    All three dialects have NaN above Infinity.
    """
    cell = _cell(column, grammar)
    name = "number" if len(cell) > LONGEST_REPEATED else cell
    ends = [f"{name} < {grammar.constant(place)}" for place in places]
    ends.append(f"{name} <= CAST('Infinity' AS {grammar.double})")
    cases = " ".join(f"WHEN {end} THEN {grammar.constant(value)}" for end, value in zip(ends, values, strict=True))
    steps = f"CASE {cases} ELSE {grammar.constant(0.0)} END"
    return steps if name == cell else grammar.let.format(name=name, value=cell, body=steps)


def _matches(column: Categorical, grammar: Grammar) -> Iterator[str]:
    """For each category the condition that a cell is it, by the rule of `boltdp.encoding.values.list_texts`.

    The rule depends on the type of the cell, which the schema does not say: where it matters, SQL finds it out.
    """
    matcher = Matcher.of(column.categories)
    cell = grammar.column(column.name)
    as_text = f"CAST({cell} AS {grammar.text})"
    kind = grammar.type_name.format(cell)
    for index in range(len(column.categories)):
        texts = [text for text, position in matcher.texts.items() if position == index]
        number = next((number for number, position in matcher.numbers.items() if position == index), None)
        truths = [word for word, truth in (("true", True), ("false", False)) if matcher.match_boolean(truth) == index]
        by_text = _is_one_of(as_text, texts, grammar)
        branches = []
        if truths != [word for word in ("true", "false") if word in texts]:
            branches.append((grammar.booleans, _is_one_of(as_text, truths, grammar)))
        if any(map(_reads_as_number, texts)):
            for kinds, type_name, largest in (
                (grammar.reals, grammar.real, np.finfo(np.float32).max),
                (grammar.doubles, grammar.double, np.finfo(np.float64).max),
            ):
                equal = "FALSE"
                if number is not None and abs(number) <= largest:
                    parsed = grammar.parse.format(cell, kind=type_name)
                    equal = f"{parsed} = CAST({grammar.constant(number)} AS {type_name})"
                branches.append((kinds, equal))
        whole = [] if number is None or number % 1 else [str(int(number))]
        if not set(whole) <= set(texts):
            branches.append((grammar.integers, _is_one_of(as_text, whole, grammar)))
        if branches:
            cases = " ".join(f"WHEN {kind} IN ({kinds}) THEN {equal}" for kinds, equal in branches)
            yield f"CASE {cases} ELSE {by_text} END"
        else:
            yield by_text


def _reads_as_number(text: str) -> bool:
    """Whether a database could print a number so, NaN and infinities included."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_one_of(operand: str, texts: Sequence[str], grammar: Grammar) -> str:
    if not texts:
        return "FALSE"
    return f"{operand} IN ({', '.join(grammar.literal(text) for text in texts)})"
