"""The tables of `boltdp coefficients`: text, CSV, JSON, LaTeX, and a page with a forest plot."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

from boltdp._charts import draw_svg, draw_text, escape_text, format_number
from boltdp.errors import ParameterError, make_printable
from boltdp.export.coefficients import Coefficient, Coefficients
from boltdp.export.html_pages import choose_guarantee_class, write_document, write_facts

#: The maximum number of characters of a term in a text.
MAX_TERM = 200
#: Values from this on, and with more decimals than this, are written with an exponent.
LARGE, MAX_DECIMALS = 1e6, 8
#: The width of the forest plot, of each margin of it, and the height of a line.
PLOT, MARGIN, LINE = 320.0, 14.0, 22.0
#: An interval that reaches further than this many times the widest of three quarters of them is cut off.
MAX_REACH = 2.0
#: The share of the variance from which on noise is what makes an interval wide.
MOSTLY_NOISE = 0.5

#: The facts that a caption leaves out.
LONG_FACTS = ("missing", "width")

_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$"}
_LATEX |= {one: f"\\{one}" for one in "&%$#_{}"}


class CoefficientTable:
    """A table of coefficients to be written; with `odds_ratios`, its intervals are those of the odds ratios."""

    def __init__(self, found: Coefficients, *, odds_ratios: bool = False) -> None:
        if odds_ratios and not found.has_odds:
            raise ParameterError("odds ratios must be of classes, and the model predicts a number")
        self.found, self.odds_ratios = found, odds_ratios

    @property
    def lines(self) -> Iterator[Coefficient]:
        for line in self.found:
            yield replace(line, low=_exp(line.low), high=_exp(line.high)) if self.odds_ratios else line

    @property
    def headings(self) -> tuple[str, ...]:
        odds = ("odds_ratio",) if self.found.has_odds else ()
        ends = ("odds_low", "odds_high") if self.odds_ratios else ("low", "high")
        return ("term", "coef", "std_err", "z", "p_value", *odds, *ends, "noise")

    def format_line(self, line: Coefficient) -> tuple[str, ...]:
        """Format a line as statisticians expect: as many decimals as its standard error has three digits."""
        error = line.std_err
        odds_error = error * (line.odds_ratio or 1.0)
        odds = () if line.odds_ratio is None else (_format_by_error(line.odds_ratio, odds_error),)
        ends = (_format_by_error(one, odds_error if self.odds_ratios else error) for one in (line.low, line.high))
        share = f"{100 * line.noise_share:.0f} %"
        tested = (f"{line.z:.2f}", "<0.001" if line.p_value < 0.001 else f"{line.p_value:.3f}")
        estimate = (_format_by_error(one, error) for one in (line.coef, error))
        return (line.term, *estimate, *tested, *odds, *ends, share)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What must be known to read the table, as pairs of name and text."""
        found, model = self.found, self.found.model
        robust = model.inference is not None and model.inference.outer_products is not None
        what = "odds ratio" if self.odds_ratios else "parameter"
        holds = "of the best model of this form, whether or not it holds" if robust else "of the model, if it holds"
        facts = [
            ("outcome", model.schema.target.describe_scores(model.certificate.problem.loss)),
            ("rows", f"{model.certificate.rows:,}"),
            ("intervals", f"{100 * found.level:g} %: each covers the {what} {holds}; rows and noise are in it"),
            ("errors", "robust (sandwich)" if robust else "by the model (inverse Hessian)"),
        ]
        if found.references:
            against = ", ".join(f"{name}: {value}" for name, value in found.references.items())
            facts.append(("reference", against))
        missing = "a number counts as its mean, which is noisy"
        missing += ", a category as the reference, and so does an undeclared one" if found.references else ""
        facts.append(("missing", f"{missing}; a row without a label is ignored"))
        for test in found.joint_tests:
            sign = " < 0.001" if test.p_value < 0.001 else f" = {test.p_value:.3f}"
            said = f"chi2({test.degrees}) = {test.statistic:.2f}, p{sign}"
            facts.append(("joint test", f"{test.column}: {said}"))
        if found.warning is not None:
            facts.append(("caution", found.warning))
        return [*facts, ("width", self._describe_width()), ("privacy", model.certificate.guarantee())]

    def _describe_width(self) -> str:
        if self.found.model.certificate.training_noise is None:
            return "no noise was added"
        shares = [line.noise_share for line in self.found]
        low, high = (1.0 / math.sqrt(max(1.0 - share, 1e-12)) for share in (min(shares), max(shares)))
        mostly = sum(share >= MOSTLY_NOISE for share in shares)
        why = "few rows, not noise, make intervals wide" if not mostly else "noise, not few rows, makes intervals wide"
        if 0 < mostly < len(shares):
            why = f"noise is what makes {mostly} of {len(shares)} intervals wide, and few rows the others"
        return f"{low:.2f} to {high:.2f} times that without noise; {why} (noise: its share of the variance)"

    def write_text(self) -> str:
        """Write an aligned table with its facts below."""
        rows = [self.headings, *map(self.format_line, self.lines)]
        rows = [(make_printable(row[0], longest=MAX_TERM), *row[1:]) for row in rows]
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        written = [
            "  ".join(
                [row[0].ljust(widths[0]), *(one.rjust(wide) for one, wide in zip(row[1:], widths[1:], strict=True))]
            )
            for row in rows
        ]
        facts = [f"{name:<10}  {make_printable(text, longest=5000)}" for name, text in self.facts]
        return "\n".join([*written, "", *facts]) + "\n"

    def write_csv(self) -> str:
        """Write all digits, with a heading."""
        written = io.StringIO()
        writer = csv.writer(written, lineterminator="\n")
        lines = [asdict(line) for line in self.lines]
        ends = {"low": "odds_low", "high": "odds_high"} if self.odds_ratios else {}
        writer.writerow(ends.get(name, name) for name in lines[0])
        writer.writerows(line.values() for line in lines)
        return written.getvalue()

    def write_json(self) -> str:
        """Write all digits, joint tests and facts."""
        record: dict[str, Any] = self.found.to_dict() | {"coefficients": [asdict(line) for line in self.lines]}
        record |= {"interval_of": "odds ratio" if self.odds_ratios else "coefficient", "facts": dict(self.facts)}
        return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def write_latex(self) -> str:
        """Write a table that needs no package, with its facts in the caption."""
        rows = [" & ".join(map(_escape_latex, row)) + r" \\" for row in map(self.format_line, self.lines)]
        facts = [
            f"{name.capitalize()}: {text.removesuffix('.')}." for name, text in self.facts if name not in LONG_FACTS
        ]
        head = " & ".join(map(_escape_latex, self.headings)) + r" \\"
        return "\n".join(
            [
                r"\begin{table}",
                rf"\begin{{tabular}}{{l{'r' * (len(self.headings) - 1)}}}",
                *(r"\hline", head, r"\hline", *rows, r"\hline"),
                r"\end{tabular}",
                rf"\caption{{{_escape_latex(' '.join(facts))}}}",
                r"\end{table}" + "\n",
            ]
        )

    def write_html(self) -> str:
        """Write a page of its own, with a forest plot beside the terms."""
        found, model = self.found, self.found.model
        plot = _ForestPlot(found)
        head = "".join(f"<th>{escape_text(one)}</th>" for one in self.headings)
        rows = ""
        for line, shown in zip(found, map(self.format_line, self.lines), strict=True):
            cells = "".join(f"<td>{escape_text(one, MAX_TERM)}</td>" for one in shown)
            rows += f"<tr>{cells}{plot.draw_line(line)}</tr>"
        rows += f'<tr><td colspan="{len(self.headings)}"></td><td>{plot.draw_axis()}</td></tr>'
        guarantee = f'<p class="{choose_guarantee_class(model)}">{escape_text(model.certificate.guarantee(), 5000)}</p>'
        head += f"<th>{escape_text(plot.title)}</th>"
        table = f'<div class="wide"><table class="numbers"><tr>{head}</tr>{rows}</table></div>'
        title = f"Coefficients of {escape_text(model.schema.label)}"
        return write_document(title, f"{guarantee}{table}{write_facts(self.facts[:-1], 5000)}")


class _ForestPlot:
    """The drawings of all intervals but the intercept's, on one scale of their own.

    A number's coefficient is drawn per step of about one standard deviation of the column, as released.
    """

    def __init__(self, found: Coefficients) -> None:
        self._found, self._steps = found, _choose_steps(found)
        drawn = [line for line in found if line.term in self._steps]
        ends = sorted(max(abs(line.low), abs(line.high)) * self._steps[line.term] for line in drawn)
        self._reach = min(ends[-1], MAX_REACH * ends[3 * (len(ends) - 1) // 4]) or 1.0
        self.title = f"odds ratio, {100 * found.level:g} %" if found.has_odds else f"coef, {100 * found.level:g} %"

    def _compute_x(self, value: float) -> float:
        """Return the horizontal position of a value in the drawing, at most that of an end of the axis."""
        return PLOT / 2 * (1.0 + min(max(value / self._reach, -1.0), 1.0)) + MARGIN

    def draw_line(self, line: Coefficient) -> str:
        """Draw the interval of a term as a cell; an end that is cut off has no tick."""
        step = self._steps.get(line.term)
        if step is None:
            return "<td></td>"
        middle, zero = LINE / 2, self._compute_x(0.0)
        low, high = (self._compute_x(end * step) for end in (line.low, line.high))
        inside = [end * step for end in (line.low, line.high) if abs(end * step) <= self._reach]
        ticks = "".join(f"M{self._compute_x(end):.1f} {middle - 4:g}v8" for end in inside)
        drawn = [
            f'<path class="axis" d="M{zero:.1f} 0V{LINE:g}"/>',
            f'<path class="line" d="M{low:.1f} {middle:g}H{high:.1f}{ticks}"/>',
            f'<circle class="bar" cx="{self._compute_x(line.coef * step):.1f}" cy="{middle:g}" r="4"/>',
        ]
        per = "" if step == 1.0 else f"<br/>per {format_number(step)}"
        return f"<td>{draw_svg(line.term, PLOT + 2 * MARGIN, LINE, *drawn)}{per}</td>"

    def draw_axis(self) -> str:
        """Draw the axis, with odds ratios on a scale of their logarithms."""
        ticks = [tick / 2 * self._reach for tick in (-2, -1, 0, 1, 2)]
        odds = self._found.has_odds
        texts = [draw_text(self._compute_x(at), 14, f"{_exp(at) if odds else at:.3g}", "middle") for at in ticks]
        line = f'<path class="axis" d="M{MARGIN:g} 1H{MARGIN + PLOT:g}"/>'
        return draw_svg("axis", PLOT + 2 * MARGIN, LINE, line, *texts)


def _choose_steps(found: Coefficients) -> dict[str, float]:
    """Return the change of each term's column that is drawn: 1 for a category, else 1, 2 or 5 times a power of ten."""
    schema = found.model.schema
    assert schema.standardization is not None  # of every training for inference
    steps: dict[str, float] = {}
    for scaled in schema.encoding.scaled_rules:
        low, high = scaled.rule.bounds
        for place, factor in enumerate(scaled.original_units[1].tolist()):
            number = place < scaled.rule.number_count and high - low != 1
            deviation = 1.0 / (factor * schema.standardization.clip_norm) if number else 1.0
            steps[found.terms[len(steps)]] = _round_to_step(deviation)
    return steps


def _round_to_step(value: float) -> float:
    """Round to 1, 2 or 5 times a power of ten.

    >>> [_round_to_step(value) for value in (17.0, 0.9, 340.0)]
    [20.0, 1.0, 500.0]
    """
    power = 10.0 ** math.floor(math.log10(value))
    return float(f"{min((1, 2, 5, 10), key=lambda one: abs(math.log(value / power / one))) * power:.3g}")


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def _format_by_error(value: float, error: float) -> str:
    """Format a number with as many decimals as its standard error needs for three digits.

    >>> _format_by_error(0.041619, 0.00146), _format_by_error(-1234.56, 250.0), _format_by_error(3e9, 1.0)
    ('0.04162', '-1235', '3e+09')
    """
    decimals = max(0, 2 - math.floor(math.log10(error))) if error > 0 else 3
    if abs(value) >= LARGE or decimals > MAX_DECIMALS:
        return f"{value:.4g}"
    return f"{value:.{decimals}f}"


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(one, one) for one in make_printable(text, longest=5000))


#: The function that writes each format.
WRITERS: dict[str, Callable[[CoefficientTable], str]] = {
    "text": CoefficientTable.write_text,
    "csv": CoefficientTable.write_csv,
    "json": CoefficientTable.write_json,
    "latex": CoefficientTable.write_latex,
    "html": CoefficientTable.write_html,
}
#: The format of a file by the end of its name.
ENDINGS = {".txt": "text", ".csv": "csv", ".json": "json", ".tex": "latex", ".html": "html"}
