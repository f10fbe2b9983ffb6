"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import click
from click.shell_completion import CompletionItem

from boltdp._files.outputs import OutputError, check_writable
from boltdp._threads import count_processors
from boltdp.algorithms import ALGORITHMS, AUTO
from boltdp.cli._terminal import note, state_condition, warn
from boltdp.engines import open_source
from boltdp.engines.registry import find_engine
from boltdp.errors import DataError, ParameterError
from boltdp.ledger.ledger import Account
from boltdp.ledger.locate import find_account
from boltdp.model import Model, Threshold
from boltdp.schema.schema import Schema
from boltdp.schema.target import Target, resolve_target_name
from boltdp.settings import OPTIONS, Settings

if TYPE_CHECKING:
    from boltdp.engines.base import Engine, Where

MAX_SHOWN_CLASSES = 12

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


class FileName(click.types.StringParamType):
    """A file name, URI or other address of data, passed on unchanged; shells complete it as a file name."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


FILE = FileName()
#: Makes an option whose value is a file name.
file_option = partial(click.option, type=FILE, metavar="FILE")
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def _parse_threshold(_: click.Context, __: click.Parameter, text: str | None) -> Threshold | None:
    """Parse a number or "prior"; the range is checked later, when the schema and the loss are known."""
    if text is None or text == "prior":
        return text  # type: ignore[return-value]
    try:
        return float(text)
    except ValueError:
        raise ParameterError(f"--threshold must be a number or 'prior', got {text!r}") from None


def _parse_class_weights(
    _: click.Context, __: click.Parameter, text: str | None
) -> Literal["balanced"] | dict[str, float] | None:
    """Parse "balanced" or a weight per class; the class names are checked later, against the schema."""
    if text is None or text == "balanced":
        return text  # type: ignore[return-value]
    parts = [part.rpartition("=") for part in text.split(",")]
    try:
        weights = {name: float(number) for name, _equals, number in parts if name}
    except ValueError:
        weights = {}
    if len(weights) < len(parts):
        raise ParameterError(f"--class-weights must be 'balanced' or such as no=1,yes=8, each class once, got {text!r}")
    return weights


def _make_threshold_option(default: str) -> Decorator:
    return click.option(
        "--threshold",
        callback=_parse_threshold,
        metavar="NUMBER|prior",
        help="Predict the second of two classes where its probability exceeds this; prior: its share in the schema. "
        f"It costs no privacy, unless it was found by looking at private rows.  [default: {default}]",
    )


scoring_threshold_option = _make_threshold_option("the model's")
threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=count_processors,
    help="Threads that work on the rows; how many changes no bit of the result.  [default: one a processor]",
)
max_rows_per_person_option = click.option(
    "--max-rows-per-person",
    type=click.IntRange(min=1),
    help="Use at most this many rows of each person, the first ones; see docs/people.md.",
)


def combine_options(*options: Decorator) -> Decorator:
    """Return a decorator that adds several options to a command, in this order."""

    def add_options(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add_options


public_shape_options = combine_options(
    click.option("--features", type=int, help="Numbers in an encoded row, with the constant one for the intercept."),
    click.option("--classes", type=int, help="How many classes the label has.  [default: 2]"),
    click.option("--number", is_flag=True, help="Predict a number, instead of --classes."),
    file_option(
        "--schema", "schema_path", metavar="TOML", help="A schema, instead of --features and --classes or --number."
    ),
)
training_options = combine_options(
    file_option("--schema", "schema_path", metavar="TOML", help="What is public about the data; see `boltdp schema`."),
    click.option(
        "--label",
        help="The column to predict, if it has classes. With --schema it is only checked; without, the schema is what "
        "a PostgreSQL database declares: booleans, enum types, CHECK constraints.",
    ),
    click.option("--target", help="The same, if the column to predict is a number, whose bounds are declared."),
    click.option(
        "--person-id",
        metavar="NAME",
        help="The column that identifies persons, if the schema does not name it: the guarantee is then about persons.",
    ),
    max_rows_per_person_option,
    file_option("--spool", metavar="DIR", help="Where prepared rows are kept meanwhile, if they do not fit in memory."),
)
ledger_options = combine_options(
    click.option(
        "--ledger",
        metavar="FILE|URI",
        help="Charge this ledger.  [default: the one beside the file, or in the PostgreSQL database, if there is one]",
    ),
    click.option("--dataset", metavar="NAME", help="What the ledger knows the rows by.  [default: the file or table]"),
    click.option(
        "--blocks",
        metavar="NAME,...",
        help="Charge these blocks of the dataset only, such as months: each row of SOURCE must belong to one of them, "
        "by something public.",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Data:
    """The rows of SOURCE: the values of `source_options`, `training_options` and `ledger_options`."""

    source: str
    table: str | None
    query: str | None
    spool: str | None = None
    schema_path: str | None = None
    label: str | None = None
    target: str | None = None
    person_id: str | None = None
    max_rows_per_person: int | None = None
    ledger: str | None = None
    dataset: str | None = None
    blocks: str | None = None

    @contextmanager
    def open(self, *, where: Where = "auto") -> Iterator[Engine]:
        """Open the source, print the conditions of the guarantee, and warn of what else could read its rows."""
        with open_source(self.source, table=self.table, query=self.query, spool=self.spool, where=where) as engine:
            for condition in engine.guarantee_conditions:
                state_condition(condition)
            for exposure in engine.exposure_warnings:
                warn(exposure)
            yield engine

    def state_query_condition(self) -> None:
        """Print the condition on a query, if there is one. It cannot be checked from the text of the query."""
        if self.query is not None:
            state_condition(
                "the guarantee is about the rows of the query's result, by position: each must come from one row of "
                "one person, and rows must be selected and ordered by public columns only"
            )

    def find_account(self) -> Account | None:
        """Find the ledger account to charge and name it on standard error; return None if there is no ledger."""
        named = [] if self.blocks is None else [block.strip() for block in self.blocks.split(",")]
        account = find_account(
            self.source, table=self.table, query=self.query, ledger=self.ledger, dataset=self.dataset, blocks=named
        )
        if account is not None:
            only = f", blocks {', '.join(account.blocks)}," if account.blocks else ""
            note(f"the dataset {account.dataset!r}{only} of the ledger {account.ledger.address} will be charged")
        return account

    def load_schema(self) -> Schema:
        """Load the schema of --schema, whose target must be that given, or read it from declarations of the database.

        --person-id and --max-rows-per-person override those of the schema.
        """
        kind, name = self.resolve_target_name()
        if self.schema_path is None:
            schema = self._read_declared_schema(kind, name)
        else:
            schema = Schema.load(self.schema_path)
            if name is not None and (kind, name) != (type(schema.target), schema.label):
                raise ParameterError(
                    f"--{kind.key} must be the {kind.key} of the schema, which has {schema.target.describe()}, "
                    f"got {name!r}"
                )
        limits = {"person_id": self.person_id, "max_rows_per_person": self.max_rows_per_person}
        changes: dict[str, Any] = {name: value for name, value in limits.items() if value is not None}
        return replace(schema, **changes)

    def resolve_target_name(self) -> tuple[type[Target], str | None]:
        """Return the kind of target of --label or --target, and the name of its column, if one is given."""
        return resolve_target_name(label=self.label, target=self.target)

    def _read_declared_schema(self, kind: type[Target], name: str | None) -> Schema:
        """Make the schema from what a PostgreSQL database declares about the columns of the source."""
        if name is None or not find_engine(self.source).declares_schema:
            from boltdp.engines._remote_files import remove_secrets

            named = remove_secrets(self.source) or "--query ..."
            raise ParameterError(
                "give --schema, which says what is public about the data",
                hint=f"`boltdp schema {named} --{kind.key} {name or 'COLUMN'} -o schema.toml` drafts one to complete",
            )
        from boltdp.schema.infer import derive_schema

        with open_source(self.source, table=self.table, query=self.query, spool=self.spool) as engine:
            columns = {name: column for name, column in engine.columns().items() if name != self.person_id}
        schema = derive_schema(columns, name, kind)
        used = {name, *(column.name for column in schema.columns)}
        unused = ", ".join(
            f"{name} (a {column.kind}, whose parts a schema can declare)"
            if column.kind in ("timestamp", "date")
            else name
            for name, column in columns.items()
            if name not in used
        )
        note(
            "the schema is what the database declares; `boltdp schema` prints it"
            + (f"; not used, since no feature: {unused}" if unused else "")
        )
        return schema

    @contextmanager
    def locate_csv_errors(self) -> Iterator[None]:
        """Name the invalid line if a CSV file cannot be read; for non-sensitive data only."""
        try:
            yield
        except DataError:
            from boltdp.engines._file_patterns import find_files, find_format  # needed only for an error
            from boltdp.engines._text_files import ENCODING_HINT, describe_csv_fault

            readable = self.query is None and find_format(self.source) == "csv"
            if readable and (said := describe_csv_fault(find_files(self.source))) is not None:
                raise DataError(said, hint=ENCODING_HINT if said.endswith("UTF-8") else None) from None
            raise


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add SOURCE, --table and --query to a command, which gets them and the other options of Data as `data`."""

    @wraps(command)
    def run_command(**given: Any) -> Any:
        named = {one.name: given.pop(one.name) for one in fields(Data) if one.name in given}
        return command(data=Data(**named), **given)

    return combine_options(
        # SOURCE is optional because a query over files names them itself.
        click.argument("source", type=FILE, default="", required=False),
        click.option("--table", metavar="NAME", help="Table of a DuckDB file, a PostgreSQL database or Spark."),
        click.option(
            "--query",
            metavar="SQL",
            help="Query on a database, instead of a table; or over files, which it names as tables: FROM "
            "'visits.parquet'. The rows of SOURCE, if that is a file or a directory, are the table named source. For "
            "the guarantee each row must come from one row of one person, and rows must be selected and ordered by "
            "public columns only.",
        ),
    )(run_command)


def describe_ledger(account: Account | None) -> list[tuple[str, str]]:
    """Return the line of a report with the spent budget of the dataset; none without a ledger."""
    if account is None:
        return []
    now = account.ledger.spent(account.dataset)
    return [("ledger", f"{account.dataset}: {now.spent.describe(now.budget)}")]


def make_settings_options(*left_out: str) -> Decorator:
    """Return a decorator that adds an option for each field of Settings but those that a command declares itself."""
    return combine_options(*(_make_setting_option(name) for name in OPTIONS if name not in left_out))


def _make_setting_option(name: str) -> Decorator:
    option, words = OPTIONS[name], OPTIONS[name].words
    about = option.help
    if name == "algorithm":
        words = ("auto", "noiseless", *ALGORITHMS)
        about += "".join(f" {one.name}: {one.about}." for one in ALGORITHMS.values())
        first, *others = [one.name for one in AUTO]
        about += f" auto: {first} for more than two classes with a delta, else the first of {', '.join(others)} that"
        about += " has the options given."
    if option.kind == "flag":
        return click.option(f"--{name.replace('_', '-')}", is_flag=True, help=about)
    kinds: dict[str, Any] = {"number": float, "whole number": int, "word": click.Choice(words), "other": str}
    return click.option(
        f"--{name.replace('_', '-')}",
        type=kinds[option.kind],
        metavar=option.metavar or {"number": "NUMBER", "whole number": "N"}.get(option.kind),
        default=option.default,
        show_default=option.default is not None,
        callback=_parse_class_weights if name == "class_weights" else None,
        help=about + ("" if option.default_text is None else f"  [default: {option.default_text}]"),
    )


settings_options = make_settings_options("epsilon", "anyway")


def make_release_options(*left_out: str) -> Decorator:
    """Return a decorator that adds the options of a command that trains and writes a model, but settings left out."""
    return combine_options(
        source_options,
        training_options,
        file_option("-o", "--output", required=True, metavar="JSON", help="Where to write the model."),
        click.option("--overwrite", is_flag=True, help="Replace the file at --output."),
        make_settings_options("epsilon", *left_out),
        _make_threshold_option("0.5"),
        threads_option,
        ledger_options,
        json_option,
    )


def make_settings(*, epsilon: float | None, noiseless: bool, chosen: dict[str, Any]) -> Settings:
    """Make Settings from the parsed options of a command, and check them."""
    if chosen["algorithm"] == "noiseless":
        noiseless, chosen = True, {**chosen, "algorithm": "auto"}
    if noiseless == (epsilon is not None):
        raise ParameterError(
            "give either --epsilon or --noiseless",
            hint="a smaller epsilon guarantees more: 1 is common, 0.1 is strict; a noiseless model is not private",
        )
    if noiseless and (chosen["delta"] or chosen["noise_seed"] is not None):
        raise ParameterError("--delta and --noise-seed are for noise, and must not be given with --noiseless")
    settings = Settings(epsilon=epsilon, **chosen)
    settings.check()
    return settings


def load_model(path: str, *, threshold: Threshold | None = None, verify: bool = False) -> Model:
    """Load a model file, with the decision threshold of --threshold if given; `verify` checks its certificate."""
    model = Model.load(path)
    if verify:
        model.verify()
    return model if threshold is None else model.with_threshold(threshold)


def check_file_absent(path: str) -> None:
    """Raise an OutputError if the output file of a command exists or cannot be written."""
    if Path(path).exists():
        raise OutputError(f"the file {path!r} exists already", hint="choose another name, or remove it first")
    check_writable(path)


def check_output(path: str, *, overwrite: bool) -> None:
    """Raise an OutputError if a model cannot be written to `path`, or if the file exists and `overwrite` is false."""
    check_writable(path)
    if not overwrite and Path(path).exists():
        raise OutputError(
            f"the output {path!r} exists already, and nothing was done",
            hint="choose another name, or replace it with --overwrite: what it has cost is not given back",
        )


def load_and_check_schema(
    data: Data, settings: Settings, *, threshold: Threshold | None, output: str, overwrite: bool
) -> Schema:
    """Load the schema, and check the options of a training before a row is read, and so before a budget is spent."""
    schema = data.load_schema()
    settings.check_threshold(threshold, schema.target)
    check_output(output, overwrite=overwrite)
    if settings.epsilon is not None:
        data.state_query_condition()
    return schema
