"""The C library that everything stands on."""

from __future__ import annotations

from pathlib import Path

import pytest

from boltdp import _native


def test_a_checkout_that_was_not_built_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_native, "_PATH", tmp_path / "_kernel.so")
    with pytest.raises(_native.LibraryError, match="cannot be loaded") as caught:
        _native.load_library({})
    assert caught.value.hint is not None
    assert "pip install --editable ." in caught.value.hint
