"""The source of the noise: ChaCha20 against the vectors of RFC 8439, and our logarithm against a hundred bits more."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st

from boltdp.kernel import sgd
from tests.kernel.reference import chacha20

CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
BUILDS = {"portable": 1, "avx2": 2}


def blocks(start: npt.ArrayLike, build: str) -> npt.NDArray[np.uint32]:
    """The kernel's eight blocks from this input on, (8, 16)."""
    given_words = np.array(start, dtype=np.uint32)
    out = np.empty((16, 8), dtype=np.uint32)
    assert sgd._library.sgd_chacha20(given_words.ctypes.data, out.ctypes.data, BUILDS[build]) == 0
    return out.T


def words(hexadecimal: str) -> list[int]:
    return [int(word) for word in np.frombuffer(bytes.fromhex(hexadecimal), dtype="<u4")]


@pytest.mark.parametrize("build", sgd.list_builds())
@pytest.mark.parametrize(
    ("key", "end", "block"),
    [
        (  # section 2.3.2
            "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
            "01000000000000090000004a00000000",
            "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
            "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
        ),
        (  # appendix A.1, vector 1
            "00" * 32,
            "00" * 16,
            "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
            "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
        ),
        (  # appendix A.1, vector 2
            "00" * 32,
            "01" + "00" * 15,
            "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
            "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
        ),
    ],
)
def test_blocks_are_those_of_the_rfc(key: str, end: str, block: str, build: str) -> None:
    start = [*CONSTANTS, *words(key), *words(end)]
    assert blocks(start, build)[0].tolist() == words(block)
    assert chacha20(np.array(start, dtype=np.uint32), 1)[0].tolist() == words(block)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=16, max_size=16), st.integers(-9, 9))
def test_all_lanes_of_all_builds_agree_with_the_reference(start: list[int], from_the_carry: int) -> None:
    """Also where the counter's low word overflows among the eight blocks."""
    start[12] = (start[12] if from_the_carry == 9 else from_the_carry) % 2**32
    expected = chacha20(np.array(start, dtype=np.uint32), 8)
    assert len({block.tobytes() for block in expected}) == 8
    for build in sgd.list_builds():
        assert (blocks(start, build) == expected).all()


def test_a_build_that_does_not_exist_is_refused() -> None:
    room = np.zeros(128, dtype=np.uint32)
    code = sgd._library.sgd_chacha20(room.ctypes.data, room.ctypes.data, 3)
    assert sgd._get_error_text(code) == "this machine cannot run the build asked for"


def log_ulps_wrong(x: float) -> float:
    computed = sgd._library.sgd_log(x)
    with_bits, ctx.prec = ctx.prec, 200
    try:
        return abs(float((arb(x).log() - arb(computed)) / arb(math.ulp(computed))))
    finally:
        ctx.prec = with_bits


@given(st.one_of(st.floats(2.0**-65, 1.0), st.floats(0.5, 2.0), st.floats(1e-300, 1e300)))
@settings(max_examples=500)
def test_the_logarithm_is_within_four_units_in_the_last_place(x: float) -> None:
    assert log_ulps_wrong(x) <= 4


def test_the_logarithm_is_exact_at_one_and_close_around_it_and_the_root_of_two() -> None:
    assert sgd._library.sgd_log(1.0) == 0.0
    for x in (1.0, math.sqrt(2.0), math.sqrt(0.5), 2.0):
        assert log_ulps_wrong(math.nextafter(x, 0.0)) <= 4
        assert log_ulps_wrong(math.nextafter(x, 9.0)) <= 4
