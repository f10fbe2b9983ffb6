from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from website.pages import ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does: any warning of Sphinx fails."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "website", str(target)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return target
