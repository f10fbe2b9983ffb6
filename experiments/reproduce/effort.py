"""Figure 9: the effort of integration: lines of code that each algorithm needed, counted from the source."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.reproduce.figure import Figure, Options
from experiments.reproduce.panels import Panel, Series
from experiments.store import add_line, lines

ROOT = Path(__file__).parents[2]
#: What each algorithm needs beside SGD as it is without privacy: files, or functions of a file, by where they are. The
#: noise and the sensitivity are in Python for all of them: "controller". What runs for every batch or row is "engine".
#: SCS13 and BST14 share the noise of an update; BST14 draws its rows besides, in the kernel and in PostgreSQL.
_NOISE_OF_UPDATES: Mapping[str, Sequence[str]] = {
    "controller": ("src/boltdp/algorithms/_sgd.py:WhiteBox",),
    "engine": (
        "src/boltdp/kernel/gaussian_noise.h",
        "src/boltdp/kernel/random_stream.h",
        "src/boltdp/kernel/sgd_loops.h:draw_noise",
    ),
}
NEEDED: Mapping[str, Mapping[str, Sequence[str]]] = {
    "bolton": {
        "controller": (
            "src/boltdp/algorithms/bolton.py",
            "src/boltdp/privacy/events/output_perturbation.py:make_output_perturbation",
        ),
        "engine": (),
    },
    "scs13": {
        "controller": (
            *_NOISE_OF_UPDATES["controller"],
            "src/boltdp/algorithms/scs13.py",
            "src/boltdp/privacy/events/noisy_sgd.py:calibrate_scs13",
        ),
        "engine": _NOISE_OF_UPDATES["engine"],
    },
    "bst14": {
        "controller": (
            *_NOISE_OF_UPDATES["controller"],
            "src/boltdp/algorithms/bst14.py",
            "src/boltdp/algorithms/_row_sampling.py:draw_fixed_size_batches",
            "src/boltdp/privacy/events/noisy_sgd.py:calibrate_sampled_updates",
        ),
        "engine": (
            *_NOISE_OF_UPDATES["engine"],
            "src/boltdp/kernel/row_sampling.c",
            "postgres/src/drawn_sgd_aggregate.c",
        ),
    },
}
TITLES = {"bolton": "ours", "scs13": "SCS13", "bst14": "BST14"}


class Effort(Figure):
    """Counting."""

    number, name = 9, "effort"
    title = "The effort of integration"
    settings = (
        "Lines of code without blank lines, comments and docstrings, beside SGD as it is without privacy. “Engine” is "
        "C that runs for every batch inside the database or the kernel, “controller” Python around it. What checks a "
        "proof or describes a plan to a user is counted with the controller. Code that two share counts for both."
    )

    def run(self, options: Options) -> int:
        """Count again."""
        path = self.path(options.results)
        path.unlink(missing_ok=True)
        for way, where in counted().items():
            add_line(path, {"cell": {"way": way}, "repeat": 0, "measured": where})
        return 0

    def rows(self, results: Path) -> list[dict[str, Any]]:
        """A row for each algorithm."""
        return [{**record["cell"], **record["measured"]} for record in lines(self.path(results))]

    def panels(self, results: Path) -> list[Panel]:
        """Bars."""
        rows = self.rows(results)
        if not rows:
            return []
        series = [
            Series(style, range(len(rows)), [row[where] for row in rows], [0] * len(rows), name=name)
            for style, where, name in (("auto", "controller", "controller, Python"), ("scs13", "engine", "engine, C"))
        ]
        names = [TITLES[row["way"]] for row in rows]
        return [Panel("Lines of code", "", "lines", series, places=names)]


def counted() -> dict[str, dict[str, int]]:
    """The lines of each algorithm in the controller and in the engine."""
    return {
        way: {where: sum(code_lines(one) for one in named) for where, named in places.items()}
        for way, places in NEEDED.items()
    }


def code_lines(named: str) -> int:
    """Lines of code of a file, or of one function of it, as `path` or `path:function`."""
    path, _, function = named.partition(":")
    text = (ROOT / path).read_text("utf-8")
    if path.endswith(".py"):
        return python_lines(text, function)
    return c_lines(c_function(text, function) if function else text)


def python_lines(text: str, function: str = "") -> int:
    r"""Lines of Python with code, of all or of one function.

    >>> python_lines('def f():\n    "Says why."\n\n    # more\n    return 1\n\nx = 1\n', "f")
    2
    """
    tree: ast.AST = ast.parse(text)
    if function:
        defined = (ast.FunctionDef, ast.ClassDef)
        tree = next(node for node in ast.walk(tree) if isinstance(node, defined) and node.name == function)
    first, last = (tree.lineno, tree.end_lineno) if isinstance(tree, ast.stmt) else (1, len(text.splitlines()))
    docs: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docs.update(range(body[0].lineno, (body[0].end_lineno or 0) + 1))
    nothing = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in nothing
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len({line for line in code - docs if first <= line <= (last or 0)})


def c_lines(text: str) -> int:
    r"""Lines of C with code.

    >>> c_lines("/* why\n * and how */\nint x; // one\n\nint y;\n")
    2
    """
    without = re.sub(r"/\*.*?\*/|//[^\n]*", lambda found: "\n" * found[0].count("\n"), text, flags=re.S)
    return sum(bool(line.strip()) for line in without.splitlines())


def c_function(text: str, name: str) -> str:
    """The text of a function of C, by its name; its body ends at a brace in the first column."""
    found = re.search(rf"^[^\n;#]*\b{name}\b[^;{{]*\n?{{.*?^}}", text, flags=re.S | re.M)
    if found is None:
        raise LookupError(f"there is no function {name}")
    return found[0]
