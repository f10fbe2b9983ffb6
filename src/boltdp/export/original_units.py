"""The weights of a model in the original units of its columns."""

from __future__ import annotations

import numpy as np

from boltdp._array_types import Doubles
from boltdp.encoding.plan import EncodingPlan
from boltdp.schema.schema import Schema


def unproject_weights(schema: Schema, weights: Doubles) -> Doubles:
    """Return the weights for the encoded row before its projection: <w, P'x> = <Pw, x>."""
    matrix = schema.encoding.projection_matrix
    return weights if matrix is None else weights @ matrix.T


def compute_norms(plan: EncodingPlan, features: Doubles) -> Doubles:
    """Compute the norm of each row of features in original units, after the projection if there is one."""
    units = [scaled.original_units for scaled in plan.scaled_rules]
    middles, factors = (np.concatenate(parts) for parts in zip(*units, strict=True))
    encoded = (features - middles) * factors
    if plan.constant is not None:
        encoded = np.hstack([encoded, np.full((len(encoded), 1), plan.constant)])
    matrix = plan.projection_matrix
    return np.asarray(np.linalg.norm(encoded if matrix is None else encoded @ matrix, axis=1))


def convert_to_original_units(schema: Schema, weights: Doubles) -> tuple[Doubles, Doubles]:
    """Return the coefficients in the original units of the columns, and the intercept, for each weight vector.

    The features are those of `schema.feature_names` without the projection and the intercept: numbers in original
    units, and 0 or 1 for each category; those of pairs of columns are left out.
    """
    encoded = unproject_weights(schema, weights)
    units = [scaled.original_units for scaled in schema.encoding.scaled_rules]
    middles, factors = (np.concatenate(parts) for parts in zip(*units, strict=True))
    coefficients = encoded[:, : len(factors)] * factors
    constants = -coefficients @ middles
    if schema.intercept:
        constants += encoded[:, -1] * schema.intercept_value
    return coefficients, constants
