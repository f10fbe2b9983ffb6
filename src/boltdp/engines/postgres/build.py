"""Building and installing the PostgreSQL extension, whose C files come with the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from boltdp.errors import BoltdpError

SOURCES = Path(__file__).with_name("extension")
KERNEL = Path(__file__).parents[2] / "kernel"
OLDEST, NEWEST = 14, 18

#: The version of the extension that this package carries.
VERSION = re.findall(r"default_version = '(.*)'", (SOURCES / "boltdp.control").read_text("utf-8"))[0]


#: Versions whose SQL this package can use: a later patch release adds nothing that it would need.
USABLE = re.compile(r"0\.2\.\d+")


def why_unusable(version: str) -> str | None:
    """Why an installed version cannot be used, if so.

    >>> why_unusable("0.2.7")
    >>> why_unusable("0.1.0")
    "version 0.1.0 of the extension cannot be used, but 0.2.x can; ALTER EXTENSION boltdp UPDATE TO '0.2.0' changes it"
    """
    if USABLE.fullmatch(version):
        return None
    usable = USABLE.pattern.replace("\\.", ".").replace("\\d+", "x")
    said = f"version {version} of the extension cannot be used, but {usable} can"
    return f"{said}; ALTER EXTENSION boltdp UPDATE TO '{VERSION}' changes it"


class ExtensionError(BoltdpError):
    """The extension cannot be built or installed."""


@dataclass(frozen=True)
class Finding:
    """One thing that the extension needs, and whether it is there."""

    ok: bool
    text: str
    hint: str | None = None


def ask_pg_config(pg_config: str | Path, option: str) -> str:
    """What a pg_config says, for example to "--bindir".

    >>> ask_pg_config("/nowhere/pg_config", "--version")
    Traceback (most recent call last):
    boltdp.engines.postgres.build.ExtensionError: '/nowhere/pg_config' cannot be run
    """
    try:
        answer = subprocess.run([str(pg_config), option], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        answer = None
    if answer is None:
        raise ExtensionError(
            f"{str(pg_config)!r} cannot be run",
            hint="name the pg_config of your server with --pg-config; it comes with the server's development package",
        )
    return answer.stdout.strip()


def check_build(pg_config: str | Path = "pg_config") -> list[Finding]:
    """What building the extension for the server of a pg_config needs, and whether it is there."""
    findings = []
    for tool, what in (("make", "make"), (os.environ.get("CC", "cc"), "a C compiler")):
        there = shutil.which(tool) is not None
        findings.append(Finding(there, f"{what}: {tool}", None if there else f"install {what}"))
    try:
        version = ask_pg_config(pg_config, "--version")
        headers = Path(ask_pg_config(pg_config, "--includedir-server"))
        library, share = (Path(ask_pg_config(pg_config, option)) for option in ("--pkglibdir", "--sharedir"))
    except ExtensionError as fault:
        return [*findings, Finding(False, str(fault), fault.hint)]
    number = re.search(r"\d+", version)
    major = int(number.group()) if number else 0
    findings.append(
        Finding(OLDEST <= major <= NEWEST, f"server: {version}", f"boltdp supports PostgreSQL {OLDEST} to {NEWEST}")
    )
    findings.append(
        Finding(
            (headers / "postgres.h").is_file(),
            f"headers: {headers}",
            f"install the server's headers, for example: apt-get install postgresql-server-dev-{major}",
        )
    )
    for place in (library, share / "extension"):
        findings.append(
            Finding(
                os.access(place, os.W_OK),
                f"may write to: {place}",
                "install as the user who owns the server's files, for example with sudo",
            )
        )
    return findings


def install(pg_config: str | Path = "pg_config") -> None:
    """Build the extension and put it where the server of this pg_config looks for extensions."""
    for finding in check_build(pg_config):
        if not finding.ok:
            raise ExtensionError(f"the extension cannot be installed; missing is {finding.text}", hint=finding.hint)
    with tempfile.TemporaryDirectory(prefix="boltdp-") as folder:
        build = Path(folder) / "postgres"
        # The package may be where nobody can write, and object files of another server would be in the way.
        shutil.copytree(SOURCES, build, ignore=shutil.ignore_patterns("*.o", "*.so"))
        command = [
            "make",
            f"-j{os.cpu_count() or 1}",
            "-C",
            str(build),
            f"PG_CONFIG={pg_config}",
            f"KERNEL={KERNEL}",
            "install",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = [line for line in done.stderr.splitlines() if line.strip()][-5:]
        raise ExtensionError("the extension cannot be built", hint="the compiler said: " + "\n".join(last))
