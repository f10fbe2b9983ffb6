from __future__ import annotations

from typing import Any

import click

from boltdp._files.outputs import write_text
from boltdp.cli._command_group import command
from boltdp.cli._options import FILE, file_option, json_option, load_model
from boltdp.cli._report import describe_decision_threshold
from boltdp.cli._terminal import can_encode, emit, emit_guarantee, emit_json, emit_table
from boltdp.errors import make_printable
from boltdp.export.effects import Effect, Effects, PairEffect, Panel, compute_effects
from boltdp.export.effects_page import write_effects_page
from boltdp.export.effects_plot import draw_effects
from boltdp.model import Model
from boltdp.schema.columns import Categorical

#: The number of characters of a bar on each side of 0.
HALF_WIDTH = 12
MAX_CATEGORIES = 12
#: How many effects of a pair of columns are printed.
MAX_CELLS = 4
#: The characters for an effect, for one that is not significant, and for 0; and the same in ASCII.
BLOCKS, LETTERS = ("█", "░", "│"), ("#", "-", "|")


@command(
    "boltdp show model.json",
    "boltdp show model.json --html model.html --picture model.png",
    "boltdp show model.json --json",
)
@click.argument("model_path", metavar="MODEL", type=FILE)
@file_option("--html", help="Write a page that needs nothing else, with a drawing of each column.")
@file_option("--picture", help="Draw a .png or .svg file; needs `pip install 'boltdp[plot]'`.")
@click.option(
    "--top", type=click.IntRange(min=1), default=20, show_default=True, help="How many columns, for each class."
)
@json_option
def show(model_path: str, *, html: str | None, picture: str | None, top: int, as_json: bool) -> None:
    """Show what each column of MODEL does to its prediction, in the units of the column, largest effects first.

    The effect of a value is how much it changes the margin (for a logistic model the log odds) or the predicted number,
    compared with a value that is missing. Beside it is the standard deviation of the noise in it, or a bound on that.
    Columns whose effects cannot be distinguished from noise come last, in grey.

    Only MODEL is read, and no data: whatever is shown costs no privacy.
    """
    model = load_model(model_path, verify=True)
    found = compute_effects(model)
    if html is not None:
        write_text(html, write_effects_page(model, found, list_facts(model, found), top=top))
    if picture is not None:
        draw_effects(model, found, picture, top=top)
    if as_json:
        emit_json(_make_effects_record(model, found))
        return
    emit_guarantee(model.certificate.guarantee(), private=model.certificate.private)
    written = [(kind, path) for kind, path in (("page", html), ("picture", picture)) if path is not None]
    emit_table([*list_facts(model, found), *written])
    for panel in found.panels:
        emit("")
        if len(found.panels) > 1:
            emit(f"{make_printable(panel.favours)}:")
        _emit_effects(panel, top, found.noise_name)
        if panel.pairs:
            _emit_pairs(panel, top, found.noise_name)
    if found.left_out:
        emit(f"\n{found.left_out:,} classes more are not shown")


def list_facts(model: Model, found: Effects) -> list[tuple[str, str]]:
    """List the facts about a model that are shown below its guarantee, as pairs of name and text."""
    certificate, schema = model.certificate, model.schema
    effect = f"{found.unit}, compared with a missing value"
    if schema.standardization is not None or schema.row_norm < schema.largest_norm:
        effect += "; less for rows longer than the clip norm, all effects alike"
    center = "the middle of its bounds"
    if schema.standardization is not None:
        center = "the noisy mean" if schema.standardization.source == "private" else "the declared centre"
        center += " of its column"
    has_references = any(isinstance(one, Categorical) and one.reference is not None for one in schema.columns)
    category = (
        "the reference of its column, or none if there is no reference" if has_references else "none of its column"
    )
    return [
        ("rows", f"{certificate.rows:,}"),
        ("algorithm", certificate.algorithm),
        *([] if model.trained_where is None else [("trained", model.trained_where)]),
        *describe_decision_threshold(model),
        ("effects", effect),
        ("missing", f"a missing number counts as {center}, a missing category as {category}"),
        ("noise", found.noise),
        ("significant", found.significance),
    ]


def _emit_effects(panel: Panel, top: int, noise_name: str) -> None:
    """Print the table of the columns' effects on one class, those that are not significant last."""
    shown = panel.effects[:top]
    reach = max((abs(value) for one in shown if one.kind != "vector" for value in one.effects), default=0.0) or 1.0
    full, light, zero = BLOCKS if can_encode("".join(BLOCKS)) else LETTERS
    lines: list[tuple[str, ...]] = []
    for number, effect in enumerate(shown):
        if not effect.significant and (number == 0 or shown[number - 1].significant):
            lines.append(("NOT SIGNIFICANT:", "", "", "", ""))
        name = make_printable(effect.name, longest=40)
        if effect.kind == "vector":
            norm = f"{effect.difference:.3g}"
            lines.append((name, "length of its weights", norm, _format_noise(effect.deviation), ""))
            continue
        points = _list_shown_values(effect)
        for index, (place, value, noise) in enumerate(points):
            bar = _draw_bar(value / reach, full if effect.significant else light, zero)
            lines.append((name if index == 0 else "", place, f"{value:+.3g}", _format_noise(noise), bar))
        left = len(effect.labels) - len(points)
        if left > 0:
            lines.append(("", f"and {left:,} with smaller effects", "", "", ""))
    if panel.constant is not None:
        lines.append(("all missing", "", f"{panel.constant:+.3g}", _format_noise(panel.constant_deviation), ""))
    emit_table(lines, header=("column", "at", "effect", noise_name, ""))
    if len(panel.effects) > top:
        emit(f"{len(panel.effects) - top:,} more columns: --top shows them")


def _emit_pairs(panel: Panel, top: int, noise_name: str) -> None:
    """Print the table of the largest effects of each pair of columns, beyond those of the two columns."""
    lines: list[tuple[str, ...]] = []
    for number, pair in enumerate(panel.pairs[:top]):
        if not pair.significant and (number == 0 or panel.pairs[number - 1].significant):
            lines.append(("NOT SIGNIFICANT:", "", "", "", ""))
        for index, (row, column, value, noise) in enumerate(pair.list_cells()[:MAX_CELLS]):
            name = make_printable(pair.name, longest=60) if index == 0 else ""
            places = (make_printable(one, longest=40) for one in (row, column))
            lines.append((name, *places, f"{value:+.3g}", _format_noise(noise)))
    emit("")
    emit_table(lines, header=("pair of columns", "at", "and", "effect beyond both", noise_name))
    if len(panel.pairs) > top:
        emit(f"{len(panel.pairs) - top:,} more pairs: --top shows them")


def _list_shown_values(effect: Effect) -> list[tuple[str, float, float | None]]:
    if effect.kind == "number":
        places = [place for place, _, _ in effect.corners]
        points = []
        for at, (place, value, noise) in enumerate(effect.corners):
            # A step has two points: just below it, and at it.
            side = "below " if place in places[at + 1 :] else "from " if place in places[:at] else ""
            points.append((f"{side}{place:.6g}", value, noise))
        return points
    noises = effect.deviations or (None,) * len(effect.effects)
    return [
        (make_printable(effect.labels[index], longest=40), effect.effects[index], noises[index])
        for index in effect.find_largest_categories(MAX_CATEGORIES)
    ]


def _draw_bar(share: float, character: str, zero: str) -> str:
    """Draw a bar from 0 to an effect, which is a share of the largest one."""
    size = round(abs(share) * HALF_WIDTH)
    left = character * size if share < 0 else ""
    return left.rjust(HALF_WIDTH) + zero + (character * size if share > 0 else "")


def _format_noise(deviation: float | None) -> str:
    return "" if not deviation else f"{deviation:.2g}"


def _make_effects_record(model: Model, found: Effects) -> dict[str, Any]:
    certificate = model.certificate
    return {
        "guarantee": certificate.guarantee(),
        "private": certificate.private,
        "epsilon": certificate.budget.epsilon if certificate.budget else None,
        "delta": certificate.budget.delta if certificate.budget else None,
        "rows": certificate.rows,
        "algorithm": certificate.algorithm,
        **model.schema.target.to_dict(),
        "threshold": model.threshold,
        "unit": found.unit,
        "noise": {"said": found.noise, "known": found.spread is not None, "exact": found.exact},
        "significance": found.significance,
        "panels": [
            {
                "favours": panel.favours,
                "constant": panel.constant,
                "constant_deviation": panel.constant_deviation,
                "columns": [_make_column_record(effect) for effect in panel.effects],
                **({"pairs": [_make_pair_record(pair) for pair in panel.pairs]} if panel.pairs else {}),
            }
            for panel in found.panels
        ],
    }


def _make_pair_record(pair: PairEffect) -> dict[str, Any]:
    return {
        "pair": [*pair.columns],
        "importance": pair.importance,
        "significant": pair.significant,
        "points": [
            {"at": [row, column], "effect": value, "deviation": noise}
            for row, column, value, noise in pair.list_cells()
        ],
    }


def _make_column_record(effect: Effect) -> dict[str, Any]:
    record: dict[str, Any] = {
        "column": effect.name,
        "kind": effect.kind,
        "importance": effect.importance,
        "difference": effect.difference,
        "deviation": effect.deviation,
        "significant": effect.significant,
    }
    if effect.kind != "vector":
        noises = effect.deviations or (None,) * len(effect.effects)
        points = effect.corners if effect.kind == "number" else zip(effect.labels, effect.effects, noises, strict=True)
        record["points"] = [{"at": at, "effect": value, "deviation": noise} for at, value, noise in points]
    return record
