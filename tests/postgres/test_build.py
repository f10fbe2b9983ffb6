"""The extension is built with the server's flags, which harden it, and gives the same bits whatever they are."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from boltdp.engines.postgres import build
from boltdp.engines.postgres.local_server import Server

FLAGS = "-O1 -Wall -fstack-protector-strong -fno-such-flag -ffast-math -ffp-contract=fast -fstack-clash-protection"


def commands(pg_config: Path, *more: str) -> list[list[str]]:
    """The calls of the compiler that would be made."""
    call = ["make", "-n", "-B", "-C", str(build.SOURCES), f"PG_CONFIG={pg_config}", f"KERNEL={build.KERNEL}"]
    done = subprocess.run([*call, *more, "all"], capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.replace("\\\n", " ").splitlines()]
    return [line for line in lines if "-c" in line]


def harmless(command: list[str]) -> bool:
    """Whether the last word on every flag that changes bits is ours."""
    last = max((i for i, flag in enumerate(command) if flag in ("-ffast-math", "-ffp-contract=fast")), default=-1)
    return all(flag in command[last + 1 :] for flag in ("-fno-fast-math", "-ffp-contract=off"))


@pytest.fixture
def hardened(server: Server, tmp_path: Path) -> Path:
    """A pg_config of a server whose compiler was another, and which has no PGXS."""
    script = tmp_path / "pg_config"
    script.write_text(
        "#!/bin/sh\ncase $1 in --pgxs) echo /nowhere;;"
        f" --cflags) echo '{FLAGS}';; --cppflags) echo '-D_GNU_SOURCE -D_FORTIFY_SOURCE=2';;"
        f" --ldflags) echo '-L/nowhere -Wl,-z,relro';; *) exec {server.pg_config} \"$1\";; esac\n"
    )
    script.chmod(0o755)
    return script


def test_flags_that_harden_are_used_and_those_that_change_bits_are_not(hardened: Path) -> None:
    compiled = commands(hardened)
    assert len(compiled) >= 10
    for command in compiled:
        assert {"-fstack-protector-strong", "-fstack-clash-protection", "-D_FORTIFY_SOURCE=2"} <= {*command}, command
        assert "-fno-such-flag" not in command
        assert harmless(command), command
    for command in (one for one in compiled if str(build.KERNEL) in one[-1]):
        assert not {"-ffast-math", "-O1", "-ffp-contract=fast"} & {*command}
        assert "-O3" in command


def test_flags_of_one_s_own_come_last(hardened: Path) -> None:
    for command in commands(hardened, "CFLAGS=-O2 -fno-stack-protector"):
        assert command.index("-fno-stack-protector") > command.index("-fstack-protector-strong")


def test_the_server_of_the_tests_is_built_for_so_too(server: Server) -> None:
    compiled = commands(server.pg_config)
    assert len(compiled) >= 10
    assert all(harmless(command) for command in compiled)


def test_a_build_with_these_flags_works(hardened: Path, tmp_path: Path) -> None:
    target = f"DESTDIR={tmp_path}"
    copied = tmp_path / "build"
    subprocess.run(["cp", "-r", str(build.SOURCES.resolve()), str(copied)], check=True)
    subprocess.run(["find", str(copied), "-name", "*.o", "-delete"], check=True)
    call = ["make", "-C", str(copied), f"PG_CONFIG={hardened}", f"KERNEL={build.KERNEL}", target, "install"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("boltdp.so"))
