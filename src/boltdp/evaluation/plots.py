"""An evaluation as a picture, by matplotlib, which is optional."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from boltdp._files import check_writable, replacing
from boltdp.encoding.values import format_value
from boltdp.errors import ParameterError, printable

if TYPE_CHECKING:
    from boltdp.evaluation.metrics import Evaluation

ENDINGS = (".png", ".svg", ".pdf")
#: Curves in one drawing, and classes whose numbers are written in the confusion matrix, at most.
MOST_CURVES, MOST_WRITTEN = 10, 12
#: Bars of the histogram.
BARS = 50
#: Of the first curve, of what is not so, and of lines and frames.
BLUE, ORANGE, GREY = "#2563a8", "#d9822b", "#8a8f98"


def check_picture(path: str | Path) -> None:
    """Refuse a picture that could not be drawn, before anything is computed for it."""
    if Path(path).suffix not in ENDINGS:
        raise ParameterError(f"a picture must end in {', '.join(ENDINGS)}, got {str(path)!r}")
    check_writable(str(path))
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise ParameterError(
            "a picture needs matplotlib, which is not installed", hint="install it with `pip install 'boltdp[plot]'`"
        )


def draw(evaluation: Evaluation, path: str | Path) -> None:
    """Save a picture of the curves, the calibration, the scores and the confusion matrix."""
    check_picture(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "figure.constrained_layout.w_pad": 0.12,
        "figure.constrained_layout.h_pad": 0.12,
        "font.size": 9,
        "axes.titlesize": 10.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": GREY,
        "axes.grid": True,
        "grid.color": "#e6e8eb",
        "axes.axisbelow": True,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "svg.fonttype": "none",
    }
    with rc_context(style):
        figure = Figure(figsize=(12.5, 7.4), layout="constrained")
        (roc, recall, figures), (calibration, histogram, confusion) = figure.subplots(2, 3)
        _draw_roc(roc, evaluation)
        _draw_recall(recall, evaluation)
        _write_figures(figures, evaluation)
        _draw_reliability(calibration, evaluation)
        _draw_histogram(histogram, evaluation)
        _draw_confusion(confusion, evaluation)
        with replacing(path) as aside, warnings.catch_warnings():
            # A character that the font does not have is drawn as a box.
            warnings.simplefilter("ignore", UserWarning)
            figure.savefig(aside, dpi=150, format=Path(path).suffix[1:])


def _names(evaluation: Evaluation) -> list[str]:
    """As they are drawn: a name is no formula, whatever it looks like."""
    return [printable(format_value(value), longest=24).replace("$", r"\$") for value in evaluation.classes]


def _curves(evaluation: Evaluation) -> list[tuple[str, Any, Any]]:
    """Name, colour and scores of the classes whose curves are drawn: the most frequent, in the order of all."""
    names, two = _names(evaluation), len(evaluation.classes) == 2
    if two:
        return [(names[1], BLUE, evaluation.by_class[1])] if evaluation.by_class[1].curve.both else []
    there = [place for place, one in enumerate(evaluation.by_class) if one.curve.both]
    frequent = sorted(there, key=lambda place: -evaluation.by_class[place].rows)[:MOST_CURVES]
    return [(names[place], f"C{index}", evaluation.by_class[place]) for index, place in enumerate(sorted(frequent))]


def _draw_roc(axes: Any, evaluation: Evaluation) -> None:
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, linestyle="--")
    for name, colour, one in _curves(evaluation):
        curve = one.curve
        points = np.concatenate([[0], 1 + curve.points(1000)])
        axes.plot(
            curve.false_rate[points],
            curve.true_rate[points],
            color=colour,
            linewidth=1.8,
            label=f"{name}: area {curve.area:.3f}",
        )
    _mark_decision(axes, evaluation, "roc")
    _square(axes, "ROC curve", "false positive rate", "true positive rate", legend="lower right")


def _draw_recall(axes: Any, evaluation: Evaluation) -> None:
    curves = _curves(evaluation)
    for name, colour, one in curves:
        curve = one.curve
        points = curve.points(1000)
        recall, precision = curve.true_rate[1:][points], curve.precision[points]
        axes.plot(
            np.concatenate([[0.0], recall]),
            np.concatenate([precision[:1], precision]),
            color=colour,
            linewidth=1.8,
            label=f"{name}: average precision {curve.average_precision:.3f}",
        )
        if len(curves) == 1:
            axes.axhline(one.rows / evaluation.rows, color=GREY, linewidth=0.9, linestyle="--")
    _mark_decision(axes, evaluation, "recall")
    _square(axes, "Precision and recall", "recall", "precision", legend="lower left")


def _mark_decision(axes: Any, evaluation: Evaluation, which: str) -> None:
    """Where the model decides, of two classes."""
    if len(evaluation.classes) != 2 or not evaluation.by_class[1].curve.both:
        return
    true_no, false_yes = evaluation.confusion[0]
    second = evaluation.by_class[1]
    if which == "recall" and second.precision is None:
        return
    place = (false_yes / (true_no + false_yes), second.recall) if which == "roc" else (second.recall, second.precision)
    threshold = 0.5 if evaluation.threshold is None else evaluation.threshold
    said = "where it decides" if evaluation.log_loss is None else f"threshold {threshold:g}"
    axes.plot(*place, "o", color=ORANGE, markersize=6.5, markeredgecolor="white", label=said, zorder=5)


def _draw_reliability(axes: Any, evaluation: Evaluation) -> None:
    table = evaluation.reliability
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, linestyle="--")
    if table is None:
        axes.text(0.5, 0.5, "this loss gives no probabilities", ha="center", va="center", color=GREY)
    else:
        wide = table.high - table.low
        axes.bar(table.low, table.rows / table.rows.sum(), width=wide, align="edge", color="#dbe6f2", zorder=1)
        axes.plot(table.mean_probability, table.share, color=BLUE, linewidth=1.3, zorder=3)
        deviation = np.sqrt(table.share * (1.0 - table.share) / table.rows)
        axes.errorbar(
            table.mean_probability,
            table.share,
            yerr=2.0 * deviation,
            fmt="o",
            color=BLUE,
            markersize=4.5,
            elinewidth=1.0,
            zorder=4,
            label=f"calibration error {table.error:.3f}",
        )
    two = len(evaluation.classes) == 2
    of = f"probability of {_names(evaluation)[1]}" if two else "probability of the likeliest class"
    _square(axes, "Calibration", of, "observed share (bars: share of rows)", legend="upper left")


def _draw_histogram(axes: Any, evaluation: Evaluation) -> None:
    two, names = len(evaluation.classes) == 2, _names(evaluation)
    if evaluation.histogram is not None:
        rows = evaluation.histogram.reshape(2, BARS, -1).sum(axis=2)
        edges = np.arange(BARS + 1) / BARS
        label = f"probability of {names[1]}" if two else "probability of the likeliest class"
        axes.set_xlim(0, 1)
    else:
        curve = evaluation.by_class[-1].curve
        edges = np.linspace(curve.scores.min(), np.nextafter(curve.scores.max(), np.inf), BARS + 1)
        counts = (np.diff(curve.outside, prepend=0), np.diff(curve.inside, prepend=0))
        rows = np.array([np.histogram(curve.scores, edges, weights=each)[0] for each in counts])
        label = f"margin of {names[-1]}"
    said = (names[0], names[1]) if two else ("wrong", "right")
    if evaluation.histogram is None and not two:
        said = ("other classes", names[-1])
    axes.bar(edges[:-1], rows[0], width=np.diff(edges), align="edge", color=ORANGE, alpha=0.6, label=said[0])
    axes.bar(edges[:-1], rows[1], width=np.diff(edges), align="edge", color=BLUE, alpha=0.6, label=said[1])
    if two and evaluation.log_loss is not None:
        axes.axvline(0.5 if evaluation.threshold is None else evaluation.threshold, color=GREY, linewidth=1.2)
    axes.set_title("Scores by true class" if two else "Scores of right and wrong predictions")
    axes.set(xlabel=label, ylabel="rows")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    # Room for the names above the bars.
    axes.set_ylim(0.0, 1.15 * max(float(rows.max()), 1.0))
    axes.legend(loc="upper center", ncols=2)


def _draw_confusion(axes: Any, evaluation: Evaluation) -> None:
    names, counts = _names(evaluation), evaluation.confusion
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.grid(visible=False)
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0)
    axes.set_title("Confusion matrix")
    axes.set(xlabel="predicted class", ylabel="true class")
    if len(names) > MOST_WRITTEN:
        return
    axes.set_xticks(range(len(names)), names, rotation=30 if max(map(len, names)) > 6 and len(names) > 4 else 0)
    axes.set_yticks(range(len(names)), names)
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            text = f"{count:,}\n{100 * shares[i, j]:.0f} %" if len(names) <= 5 else f"{count:,}"
            colour = "white" if shares[i, j] > 0.55 else "#1f2933"
            axes.text(j, i, text, ha="center", va="center", color=colour, fontsize=9 if len(names) <= 6 else 7)


def _write_figures(axes: Any, evaluation: Evaluation) -> None:
    """The figures themselves, as a table."""
    axes.set_axis_off()
    axes.set_title(f"{evaluation.rows:,} rows", loc="left")
    lines = [(name, f"{score:.4f}") for name, score in evaluation.scores.items() if score is not None]
    if evaluation.rows_without_class:
        lines.append(("rows left out: no declared class", f"{evaluation.rows_without_class:,}"))
    for place, (name, figure) in enumerate(lines):
        height = 0.93 - 0.1 * place
        axes.text(0.0, height, name, transform=axes.transAxes, color="#3b4350", fontsize=10)
        axes.text(0.92, height, figure, transform=axes.transAxes, ha="right", fontsize=10, fontweight="bold")
    said = "Computed from the rows without noise:\nno model's promise covers it."
    axes.text(0.0, 0.0, said, transform=axes.transAxes, color=GREY, fontsize=8.5, va="bottom")


def _square(axes: Any, title: str, across: str, up: str, *, legend: str) -> None:
    axes.set_title(title)
    axes.set(xlabel=across, ylabel=up, xlim=(-0.015, 1.015), ylim=(-0.015, 1.03))
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc=legend)
