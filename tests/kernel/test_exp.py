"""The kernel's own exponential, against a hundred bits more of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st

from boltdp.kernel import sgd

LIMIT = 256 * 1020


def ulps_wrong(u: float) -> float:
    """How many units in the last place 2^(u/256) is off."""
    computed = sgd._library.sgd_exp2_256ths(u)
    with_bits, ctx.prec = ctx.prec, 200
    try:
        exact = arb(2) ** (arb(u) / 256)
        return abs(float((exact - arb(computed)) / arb(math.ulp(computed))))
    finally:
        ctx.prec = with_bits


@given(st.floats(-LIMIT, LIMIT))
@settings(max_examples=500)
def test_within_one_and_a_half_units_in_the_last_place(u: float) -> None:
    assert ulps_wrong(u) <= 1.5


def test_every_entry_of_the_table_and_the_points_between() -> None:
    assert max(ulps_wrong(u) for u in np.arange(-256, 512, 0.5)) <= 1.5
    assert max(ulps_wrong(u) for u in np.nextafter(np.arange(-256, 512, 0.5), math.inf)) <= 1.5


@pytest.mark.parametrize(("u", "power"), [(0.0, 1.0), (256.0, 2.0), (-256.0 * 50, 2.0**-50), (128.0, math.sqrt(2))])
def test_known_powers(u: float, power: float) -> None:
    assert sgd._library.sgd_exp2_256ths(u) == power


@pytest.mark.parametrize("u", [LIMIT * 1.001, 1e300, math.inf])
def test_clamped_at_both_ends(u: float) -> None:
    assert sgd._library.sgd_exp2_256ths(u) == 2.0**1020
    assert sgd._library.sgd_exp2_256ths(-u) == 2.0**-1020
