"""`python -m boltdp` is the command `boltdp`."""

from boltdp.cli import main

main(prog_name="boltdp")
