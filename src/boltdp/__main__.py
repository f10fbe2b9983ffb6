"""`python -m boltdp` is the command `boltdp`."""

import boltdp.cli.__main__  # noqa: F401
