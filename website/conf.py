"""Sphinx's configuration. Nothing of the site is fetched from another server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import boltdp

project = "boltdp"
author = "The boltdp developers"
copyright = "The boltdp developers. Apache-2.0"  # noqa: A001 - Sphinx's name
version = release = boltdp.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types of other packages, which have no pages here

myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "undoc-members": True}
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
add_module_names = False

smartquotes = False  # a prime is no apostrophe

html_theme = "furo"
html_title = f"boltdp {version}"
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["site.css"]
html_favicon = str(Path(__file__).parent / "static" / "favicon.svg")
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6e99", "color-brand-content": "#0b6e99"},
    "dark_css_variables": {"color-brand-primary": "#5fb8dd", "color-brand-content": "#5fb8dd"},
}
#: What the button copies: commands without their prompt and without what they print.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"


def _as_restructured(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Docstrings are prose with `code`; make it what Sphinx takes for that, and nothing else markup."""
    code = False
    for number, line in enumerate(lines):
        code = line.startswith(">>>") or (code and bool(line.strip()))
        if not code:
            pieces = line.split("`")
            pieces[::2] = [re.sub(r"([*|\\]|(?<=\w)_(?!\w))", r"\\\1", piece) for piece in pieces[::2]]
            lines[number] = "``".join(pieces)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _as_restructured, priority=100)  # before napoleon's
