"""The base of the scikit-learn estimators over `train`: parameters become a schema and settings."""

from __future__ import annotations

import math
import textwrap
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import get_annotations
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state, validation

from boltdp._array_types import Doubles
from boltdp.api import (
    Model,
    refuse_arguments_beside_schema,
    warn_if_not_private,
    warn_of_unusable_labels,
    warn_of_unused_columns,
)
from boltdp.encoding import python_to_arrow
from boltdp.engines._frame_types import is_table
from boltdp.engines.base import check_names
from boltdp.engines.in_memory import ArrayEngine, count_array_columns, to_arrow_table, wrap_rows
from boltdp.errors import DataError, ParameterError, PrivacyWarning, describe_argument, show_hints
from boltdp.estimators.callers import find_transformer_name, list_outside_reasons
from boltdp.export.original_units import convert_to_original_units
from boltdp.ledger import Account, Ledger, find_account
from boltdp.model import Model as ReleasedModel
from boltdp.schema.curves import compute_step_thresholds
from boltdp.schema.from_arguments import declare_schema, declare_target
from boltdp.schema.schema import Column, Numeric, Schema, Vector, check_positive
from boltdp.schema.source_columns import ColumnType
from boltdp.schema.target import Target
from boltdp.settings import OPTIONS, Option, Settings
from boltdp.workflows.train import train

#: The reason why a model is not private if X is a list of rows and their length was not declared.
LENGTH_REASON = (
    "the number of features was read from a list of rows, and one row can change it; make an array of X, or declare "
    "bounds of each feature"
)

#: The warning if columns have names that transformers give them; it does not depend on the rows.
MADE_NAME_WARNING = (
    "the column {!r} has the name of one that scikit-learn made: if that was fitted on private rows, the guarantee "
    "does not cover what it learned from them; declare bounds and categories of the original columns instead"
)

#: The warning on every fit without bounds and clip_norm; it does not depend on the rows.
UNDECLARED_WARNING = (
    "neither bounds nor clip_norm is declared: features are clipped to [-1, 1] and rows shortened to length 1; "
    "declare what is publicly known of them, or clip_norm=1 if this is what you want"
)

Bound: TypeAlias = float | Sequence[float] | npt.NDArray[Any]


Estimator = TypeVar("Estimator", bound=type)


def add_parameters(*, leave_out: tuple[str, ...] = ()) -> Callable[[Estimator], Estimator]:
    """Return a class decorator that adds an __init__ which only stores its parameters, as scikit-learn requires.

    The parameters are those that the class and its bases declare, and the settings, which are added to its docstring.
    """

    def add_init(cls: Estimator) -> Estimator:
        bases = [base for base in reversed(cls.__mro__) if issubclass(base, PrivateEstimator)]
        declared = {name: hint for base in bases for name, hint in get_annotations(base).items() if name[0] != "_"}
        settings = [one for one in OPTIONS.values() if one.parameter not in ("", *declared, *leave_out)]
        cls.__annotations__ = declared | {one.parameter: Any for one in settings}
        for one in settings:
            setattr(cls, one.parameter, one.default)
        cls.__doc__ = (cls.__doc__ or "").replace("    SETTINGS\n", "".join(map(_describe_parameter, settings)))
        made: Estimator = dataclass(kw_only=True, eq=False, repr=False)(cls)  # type: ignore[assignment]
        return made

    return add_init


def _describe_parameter(option: Option) -> str:
    """Return the lines of an estimator's docstring for the parameter of a setting."""
    words, kinds = (
        ", ".join(map(repr, option.words)),
        {"number": "float", "whole number": "int", "word": "str", "flag": "bool"},
    )
    kind = f"dict or {words}" if option.kind == "other" else f"{{{words}}}" if words else kinds[option.kind]
    optional = " or None" if option.nullable and option.default is None else ""
    chosen = f" None: {option.default_text}." if option.default_text else ""
    text = textwrap.fill(option.help + chosen, 112, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return f"    {option.parameter} : {kind}{optional}, default={option.default!r}\n{text}\n"


class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """The base of the estimators; PrivateLogisticRegression documents the parameters."""

    _kind: ClassVar[type[Target]]
    _target_parameters: ClassVar[tuple[str, ...]]  #: those that declare the target, instead of a schema

    epsilon: float | None = 1.0
    bounds: Mapping[Any, Sequence[float]] | tuple[Bound, Bound] | npt.NDArray[Any] | None = None
    categories: Mapping[Any, Sequence[Any]] | None = None
    timestamps: Mapping[Any, Sequence[str]] | None = None
    curves: int | Mapping[str, int | Sequence[float]] | None = None
    pairs: Sequence[Sequence[str]] | None = None
    clip_norm: float | None = None
    schema: Schema | Mapping[str, Any] | str | Path | None = None
    fit_intercept: bool = True
    ledger: str | Path | Ledger | None = None
    dataset: str | None = None
    blocks: Sequence[str] | None = None
    random_state: int | np.random.RandomState | None = None

    def fit(self, X: Any, y: Any) -> Any:
        """Train on the rows of X and their labels y, and release the model."""
        with show_hints():
            engine, schema, reasons = self._prepare_rows(X, y)
            model = train(engine, schema, self._make_settings(), reasons=reasons, account=self._find_account())
        return self._set_model(model)

    def _find_account(self) -> Account | None:
        return find_account(None, ledger=self.ledger, dataset=self.dataset, blocks=self.blocks or ())

    def _prepare_rows(
        self, X: Any, y: Any, *, schema: Schema | None = None
    ) -> tuple[ArrayEngine, Schema, tuple[str, ...]]:
        """Return an engine of the labelled rows, their schema, and the reasons why the model is not private."""
        width = self._find_declared_width() if schema is None else self.n_features_in_
        length_read = width is None and python_to_arrow.is_list_of_rows(X)
        X = self._check_features(X, reset=schema is None, width=width)
        if y is None:
            raise DataError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        given, y = y, _convert_labels(y)
        validation.check_consistent_length(X, y)
        reasons: tuple[str, ...] = ()
        if self.epsilon is not None and schema is None:
            reasons = list_outside_reasons()
            made = find_transformer_name(getattr(self, "feature_names_in_", ()))
            if made is not None:
                warnings.warn(MADE_NAME_WARNING.format(made), PrivacyWarning, stacklevel=3)
        if length_read:
            reasons = (*reasons, LENGTH_REASON)
        if schema is None:
            name, schema = getattr(given, "name", None), self._load_schema()
            if schema is not None:
                schema = replace(schema, target=self._adapt_target(schema.target))
            else:
                of_target, read = self._declare_target(given)
                reasons = (*reasons, *read)
                name = name if isinstance(name, str) and name else self._kind.key
                if self._has_named_columns:
                    schema = self._make_named_schema(X, of_target, name)
                else:
                    schema = self._make_array_schema(of_target, name)
            self._check_schema(schema)
        return wrap_rows(schema, X).with_column(schema.label, y), schema, reasons

    @abstractmethod
    def _declare_target(self, y: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the arguments that declare the target, and why the model is not private if they were read from y."""

    @abstractmethod
    def _adapt_target(self, target: Target) -> Target:
        """Return the target of a schema as scikit-learn expects it; raise a ParameterError if it is of another kind."""

    def _check_schema(self, schema: Schema) -> None:
        """Raise a ParameterError if parameters of the estimator do not fit the schema."""

    @abstractmethod
    def _set_attributes(self, coefficients: Doubles, constants: Doubles) -> None:
        """Set the fitted attributes of a kind of estimator, from the weights in the units of X."""

    def _set_model(self, model: ReleasedModel) -> Any:
        """Set the fitted attributes; warn if epsilon is given and the model is not private."""
        self.model_, self.certificate_ = Model.from_released(model), model.certificate
        self._set_attributes(*convert_to_original_units(model.schema, model.weights))
        warn_if_not_private(self.certificate_, self.epsilon, stacklevel=4)
        warn_of_unusable_labels(model, stacklevel=4)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # Missing values and texts among numbers are neutral: an error would reveal something about one row.
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.sparse = True
        return tags

    def _compute_margins(self, X: Any) -> Doubles:
        validation.check_is_fitted(self)
        engine = wrap_rows(self.model_.schema, self._check_features(X, reset=False, width=self.n_features_in_))
        return np.concatenate([*self.model_.score_batches(engine)])

    def _find_declared_width(self) -> int | None:
        """Return the number of features that a schema or bounds of each feature declare; None if neither does."""
        schema = self._load_schema()
        if schema is not None:
            return count_array_columns(schema)
        pair = () if self.bounds is None or isinstance(self.bounds, Mapping) else _unpack_bounds(self.bounds)
        return next((len(bound) for bound in pair if np.ndim(bound) == 1), None)

    def _check_features(self, X: Any, *, reset: bool, width: int | None) -> Any:
        """Check names and shape of X; convert it to floats, unless its columns are declared by name.

        Rows of a list must have `width` features; None: the most frequent length.
        """
        if _is_data_frame(X):
            check_names([str(name) for name in X.columns])
        named = self.schema is not None or self._has_named_columns
        lenient = {"ensure_all_finite": False, "ensure_min_samples": 2 if reset else 1}
        if not _is_data_frame(X) and is_table(X):
            X = to_arrow_table(X)
        if isinstance(X, pa.Table) or (named and _is_data_frame(X)):
            X = validation.validate_data(self, X, reset=reset, skip_check_array=True)  # checks the names
            return X if named else validation.check_array(_convert_table(X), dtype=np.float64, **lenient)
        # A warning about overflow would reveal that a row has such a value.
        with np.errstate(over="ignore"):
            return validation.validate_data(
                self,
                _convert_numbers(X, warn=reset, width=width),
                reset=reset,
                dtype=(np.float64, np.float32),
                accept_sparse=("csr", "csc"),
                **lenient,
            )

    @property
    def _has_named_columns(self) -> bool:
        return isinstance(self.bounds, Mapping) or self.categories is not None or self.timestamps is not None

    def _make_settings(self, **fixed: Any) -> Settings:
        seed = None if self.random_state is None else int(check_random_state(self.random_state).randint(2**31 - 1))
        chosen = {
            name: one.convert(getattr(self, one.parameter), one.parameter)
            for name, one in OPTIONS.items()
            if one.parameter and hasattr(self, one.parameter)
        }
        return Settings(**{**chosen, "seed": seed, "noise_seed": None if self.epsilon is None else seed, **fixed})

    def _load_schema(self) -> Schema | None:
        """Return the schema that is given as a parameter, if any; raise a ParameterError if others repeat it."""
        if self.schema is None:
            return None
        declared = (*self._target_parameters, "bounds", "categories", "timestamps", "curves", "pairs", "clip_norm")
        intercept = None if self.fit_intercept else False
        refuse_arguments_beside_schema({**{name: getattr(self, name) for name in declared}, "fit_intercept": intercept})
        return Schema.from_any(self.schema)

    def _make_named_schema(self, X: Any, of_target: Mapping[str, Any], label: str) -> Schema:
        """Make the schema of a data frame from bounds, categories and timestamps by column name."""
        if not isinstance(X, pa.Table) and not _is_data_frame(X):
            raise ParameterError(
                "bounds and categories by name must be of a data frame's columns, and X has no names",
                hint="bounds=(low, high), each a number or one for each feature",
            )
        norm = self._check_clip_norm()
        rows = ArrayEngine.from_arrow(X) if isinstance(X, pa.Table) else ArrayEngine.from_pandas(X)
        columns = {**rows.columns(), label: ColumnType("untyped")}
        declared = {"bounds": self.bounds, "categories": self.categories, "timestamps": self.timestamps}
        schema, unused = declare_schema(columns, self._kind, label, of_target, **declared)
        warn_of_unused_columns(unused, stacklevel=5)
        return self._complete_schema(schema, norm)

    def _complete_schema(self, schema: Schema, norm: float | None) -> Schema:
        """Return the schema with curves, intercept and the clip norm of the features without the intercept's 1."""
        intercept, pairs = bool(self.fit_intercept), cast(Any, () if self.pairs is None else self.pairs)
        return replace(
            schema,
            columns=_add_curves(schema.columns, self.curves),
            pairs=pairs,
            intercept=intercept,
            clip_norm=None if norm is None else math.hypot(norm, intercept),
        )

    def _check_clip_norm(self) -> float | None:
        return None if self.clip_norm is None else check_positive(self.clip_norm, "clip_norm")

    def _make_array_schema(self, of_target: Mapping[str, Any], label: str) -> Schema:
        """Make the schema of an array: a column per feature, or one vector if all features have the same bounds."""
        dims, clip_norm = self.n_features_in_, self._check_clip_norm()
        if self.bounds is not None:
            (low, high), norm = _unpack_bounds(self.bounds), clip_norm
        else:
            if self.curves is not None:
                raise ParameterError("curves must be given beside bounds, which their places lie between")
            if self.pairs is not None:
                raise ParameterError("pairs must be given beside bounds, which their steps lie between")
            if clip_norm is None:
                warnings.warn(UNDECLARED_WARNING, UserWarning, stacklevel=4)
            high = 1.0 if clip_norm is None else clip_norm
            low, norm = -high, 1.0
        names = getattr(self, "feature_names_in_", None)
        columns: tuple[Column, ...]
        plain = self.curves is None and self.pairs is None
        if names is None and np.ndim(low) == np.ndim(high) == 0 and plain:
            columns = (Vector("x", dims, low, high),)
        else:
            names = [f"x{i}" for i in range(dims)] if names is None else names
            columns = tuple(map(Numeric, map(str, names), _repeat_bound(low, dims), _repeat_bound(high, dims)))
        while any(column.name == label for column in columns):
            label += "_"
        target = declare_target(self._kind, label, ColumnType("untyped"), of_target)
        assert target is not None
        return self._complete_schema(Schema(target, columns), norm)


def _is_data_frame(X: Any) -> bool:
    return hasattr(type(X), "iloc") and hasattr(type(X), "columns")


def _convert_numbers(X: Any, *, warn: bool, width: int | None) -> Any:
    """Convert X to numbers before scikit-learn does, whose errors depend on single values and quote them."""
    if not _is_data_frame(X):
        values = X if issparse(X) else python_to_arrow.to_matrix(X, width=width)
        if values.ndim < 2:
            raise DataError(f"X must be a 2D array, rows by features, got shape {values.shape}. Reshape your data")
        if values.dtype.kind not in "fiub":
            kind = "Complex" if values.dtype.kind == "c" else str(values.dtype)
            raise DataError(f"{kind} data not supported: X must have real numbers")
        return values
    numbers = X.copy(deep=False)
    for index, (name, dtype) in enumerate(zip(X.columns, X.dtypes, strict=True)):
        if str(dtype) == "category" or dtype.kind not in "fiubO":
            raise DataError(
                f"column {name!r} must have numbers, its type is {str(dtype)!r}",
                hint=f'declare them, categories={{"{name}": ["value", ...]}}, or leave the column out',
            )
        if dtype.kind == "O":
            if warn:
                warnings.warn(
                    f"column {name!r} has the type {str(dtype)!r}: what is no number in it is missing; if it has "
                    f'categories, declare them: categories={{"{name}": ["value", ...]}}',
                    UserWarning,
                    stacklevel=5,
                )
            cells = python_to_arrow.to_arrow_column(X.iloc[:, index].array, "number")
            numbers.isetitem(index, cells.to_numpy(zero_copy_only=False))
    return numbers


def _convert_table(table: pa.Table) -> Doubles:
    """Convert an Arrow table X to an array of numbers; raise a DataError for columns of other types."""
    columns = []
    for field, column in zip(table.schema, table.columns, strict=True):
        if ColumnType.from_arrow(field.type).kind not in ("number", "bool", "untyped"):
            raise DataError(
                f"column {field.name!r} must have numbers, its type is {str(field.type)!r}",
                hint="declare its categories in a schema, or leave it out",
            )
        if pa.types.is_boolean(field.type):
            column = column.cast(pa.uint8())
        columns.append(column.cast(pa.float64(), safe=False).to_numpy())
    return np.column_stack(columns) if columns else np.empty((table.num_rows, 0))


def _convert_labels(y: Any) -> npt.NDArray[Any]:
    """Convert y to an array of its own type; a list becomes an array of objects, so that no label changes type."""
    if isinstance(y, (list, tuple)):
        return python_to_arrow.to_object_array(y)
    if isinstance(y, str):
        raise DataError(
            f"y must be the labels themselves, one for each row, got the text {y!r}",
            hint=f"fit(X, frame[{y!r}]), or boltdp.train(frame, label={y!r}, ...)",
        )
    kind = np.asarray(y).dtype
    if kind.kind not in "fiubOU":
        # The errors of scikit-learn would quote the labels.
        raise DataError(f"y must have texts, numbers or booleans, its type is {str(kind)!r}")
    labels: npt.NDArray[Any] = validation.column_or_1d(y, warn=True)
    return labels


def _add_curves(columns: tuple[Column, ...], curves: Any) -> tuple[Column, ...]:
    if curves is None:
        return columns
    numbers = {column.name: column for column in columns if isinstance(column, Numeric)}
    if not isinstance(curves, Mapping):
        curves = dict.fromkeys(numbers, curves)
    unknown = curves.keys() - numbers.keys()
    if unknown:
        raise ParameterError(f"curves must be of columns of X, got {min(unknown, key=str)!r}")
    for name, curve in curves.items():
        steps = int(curve) if isinstance(curve, np.integer) else curve
        listed = isinstance(curve, (list, tuple, np.ndarray))
        places = tuple(curve) if listed else compute_step_thresholds(numbers[name], steps)
        numbers[name] = replace(numbers[name], curve=places)
    return tuple(numbers.get(column.name, column) for column in columns)


def _unpack_bounds(bounds: Any) -> tuple[Any, Any]:
    """Return the lower and the upper bound of the parameter `bounds`, each a number or one per feature."""
    if isinstance(bounds, str) or not hasattr(bounds, "__len__") or len(bounds) != 2:
        raise ParameterError(
            f"bounds must be a pair (low, high), got {describe_argument(bounds)}",
            hint='each is a number, or one for each feature; by name for a data frame: bounds={"age": (0, 110)}',
        )
    return bounds[0], bounds[1]


def _repeat_bound(bound: Any, dims: int) -> list[Any]:
    if np.ndim(bound) == 0:
        return [bound] * dims
    if np.shape(bound) != (dims,):
        raise ParameterError(
            f"bounds must be numbers or have one number for each of the {dims} features, got shape {np.shape(bound)}"
        )
    return list(bound)
