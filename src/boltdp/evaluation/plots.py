"""Charts of an evaluation with exact or noisy counts, by matplotlib."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from boltdp._array_types import Doubles
from boltdp._charts import BLUE, GREY, ORANGE, draw_diagonal, draw_dot, escape_label, label_axes, save_figure
from boltdp.evaluation.class_statistics import ClassFigures, ClassStatistics
from boltdp.evaluation.evaluation import Evaluation
from boltdp.evaluation.metrics import Curve
from boltdp.evaluation.number_statistics import NumberStatistics

#: Maximum number of curves in one chart, and of classes with numbers in the confusion matrix.
MAX_CURVES, MAX_WRITTEN = 10, 12
BARS = 50
#: The share of rows with the lowest and the highest numbers that a chart may leave out.
HIDDEN_SHARE = 0.002


def draw_class_evaluation(evaluation: Evaluation, found: ClassStatistics, path: str | Path) -> None:
    """Save a picture of the curves, the calibration, the scores and the confusion matrix."""
    with save_figure(path, rows=2, columns=3, size=(12.5, 7.4)) as (_, axes):
        (roc, recall, figures), (calibration, histogram, confusion) = axes
        _draw_roc(roc, found)
        _draw_precision_recall(recall, found)
        _write_metrics(figures, evaluation)
        _draw_calibration(calibration, found)
        _draw_histogram(histogram, found)
        _draw_confusion(confusion, found)


def draw_number_evaluation(evaluation: Evaluation, found: NumberStatistics, path: str | Path) -> None:
    """Save a picture of true against predicted numbers, of the errors, and of the figures."""
    with save_figure(path, rows=2, columns=2, size=(10.0, 7.4)) as (_, axes):
        (truth, figures), (errors, histogram) = axes
        predictions, edges = found.bins.predictions.edges, found.bins.errors.edges
        rows = (found.cells * found.counts.table).sum(axis=0)
        rows = np.where(rows > 2.0 * found.counts.noise * math.sqrt(len(evaluation.groups)), rows, 0.0)
        across = _select_range(predictions, rows.sum(axis=1))
        # A cell of predictions and errors is a parallelogram of predictions and labels.
        corners = np.broadcast_to(predictions[:, None], (len(predictions), len(edges)))
        _draw_density(truth, corners, corners - edges, rows)
        ends = (found.bins.low, found.bins.high)
        truth.plot(ends, ends, color=GREY, linewidth=0.9, linestyle="--")
        order = np.argsort(found.bins.label_values, axis=None)
        up = _select_range(found.bins.label_values.ravel()[order], rows.ravel()[order])
        truth.set(xlim=across, ylim=up)
        label_axes(truth, "True against predicted", "predicted", "true")
        _draw_density(errors, corners, np.broadcast_to(edges, corners.shape), rows)
        errors.axhline(0.0, color=GREY, linewidth=0.9, linestyle="--")
        limits = _select_range(edges, rows.sum(axis=0))
        errors.set(xlim=across, ylim=limits)
        label_axes(errors, "Errors by prediction", "predicted", "predicted less true")
        widths = np.diff(edges)
        histogram.bar(edges[:-1], rows.sum(axis=0) / widths, width=widths, align="edge", color=BLUE, alpha=0.6)
        histogram.axvline(0.0, color=GREY, linewidth=1.2)
        histogram.set_xlim(limits)
        label_axes(histogram, "Errors", "predicted less true", "rows per unit")
        _write_metrics(figures, evaluation)


def _draw_density(axes: Any, x: Doubles, y: Doubles, rows: Doubles) -> None:
    """Draw cells by their corners, darker where there are more rows per area."""
    sides = np.diff(x, axis=0)[:, :-1] * np.abs(np.diff(y, axis=1))[:-1]
    density = np.sqrt(rows / sides)
    axes.pcolormesh(x, y, density, cmap="Blues", vmin=0.0, vmax=float(density.max()) or 1.0, rasterized=True)


def _select_range(edges: Doubles, rows: Doubles) -> tuple[float, float]:
    """Return the edges between which nearly all rows are."""
    reached = np.cumsum(rows) / (rows.sum() or 1.0)
    first, last = np.searchsorted(reached, (HIDDEN_SHARE, 1.0 - HIDDEN_SHARE))
    return float(edges[first]), float(edges[min(last + 1, len(edges) - 1)])


def _select_curves(found: ClassStatistics) -> list[tuple[str, Curve, ClassFigures]]:
    """Return colour, curve and metrics of the most frequent classes, in the order of the classes."""
    drawn = found.by_class[1:] if found.is_binary else found.by_class
    there = [one for one in drawn if one.curve is not None and one.curve.has_both_classes]
    frequent = sorted(there, key=lambda one: -_get_score(one, "rows"))[:MAX_CURVES]
    colours = [BLUE] if found.is_binary else [f"C{index}" for index in range(MAX_CURVES)]
    kept = [one for one in there if one in frequent]
    return [(colour, one.curve, one) for colour, one in zip(colours, kept, strict=False) if one.curve is not None]


def _draw_roc(axes: Any, found: ClassStatistics) -> None:
    draw_diagonal(axes)
    for colour, curve, one in _select_curves(found):
        points = np.concatenate([[0], 1 + curve.select_points(1000)])
        label = f"{escape_label(one.name)}: area {_get_score(one, 'area under the curve'):.3f}"
        across, up = curve.false_positive_rate[points], curve.true_positive_rate[points]
        axes.plot(across, up, color=colour, linewidth=1.8, label=label)
    if not _select_curves(found):
        _write_note(axes, "no curve is known")
    first, second = (_get_score(one, "recall") for one in found.by_class[:2])
    if found.is_binary and math.isfinite(first + second):
        draw_dot(axes, 1.0 - first, second, _describe_threshold(found))
    label_axes(axes, "ROC curve", "false positive rate", "true positive rate", legend="lower right", shares=True)


def _draw_precision_recall(axes: Any, found: ClassStatistics) -> None:
    curves = _select_curves(found)
    for colour, curve, one in curves:
        points = curve.select_points(1000)
        recall, precision = curve.true_positive_rate[1:][points], curve.precision[points]
        precise = one.scores["average precision"]
        known = "" if precise is None else f": average precision {precise.value:.3f}"
        label = f"{escape_label(one.name)}{known}"
        axes.plot([0.0, *recall], [*precision[:1], *precision], color=colour, linewidth=1.8, label=label)
        if len(curves) == 1:
            share = curve.inside[-1] / (curve.inside[-1] + curve.outside[-1])
            axes.axhline(share, color=GREY, linewidth=0.9, linestyle="--")
    if not curves:
        _write_note(axes, "no curve is known")
    across, up = (_get_score(found.by_class[1], name) for name in ("recall", "precision"))
    if found.is_binary and curves and math.isfinite(across + up):
        draw_dot(axes, across, up, _describe_threshold(found))
    label_axes(axes, "Precision and recall", "recall", "precision", legend="lower left", shares=True)


def _get_score(figures: ClassFigures, name: str) -> float:
    score = figures.scores[name]
    return math.nan if score is None else score.value


def _describe_threshold(found: ClassStatistics) -> str:
    threshold = 0.5 if found.threshold is None else found.threshold
    return f"threshold {threshold:g}" if found.probabilistic else "where it decides"


def _draw_calibration(axes: Any, found: ClassStatistics) -> None:
    draw_diagonal(axes)
    bins = found.calibration
    if not found.probabilistic:
        _write_note(axes, "this loss gives no probabilities")
    elif not bins:
        _write_note(axes, "no calibration is known")
    total = sum(one.rows.value for one in bins) or 1.0
    for one in bins:
        axes.bar(one.low, one.rows.value / total, width=one.high - one.low, align="edge", color="#dbe6f2", zorder=1)
    known = [
        (one.mean_probability if one.mean_probability is not None else 0.5 * (one.low + one.high), one.share)
        for one in bins
        if one.share is not None
    ]
    if known:
        places, shares = [place for place, _ in known], [share.value for _, share in known]
        reach = [[share.value - share.low for _, share in known], [share.high - share.value for _, share in known]]
        error = found.calibration_error
        label = "95 % interval" if error is None else f"calibration error {error:.3f}"
        axes.plot(places, shares, color=BLUE, linewidth=1.3, zorder=3)
        axes.errorbar(places, shares, reach, fmt="o", color=BLUE, markersize=4.5, elinewidth=1.0, zorder=4, label=label)
    of = escape_label(found.classes[1]) if found.is_binary else "the likeliest class"
    up = "observed share (bars: share of rows)"
    label_axes(axes, "Calibration", f"probability of {of}", up, legend="upper left", shares=True)


def _draw_histogram(axes: Any, found: ClassStatistics) -> None:
    scored, edges, last = found.scored, found.edges, found.classes[-1]
    names = (found.classes[0], last) if found.is_binary else ("wrong", "right")
    label = f"probability of {last if found.is_binary else 'the likeliest class'}"
    if not found.probabilistic:
        names, label = (names[0] if found.is_binary else "other classes", last), f"margin of {last}"
    title = "Scores by true class" if found.is_binary else "Scores of right and wrong predictions"
    label_axes(axes, title, escape_label(label, 60), "rows")
    if scored is None:
        _write_note(axes, "only errors are known")
        return
    rows = np.maximum(scored.table.sum(axis=0), 0)
    if len(edges) > BARS + 1:
        met = np.flatnonzero(rows.any(axis=0))
        start, stop = (0, -1) if found.probabilistic else (met[0], met[-1] + 1)
        bars = np.linspace(edges[start], edges[stop], BARS + 1)
        # By their middles, bins whose edge is the edge of a bar fall into one bar.
        middles = 0.5 * (edges[met] + edges[met + 1])
        rows, edges = np.array([np.histogram(middles, bars, weights=one[met])[0] for one in rows]), bars
    # The area of a bar is its number of rows, as bins may differ in width.
    widths = np.diff(edges)
    heights = rows * widths.mean() / widths
    for name, colour, height in zip(names, (ORANGE, BLUE), heights, strict=True):
        axes.bar(edges[:-1], height, width=widths, align="edge", color=colour, alpha=0.6, label=escape_label(name))
    if found.probabilistic:
        axes.set_xlim(0, 1)
        if found.is_binary:
            axes.axvline(0.5 if found.threshold is None else found.threshold, color=GREY, linewidth=1.2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    # Leave space for the legend above the bars.
    axes.set_ylim(0.0, 1.15 * max(1.0, float(heights.max())))
    axes.legend(loc="upper center", ncols=2)


def _draw_confusion(axes: Any, found: ClassStatistics) -> None:
    names, counts = [escape_label(name) for name in found.classes], found.confusion
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    label_axes(axes, "Confusion matrix", "predicted class", "true class")
    if counts is None:
        axes.set(xticks=[], yticks=[])
        _write_note(axes, "only errors are known")
        return
    shares = np.maximum(counts, 0) / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    if len(names) > MAX_WRITTEN:
        return
    axes.set_xticks(range(len(names)), names, rotation=30 if max(map(len, names)) > 6 and len(names) > 4 else 0)
    axes.set_yticks(range(len(names)), names)
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            text = f"{count:,.0f}\n{100 * shares[i, j]:.0f} %" if len(names) <= 5 else f"{count:,.0f}"
            colour = "white" if shares[i, j] > 0.55 else "#1f2933"
            axes.text(j, i, text, ha="center", va="center", color=colour, fontsize=9 if len(names) <= 6 else 7)


def _write_metrics(axes: Any, evaluation: Evaluation) -> None:
    axes.set_axis_off()
    axes.set_title(f"{evaluation.rows:,} rows", loc="left")
    lines = [(name, score.text) for name, score in evaluation.scores.items() if score is not None]
    lines += evaluation.statistics.describe_other_figures()
    if round(evaluation.rows_without_label.value):
        lines.append(
            (
                f"rows left out: no {evaluation.statistics.usable_label}",
                f"{evaluation.rows_without_label.value:,.0f}",
            )
        )
    for place, (name, figure) in enumerate(lines):
        height = 0.93 - min(0.1, 0.8 / len(lines)) * place
        axes.text(0.0, height, name, transform=axes.transAxes, color="#3b4350", fontsize=10)
        axes.text(0.92, height, figure, transform=axes.transAxes, ha="right", fontsize=10, fontweight="bold")
    said = evaluation.guarantee().replace(": ", ":\n", 1)
    axes.text(0.0, 0.0, said, transform=axes.transAxes, color=GREY, fontsize=8.5, va="bottom", wrap=True)


def _write_note(axes: Any, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", color=GREY, transform=axes.transAxes)
