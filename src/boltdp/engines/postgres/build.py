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
MIN_SERVER, MAX_SERVER = 14, 18

#: Version of the extension in this package.
VERSION = re.findall(r"default_version = '(.*)'", (SOURCES / "boltdp.control").read_text("utf-8"))[0]

#: Installed versions that this package can use: any patch release of the same minor version.
USABLE_VERSIONS = re.compile(r"0\.2\.\d+")


def explain_unusable_version(version: str) -> str | None:
    """Return why an installed version of the PostgreSQL extension cannot be used; None if it can."""
    if USABLE_VERSIONS.fullmatch(version):
        return None
    usable = USABLE_VERSIONS.pattern.replace("\\.", ".").replace("\\d+", "x")
    problem = f"version {version} of the extension cannot be used, but {usable} can"
    return f"{problem}; ALTER EXTENSION boltdp UPDATE TO '{VERSION}' changes it"


class ExtensionError(BoltdpError):
    """The extension cannot be built or installed."""


@dataclass(frozen=True)
class Requirement:
    """One requirement of the extension and whether it is met."""

    ok: bool
    text: str
    hint: str | None = None


def ask_pg_config(pg_config: str | Path, option: str) -> str:
    """Return the output of pg_config for an option such as "--bindir"."""
    try:
        answer = subprocess.run([str(pg_config), option], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise ExtensionError(
            f"{str(pg_config)!r} cannot be run",
            hint="name the pg_config of your server with --pg-config; it comes with the server's development package",
        ) from None
    return answer.stdout.strip()


def check_build(pg_config: str | Path = "pg_config") -> list[Requirement]:
    """Check the requirements for building the extension for the server of a pg_config."""
    findings = []
    for tool, what in (("make", "make"), (os.environ.get("CC", "cc"), "a C compiler")):
        found = shutil.which(tool) is not None
        findings.append(Requirement(found, f"{what}: {tool}", None if found else f"install {what}"))
    try:
        version = ask_pg_config(pg_config, "--version")
        headers = Path(ask_pg_config(pg_config, "--includedir-server"))
        library, share = (Path(ask_pg_config(pg_config, option)) for option in ("--pkglibdir", "--sharedir"))
    except ExtensionError as fault:
        return [*findings, Requirement(False, str(fault), fault.hint)]
    number = re.search(r"\d+", version)
    major = int(number.group()) if number else 0
    supported = f"boltdp supports PostgreSQL {MIN_SERVER} to {MAX_SERVER}"
    findings.append(Requirement(MIN_SERVER <= major <= MAX_SERVER, f"server: {version}", supported))
    install_headers = f"install the server's headers, for example: apt-get install postgresql-server-dev-{major}"
    findings.append(Requirement((headers / "postgres.h").is_file(), f"headers: {headers}", install_headers))
    hint = "install as the user who owns the server's files, for example with sudo"
    for place in (library, share / "extension"):
        findings.append(Requirement(os.access(place, os.W_OK), f"may write to: {place}", hint))
    return findings


def install_extension(pg_config: str | Path = "pg_config") -> None:
    """Build the extension and install it for the server of a pg_config."""
    for finding in check_build(pg_config):
        if not finding.ok:
            raise ExtensionError(f"the extension cannot be installed; missing is {finding.text}", hint=finding.hint)
    with tempfile.TemporaryDirectory(prefix="boltdp-") as folder:
        build = Path(folder) / "postgres"
        # The package directory may be read-only or contain object files for another server.
        shutil.copytree(SOURCES, build, ignore=shutil.ignore_patterns("*.o", "*.so"))
        variables = [f"PG_CONFIG={pg_config}", f"KERNEL={KERNEL}"]
        command = ["make", f"-j{os.cpu_count() or 1}", "-C", str(build), *variables, "install"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = [line for line in done.stderr.splitlines() if line.strip()][-5:]
        raise ExtensionError("the extension cannot be built", hint="the compiler said: " + "\n".join(last))
