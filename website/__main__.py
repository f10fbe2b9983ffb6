"""`python -m website [DIRECTORY]`: build the site, into build/site unless another directory is named."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from sphinx.cmd.build import build_main

from website.pages import ROOT, gather


def main(target: Path = ROOT / "build" / "site") -> int:
    """Gather the pages and build the site; the exit code is not 0 if there was any warning."""
    with tempfile.TemporaryDirectory() as folder:
        source, extra = gather(Path(folder))
        # A page that is not there any more must not stay: the environment is made again each time.
        options = ["-b", "html", "-W", "--keep-going", "-q", "-E", "-a", "-d", f"{folder}/doctrees"]
        options += ["-D", f"html_extra_path={extra}"]
        failed = build_main([*options, "-c", str(Path(__file__).parent), str(source), str(target)])
    if not failed:
        sys.stdout.write(f"{target}/index.html\n")
    return failed


if __name__ == "__main__":
    sys.exit(main(*(Path(argument) for argument in sys.argv[1:2])))
