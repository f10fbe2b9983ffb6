"""The Python API: `train`, `tune` and `Model`, which accept data, schemas and settings in many forms."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from boltdp.engines import use_source
from boltdp.errors import (
    ParameterError,
    PrivacyWarning,
    describe_argument,
    quote_names,
    require,
    show_hints,
    suggest_names,
)
from boltdp.evaluation.evaluate import describe_rows_without_label, evaluate, evaluate_privately
from boltdp.evaluation.evaluation import Evaluation, ExactEvaluation
from boltdp.evaluation.noisy_evaluation import NoisyEvaluation
from boltdp.ledger import Ledger, find_account
from boltdp.model import Model as ReleasedModel
from boltdp.privacy.budget import Budget
from boltdp.schema.from_arguments import declare_schema
from boltdp.schema.schema import Schema
from boltdp.schema.source_columns import suggest_columns
from boltdp.schema.target import Threshold, resolve_target_name
from boltdp.settings import OPTIONS, Settings
from boltdp.workflows import predict as predictions
from boltdp.workflows.label_check import describe_unusable_labels
from boltdp.workflows.train import train as train_engine
from boltdp.workflows.tune import TRIALS, Method, expand_grid
from boltdp.workflows.tune import tune as tune_engine

if TYPE_CHECKING:
    from boltdp.encoding.declared_values import Value
    from boltdp.engines.base import Engine
    from boltdp.export.coefficients import Coefficients
    from boltdp.ledger import Account
    from boltdp.privacy.certificate import Certificate
    from boltdp.run_context import Context

#: A Schema, the path of a TOML file, or a dictionary with the same entries.
SchemaLike = Schema | Mapping[str, Any] | str | Path
#: Pairs (low, high) or entries of a schema file by column name, or one pair for all numeric columns.
Bounds = Mapping[Any, Sequence[float] | Mapping[str, Any]] | Sequence[float]

#: The names of settings in other libraries, for hints.
_COMMON_NAMES = {"random_state": "noise_seed", "C": "regularization", "max_norm": "radius", "max_iter": "passes"}


class Model(ReleasedModel):
    """A released model: weights, the schema that encodes rows for them, and the certificate. All of it is public.

    `boltdp.train` and `boltdp.tune` make it, `save` writes it as JSON, and `Model.load` reads that.
    """

    @classmethod
    def from_released(cls, released: ReleasedModel) -> Model:
        """Convert the model that a workflow returns to the public class, which has more methods."""
        return cls(**{field.name: getattr(released, field.name) for field in fields(released)})

    score_batches = predictions.score_batches
    predict = predictions.predict
    predict_proba = predictions.predict_proba

    def evaluate(self, rows: Any, context: Context | None = None, *, by: str | None = None) -> ExactEvaluation:
        """Compare predictions with the label of `rows`, which may be anything that `open_source` takes.

        The rows must be public: the result is computed without noise, and no guarantee covers it.
        """
        with show_hints(), use_source(rows) as engine:
            found = evaluate(self, engine, by=by, context=context)
        _warn_of_rows_without_label(self, found)
        return found

    def evaluate_privately(
        self,
        rows: Any,
        *,
        epsilon: float,
        delta: float = 0.0,
        by: str | None = None,
        table: str | None = None,
        query: str | None = None,
        ledger: str | Path | Ledger | None = None,
        dataset: str | None = None,
        blocks: Sequence[str] = (),
        context: Context | None = None,
    ) -> NoisyEvaluation:
        """Compare predictions with the label of private `rows`, by noisy counts that spend epsilon and delta.

        `by` is a categorical column of the schema whose categories are evaluated separately. The `ledger` is charged
        as by `boltdp.train`. If the model was trained on the same rows, both budgets are spent.
        """
        with show_hints(), use_source(rows, table=table, query=query) as engine:
            account = find_account(rows, table=table, query=query, ledger=ledger, dataset=dataset, blocks=blocks)
            found = evaluate_privately(self, engine, Budget(epsilon, delta), by=by, context=context, account=account)
        _warn_of_rows_without_label(self, found)
        return found

    def coefficients(self, *, level: float = 0.95) -> Coefficients:
        """Estimate the coefficients of a model trained with `inference=True`, with intervals of this level.

        Each has the units of its column. Raise an InferenceError where noise hides what the intervals need.
        """
        from boltdp.export.coefficients import Coefficients

        return Coefficients(self, level=level)

    def to_sklearn(self) -> Any:
        """Convert to a LogisticRegression (in a OneVsRestClassifier for one-vs-all) or LinearSVC of scikit-learn.

        A model with a threshold is wrapped in a FixedThresholdClassifier, whose threshold is `margin_threshold`. A loss
        with a link other than the logistic function needs an estimator of boltdp for its probabilities.
        The features are in their original units, in the order of the schema's feature names: numbers, 0 or 1 for each
        step and category, the entries of a vector. Predictions equal those of `predict` for values within the bounds;
        for rows whose norm exceeds the clip norm, probabilities and decisions by a threshold are more extreme, unless
        they are corrected for clipped gradients, which needs the norm anyway.
        """
        require("sklearn", "a model of scikit-learn")
        from boltdp.export.sklearn_estimators import to_sklearn

        return to_sklearn(self)


def train(
    source: Any,
    schema: SchemaLike | None = None,
    settings: Settings | None = None,
    *,
    label: str | None = None,
    target: str | None = None,
    bounds: Bounds | None = None,
    categories: Mapping[Any, Sequence[Value]] | None = None,
    timestamps: Mapping[Any, Sequence[str]] | None = None,
    classes: Sequence[Value] | None = None,
    typical: Sequence[float] | None = None,
    counts: bool | None = None,
    weight: Mapping[str, Any] | None = None,
    pairs: Sequence[Sequence[str]] | None = None,
    threshold: Threshold | None = None,
    table: str | None = None,
    query: str | None = None,
    spool: str | Path | None = None,
    where: Literal["auto", "server", "client"] = "auto",
    context: Context | None = None,
    ledger: str | Path | Ledger | None = None,
    dataset: str | None = None,
    blocks: Sequence[str] = (),
    **chosen: Any,
) -> Model:
    """Train a model on the rows of `source` and release it, with a certificate of its guarantee.

    `source`, `table`, `query`, `spool` and `where` are what `open_source` takes: a data frame, an Arrow table, a pair
    (X, y), a file name, the URI of a database, or an engine.

    What is public is declared, never read from the rows: by a `schema` (a Schema, the path of a TOML file, or a
    dictionary in the shape of one), or by the `label`'s name, `bounds` of numbers, `categories`, the parts of
    `timestamps` that are categories, such as {"admitted": ["hour", "weekday"]}, and `classes`. Booleans need none of
    it, nor does what a database declares by enum types and constraints. With any of these, columns that have none are
    not used, and a warning names them.

    A column of numbers is predicted by its name as `target`, instead of `label`, and its bounds: target="price",
    bounds={"carat": (0, 6), "price": (0, 20_000)}. If the range of most of its values is public, `typical` declares
    that, such as (500, 12_000); `counts=True` that it counts something, such as visits. A column of weights of rows is
    declared by `weight`, such as {"column": "exposure", "bounds": (0, 10)}; it is no feature. Where what one column
    does depends on another, `pairs` names the two, such as [("age", "smokes")].

    All fields of Settings are taken by name: `epsilon`, which must be given (None: no noise, and no privacy), `delta`,
    `algorithm`, `regularization` and the others; or together as `settings`, of which those given by name change some.

    A `ledger` (a file or the URI of a PostgreSQL database) is charged before a row is read, under the name `dataset`;
    one beside a file, or in the database of the rows, is found by itself. `blocks` name those the rows belong to.

    >>> import numpy as np, pandas as pd
    >>> age = np.arange(5000) % 100
    >>> people = pd.DataFrame({"age": age, "smokes": age % 3 == 0, "outcome": np.where(age > 60, "ill", "well")})
    >>> model = train(people, label="outcome", epsilon=1, bounds={"age": (0, 110)}, classes=["well", "ill"])
    >>> model.certificate.private, model.classes
    (True, ('well', 'ill'))
    >>> model.predict(pd.DataFrame({"smokes": [False, True], "age": [20, 95]}))
    array(['well', 'ill'], dtype='<U4')
    """
    with show_hints():
        _check_schema_type(schema)
        asked = _make_settings(settings, chosen)
        of_target = {"classes": classes, "typical": typical, "counts": counts}
        of_columns: dict[str, Any] = {"bounds": bounds, "categories": categories, "timestamps": timestamps}
        of_columns |= {"weight": weight, "pairs": pairs}
        declared = {"label": label, "target": target, "of_target": of_target, **of_columns}
        charge = {"ledger": ledger, "dataset": dataset, "blocks": blocks}
        where_from = {"table": table, "query": query, "spool": spool, "where": where}
        opened = _open_rows(source, schema, asked, threshold, declared, charge, where_from)
        with opened as (engine, public, account):
            model = train_engine(engine, public, asked, context=context, account=account)
    warn_if_not_private(model.certificate, asked.epsilon)
    warn_of_unusable_labels(model)
    return Model.from_released(model).with_threshold(threshold)


def tune(
    source: Any,
    schema: SchemaLike | None = None,
    candidates: Sequence[Settings] | None = None,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    label: str | None = None,
    target: str | None = None,
    bounds: Bounds | None = None,
    categories: Mapping[Any, Sequence[Value]] | None = None,
    timestamps: Mapping[Any, Sequence[str]] | None = None,
    classes: Sequence[Value] | None = None,
    typical: Sequence[float] | None = None,
    counts: bool | None = None,
    weight: Mapping[str, Any] | None = None,
    pairs: Sequence[Sequence[str]] | None = None,
    threshold: Threshold | None = None,
    method: Method | None = None,
    public: Any = None,
    trials: float = TRIALS,
    table: str | None = None,
    query: str | None = None,
    spool: str | Path | None = None,
    where: Literal["auto", "server", "client"] = "auto",
    context: Context | None = None,
    ledger: str | Path | Ledger | None = None,
    dataset: str | None = None,
    blocks: Sequence[str] = (),
    settings: Settings | None = None,
    **chosen: Any,
) -> Model:
    """Train candidates, choose one and release it; all within the epsilon and delta that they share.

    Candidates are the combinations of the values in `grid`, such as {"regularization": [1e-3, 1e-2]}, each with the
    settings that are given as for `train`; or they are `candidates`. `public` are rows of public data, in whatever
    form `open_source` takes, to compare them on; the `method` is then "public", else "trials". All else is as for
    `train`; `certificate.selection` of the result says which candidate was chosen.

    >>> import numpy as np, pandas as pd
    >>> age = np.arange(5000) % 100
    >>> people = pd.DataFrame({"age": age, "ill": age > 60})
    >>> model = tune(people, label="ill", bounds={"age": (0, 110)}, epsilon=1, grid={"regularization": [1e-3, 1e-2]})
    >>> model.certificate.private, model.certificate.selection.candidates
    (True, 2)
    """
    method = method or ("trials" if public is None else "public")
    with show_hints():
        _check_schema_type(schema)
        tried = _make_candidates(candidates, grid, settings, chosen)
        first = tried[0] if tried else None
        of_target = {"classes": classes, "typical": typical, "counts": counts}
        of_columns: dict[str, Any] = {"bounds": bounds, "categories": categories, "timestamps": timestamps}
        of_columns |= {"weight": weight, "pairs": pairs}
        declared = {"label": label, "target": target, "of_target": of_target, **of_columns}
        charge = {"ledger": ledger, "dataset": dataset, "blocks": blocks}
        where_from = {"table": table, "query": query, "spool": spool, "where": where}
        opened = _open_rows(source, schema, first, threshold, declared, charge, where_from)
        compared = nullcontext() if public is None else use_source(public)
        with opened as (engine, schema_of_rows, account), compared as rows:
            run: dict[str, Any] = {"method": method, "trials": trials, "context": context, "account": account}
            model = tune_engine(engine, schema_of_rows, tried, public=rows, **run)
    warn_if_not_private(model.certificate, tried[0].epsilon)
    warn_of_unusable_labels(model)
    return Model.from_released(model).with_threshold(threshold)


@contextmanager
def _open_rows(
    source: Any,
    schema: SchemaLike | None,
    settings: Settings | None,
    threshold: Threshold | None,
    declared: Mapping[str, Any],
    charge: Mapping[str, Any],
    where_from: Mapping[str, Any],
) -> Iterator[tuple[Engine, Schema, Account | None]]:
    """Open the source; yield its engine, its schema and the account to charge, checked without reading a row."""
    with use_source(source, **where_from) as engine:
        for one in engine.exposure_warnings:
            warnings.warn(one, PrivacyWarning, stacklevel=4)
        for condition in engine.guarantee_conditions:
            warnings.warn(condition, UserWarning, stacklevel=4)
        public = _make_schema(source, engine, schema, **declared)
        if settings is not None:
            settings.check_threshold(threshold, public.target)
        yield engine, public, find_account(source, table=where_from["table"], query=where_from["query"], **charge)


def warn_if_not_private(certificate: Certificate, epsilon: float | None, *, stacklevel: int = 3) -> None:
    """Warn if epsilon is given and the result is not private, with the reasons."""
    if epsilon is not None and not certificate.private:
        warnings.warn(
            f"the model is not private: {'; '.join(certificate.reasons)}", PrivacyWarning, stacklevel=stacklevel
        )


def _warn_of_rows_without_label(model: ReleasedModel, found: Evaluation) -> None:
    if (left_out := describe_rows_without_label(model, found)) is not None:
        warnings.warn(left_out, UserWarning, stacklevel=3)


def warn_of_unusable_labels(model: ReleasedModel, *, stacklevel: int = 3) -> None:
    """Warn if the label check says that a notable share of the rows was ignored."""
    if (unusable := describe_unusable_labels(model)) is not None:
        warnings.warn(unusable, UserWarning, stacklevel=stacklevel)


def warn_of_unused_columns(unused: Sequence[str], *, stacklevel: int = 4) -> None:
    """Warn about columns that are not used as features."""
    if unused:
        warnings.warn(
            f"not used, since neither bounds nor categories are declared: {quote_names(unused)}; "
            "drop them or give a schema, if this is what you want",
            UserWarning,
            stacklevel=stacklevel,
        )


def refuse_arguments_beside_schema(given: Mapping[str, Any]) -> None:
    """Raise a ParameterError if any of the arguments is not None: the schema declares them."""
    for name, value in given.items():
        if value is not None:
            raise ParameterError(f"{name} must not be given beside a schema, which declares it")


def _make_settings(settings: Settings | None, chosen: Mapping[str, Any]) -> Settings:
    """Make settings from fields by name, which override those of `settings`."""
    for name in chosen:
        if name not in OPTIONS:
            declarations = ["label", "target", "bounds", "categories", "timestamps", "classes", "typical", "counts"]
            arguments = [*OPTIONS, *declarations, "weight", "pairs", "schema", "threshold"]
            hint = suggest_names(_COMMON_NAMES.get(name, name), arguments) or f"there are {', '.join(arguments)}"
            raise ParameterError(f"there is no argument {name!r}", hint=hint)
    if settings is not None and not isinstance(settings, Settings):
        raise ParameterError(f"settings must be of boltdp.Settings, got {describe_argument(settings)}")
    plain = {name: OPTIONS[name].convert(value, name) for name, value in chosen.items()}
    if settings is None and "epsilon" not in plain:
        raise ParameterError(
            "epsilon must be given, the privacy budget",
            hint="epsilon=1 is a usual one, less is more private; None trains without noise and without privacy",
        )
    asked = Settings(**plain) if settings is None else replace(settings, **plain)
    asked.check()
    return asked


def _make_candidates(
    candidates: Sequence[Settings] | None,
    grid: Mapping[str, Sequence[Any]] | None,
    settings: Settings | None,
    chosen: Mapping[str, Any],
) -> Sequence[Settings]:
    if candidates is None and grid is not None:
        return expand_grid(_make_settings(settings, chosen), _convert_grid(grid))
    if candidates is None or grid is not None:
        raise ParameterError(
            "either a grid or candidates must be given", hint='such as grid={"regularization": [1e-3, 1e-2]}'
        )
    if settings is not None or chosen:
        raise ParameterError("settings must not be given beside candidates, which have them")
    return candidates


def _convert_grid(grid: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Convert the values of a grid to plain Python values; raise a ParameterError if they are not in lists."""
    if not isinstance(grid, Mapping) or any(isinstance(one, str) or not np.iterable(one) for one in grid.values()):
        raise ParameterError(
            "grid must be a dictionary of lists of values", hint='such as grid={"regularization": [1e-3, 1e-2]}'
        )
    # NumPy's numbers, which JSON does not have, are converted to plain ones.
    return {
        name: [OPTIONS[name].convert(value, name) for value in values] if name in OPTIONS else [*values]
        for name, values in grid.items()
    }


def _make_schema(
    source: Any,
    engine: Engine,
    schema: SchemaLike | None,
    *,
    label: Any,
    target: Any,
    of_target: Mapping[str, Any],
    **of_columns: Any,
) -> Schema:
    """Return the schema as given, or make it from the arguments and the declarations of the source."""
    columns = engine.columns()
    if schema is not None:
        try:
            given = Schema.from_any(schema)
        except ParameterError as fault:
            if isinstance(schema, str) and schema in [*columns]:
                raise ParameterError(str(fault), hint=f"did you mean label={schema!r}?") from None
            raise
        refuse_arguments_beside_schema({"label": label, "target": target, **of_target, **of_columns})
        return given
    kind, name = resolve_target_name(label=label, target=target)
    if name is None and isinstance(source, tuple):
        name = [*columns][-1]  # the name that `open_source` gives the labels of a pair
    if name is None or (not isinstance(name, str) and str(name) not in columns):
        bounds = of_columns["bounds"]
        wrong = f"{kind.key} must be given, the name of the column to predict"
        if name is not None:  # its value is not quoted: it may be the labels themselves
            wrong = f"{kind.key} must be the name of a column, got {describe_argument(name)}"
        raise ParameterError(wrong, hint=suggest_columns(columns, bounds if isinstance(bounds, Mapping) else ()))
    public, unused = declare_schema(columns, kind, str(name), of_target, **of_columns)
    warn_of_unused_columns(unused, stacklevel=6)
    return public


def _check_schema_type(schema: Any) -> None:
    """Raise a ParameterError if `schema` is of another type, such as labels given apart from the rows."""
    if schema is not None and not isinstance(schema, (Schema, Mapping, str, Path)):
        raise ParameterError(
            f"a schema must be a Schema, the path of a TOML file or a dictionary, got {describe_argument(schema)}",
            hint="settings=..." if isinstance(schema, Settings) else "rows and labels go together: train((X, y), ...)",
        )
