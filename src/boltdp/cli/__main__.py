from boltdp.cli import main

main(prog_name="boltdp")
