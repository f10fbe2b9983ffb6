"""The SQL dialects in which a model can be written: one object each, with everything that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from boltdp.encoding.declared_values import Value
from boltdp.errors import ParameterError


def _make_number_pattern(blanks: str) -> str:
    """Return a regular expression for SQL of the texts that count as numbers, with `blanks` around them."""
    digits = "[0-9](_?[0-9])*"
    exponent = "[eE][+-]?0*[0-9][0-9]?[0-9]?[0-9]?"
    words = "[iI][nN][fF]([iI][nN][iI][tT][yY])?|[nN][aA][nN]"
    return f"[ {blanks}]*[+-]?(({digits}[.]?|({digits})?[.]{digits})({exponent})?|{words})[ {blanks}]*"


@dataclass(frozen=True)
class Dialect:
    """The templates in which dialects differ. `{}` stands for an operand."""

    double: str
    real: str
    text: str
    array: str
    length: str
    map: str  #: the array of `{body}` for each element `{name}` of the array `{value}`
    nulls: str  #: an array of `{}` NULLs
    dot: str  #: the sum of the products of the elements of two arrays
    let: str  #: `{body}`, in which `{name}` stands for `{value}`
    type_name: str
    parse: str  #: a number of any type, or a text where the branch is not taken, as `{kind}`
    booleans: str  #: the type names of each kind of cell; all others are texts
    reals: str
    doubles: str
    integers: str
    moment: str  #: a timestamp, date or text as ISO 8601, in UTC if its type has a zone
    fits: str  #: whether a whole text matches a pattern without backslashes
    weekday: str  #: of a text that is a date, counted from Monday, which is 0
    cell: str  #: a column as a double: a text as in CSV files, NULL if it is not a number
    quotes: str = '"'  #: around identifiers
    #: `{body}`, where `cell` is the text of the column `{0}` and `kind` its type, if they are read first.
    read: str = ""
    numbers: str = "{}"  #: an array column as doubles, if it is read first
    #: An array of many columns as doubles, of their `{texts}` and types, `{kinds}`, if they are read first.
    cells: str = ""
    #: A literal that is a double beside doubles, as numerics of PostgreSQL are too.
    number: str = "{}"
    zip: str = ""  #: the array of `{body}` for the elements of several `{arrays}` of one length, if it is written so
    zipped: str = "{array}"  #: one of those arrays, at `{place}`
    element: str = ""  #: the element in `{body}` of the array at `{place}`
    first: int = 1  #: the index of an array's first element
    backslashes: bool = False  #: whether a backslash in a literal is an escape
    underflow: bool = False  #: whether a product or a cast that underflows is an error

    def quote_column(self, name: str) -> str:
        return self.quotes + name.replace(self.quotes, 2 * self.quotes) + self.quotes

    def write_literal(self, value: Value) -> str:
        if isinstance(value, bool):
            return str(value).upper()
        if isinstance(value, int):
            return str(value)
        if isinstance(value, float):
            return f"CAST({self.write_constant(value)} AS {self.double})"
        if "\0" in value:
            raise ParameterError("a value with a NUL character cannot be written in SQL")
        if self.backslashes:
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        return "'" + value.replace("'", "''") + "'"

    def write_constant(self, value: float | np.float32) -> str:
        """Write a number as an SQL literal with all its digits."""
        digits = repr(float(value))
        return self.number.format(digits if "e" in digits else digits + "e0")

    def write_special(self, name: str) -> str:
        """Write a double that has no digits: "NaN", which equals itself in SQL, or "Infinity"."""
        return f"CAST('{name}' AS {self.double})"

    def write_maximum(self, expressions: Iterable[str]) -> str:
        """Write the maximum of numbers that are not NULL; NaN is the largest."""
        return f"greatest({', '.join(expressions)})"

    def bind(self, name: str, value: str, body: str) -> str:
        """Write `body`, an expression in which `name` stands for `value`, computed once."""
        return self.let.format(name=name, value=value, body=body)

    def map_arrays(self, arrays: Sequence[str], write_body: Callable[[Sequence[str]], str]) -> str:
        """Write the array of what `write_body` makes of an element of each of `arrays`, which have one length."""
        places = range(self.first, self.first + len(arrays))
        zipped = (self.zipped.format(array=array, place=place) for array, place in zip(arrays, places, strict=True))
        body = write_body([self.element.format(place=place) for place in places])
        return self.zip.format(arrays=", ".join(zipped), body=body)

    def make_cell_array(self, columns: Sequence[str], cells: Sequence[str]) -> str:
        """Write an array of columns as doubles, each of which is one of `cells`."""
        if not self.cells:
            return self.array.format(", ".join(cells))
        texts, kinds = (", ".join(map(each.format, columns)) for each in (_POSTGRES_PRINT, _POSTGRES_KIND))
        return self.cells.format(texts=texts, kinds=kinds)

    def read_cell(self, column: str, body: str) -> str:
        """Write `body`, which may use `cell`, the text of a column, and `kind`, its type, if the dialect has them."""
        return self.read.format(column, body=body) if self.read else body

    def make_array(self, expressions: Sequence[str]) -> str:
        return self.array.format(",\n".join(expressions))

    def make_constant_array(self, values: Iterable[float]) -> str:
        return self.array.format(", ".join(map(self.write_constant, values)))

    def write_element(self, array: str, index: int) -> str:
        """Write the element `index` of an array, counted from 0."""
        return f"{array}[{index + self.first}]"


def _name_postgres_types(*names: str) -> str:
    return ", ".join(f"'pg_catalog.{name}'::pg_catalog.regtype" for name in names)


# Whoever owns a type can define its casts and functions for it, which would run with the rights of those who predict,
# and an immutable one even where it is not reached. So a column is only given to functions of pg_catalog that use none.
_POSTGRES_KIND, _POSTGRES_PRINT = "pg_catalog.pg_typeof({0})", "pg_catalog.concat({0})"
_POSTGRES_READ = (
    f"(SELECT {{body}} FROM (SELECT {_POSTGRES_KIND} AS kind, CASE WHEN pg_catalog.num_nulls({{0}}) = 0 THEN"
    f" CASE {_POSTGRES_KIND} WHEN {_name_postgres_types('bool')}"
    f" THEN CASE {_POSTGRES_PRINT} WHEN 't' THEN 'true' ELSE 'false' END"
    f" WHEN {_name_postgres_types('bpchar')} THEN pg_catalog.rtrim({_POSTGRES_PRINT})"
    f" ELSE {_POSTGRES_PRINT} END END AS cell OFFSET 0) AS bound_cell)"
)
_POSTGRES_NUMERAL = _make_number_pattern(r"\t\n\v\f\r")
#: A cell as a number, in PostgreSQL, which has no TRY_CAST. A text is cast to numeric first, since an overflow or
#: underflow of a double is an error. No boolean or number is printed as an empty text.
_POSTGRES_NUMBER = (
    f"CASE WHEN kind IN ({_name_postgres_types('text', 'varchar', 'bpchar')}) THEN"
    f" CASE WHEN cell ~ '^({_POSTGRES_NUMERAL})$' THEN CASE WHEN cell ~ '[nN]' THEN cell::float8"
    " ELSE least(greatest(round(replace(cell, '_', '')::numeric, 307), -1e308), 1e308)::float8 END END"
    f" WHEN kind = {_name_postgres_types('bool')} THEN (cell = 't')::int"
    f" WHEN kind = {_name_postgres_types('float4')} THEN cell::real ELSE cell::float8 END"
)
_POSTGRES_CELL = (
    f"(SELECT {_POSTGRES_NUMBER} FROM (SELECT {_POSTGRES_KIND} AS kind, nullif({_POSTGRES_PRINT}, '') AS cell OFFSET 0)"
    " AS bound_cell)"
)


# Java reads 1d and 0x1p3 too, and no underscores.
_SPARK_NUMBER = (
    "CASE WHEN typeof({0}) <> 'string' THEN try_cast({0} AS DOUBLE)"
    " WHEN CAST({0} AS STRING) RLIKE '(?s)^(" + _make_number_pattern(r"\t\n\u000B\u000C\r") + ")(?!.)'"
    " THEN try_cast(replace(CAST({0} AS STRING), '_', '') AS DOUBLE) END"
)

DIALECTS: dict[str, Dialect] = {
    "duckdb": Dialect(
        double="DOUBLE",
        real="FLOAT",
        text="VARCHAR",
        array="[{}]",
        length="len({})",
        map="list_transform({value}, lambda {name}: {body})",
        zip="list_transform(list_zip({arrays}), lambda v: {body})",
        element="v[{place}]",
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
        cell="TRY_CAST({} AS DOUBLE)",
    ),
    "postgres": Dialect(
        double="double precision",
        real="real",
        text="text",
        array="CAST(ARRAY[{}] AS double precision[])",
        length="pg_catalog.cardinality({})",
        # Arrays in a list of expressions are read element by element and in order; in FROM they would be stored first.
        map="ARRAY(SELECT {body} FROM (SELECT pg_catalog.unnest({value}) AS {name}) AS each)",
        zip="ARRAY(SELECT {body} FROM (SELECT {arrays}) AS each)",
        element="v{place}",
        zipped="pg_catalog.unnest({array}) AS v{place}",
        nulls="pg_catalog.array_fill(CAST(NULL AS double precision), ARRAY[{}])",
        dot="(SELECT sum(a * b) FROM (SELECT pg_catalog.unnest({}) AS a, pg_catalog.unnest({}) AS b) AS pair)",
        # Without OFFSET 0 the planner would write the value wherever its name stands.
        let="(SELECT {body} FROM (SELECT {value} AS {name} OFFSET 0) AS bound_{name})",
        type_name="kind",
        parse="CAST(cell AS {kind})",
        booleans=_name_postgres_types("bool"),
        reals=_name_postgres_types("float4"),
        doubles=_name_postgres_types("float8", "numeric"),
        integers=_name_postgres_types("int2", "int4", "int8"),
        # Timestamps are printed in the session's DateStyle, and read in it; JSON has ISO 8601, whatever that is.
        moment=_POSTGRES_READ.replace(
            "{body}",
            "CASE kind"
            + "".join(
                f" WHEN {_name_postgres_types(kind)}"
                f" THEN pg_catalog.to_jsonb(CAST(cell AS {kind}){zone}) #>> CAST('{{{{}}}}' AS text[])"
                for kind, zone in (("timestamptz", " AT TIME ZONE 'UTC'"), ("timestamp", ""), ("date", ""))
            )
            + " ELSE cell END",
        ),
        read=_POSTGRES_READ,
        numbers=_POSTGRES_READ.replace(
            "{body}",
            f"CASE kind WHEN {_name_postgres_types('float4[]')} THEN CAST(cell AS real[])::double precision[]"
            " ELSE CAST(cell AS double precision[]) END",
        ),
        fits="{} ~ '^({})$'",
        weekday="CAST(extract(isodow FROM CAST({} AS date)) AS int) - 1",
        underflow=True,
        cell=_POSTGRES_CELL,
        cells=f"ARRAY(SELECT {_POSTGRES_NUMBER} FROM (SELECT kind, nullif(text, '') AS cell FROM (SELECT"
        " pg_catalog.unnest(ARRAY[{kinds}]) AS kind, pg_catalog.unnest(ARRAY[{texts}]) AS text) AS each) AS each)",
    ),
    "spark": Dialect(
        quotes="`",
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
        cell=_SPARK_NUMBER,
    ),
}


def find_dialect(name: str) -> Dialect:
    """Return the SQL dialect with this name; raise a ParameterError if it is unknown."""
    if name not in DIALECTS:
        raise ParameterError(f"dialect must be one of {', '.join(DIALECTS)}, got {name!r}")
    return DIALECTS[name]
