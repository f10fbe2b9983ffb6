"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# The machine that runs the tests may be busy: how long an example takes says nothing.
settings.register_profile("boltdp", deadline=None)
settings.load_profile("boltdp")
