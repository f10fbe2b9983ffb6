"""What a column does: against margins of rows that have a value and of rows that miss it."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest

from boltdp import Model
from boltdp._charts import MAX_BARS, MAX_NAME
from boltdp.encoding.plan import ScaledRule
from boltdp.engines import open_source
from boltdp.engines.base import encode_rows
from boltdp.errors import MissingPackageError, ParameterError, make_printable
from boltdp.export import effects as effects_module
from boltdp.export.effects import Effect, Effects, compute_effects
from boltdp.export.effects_page import write_effects_page
from boltdp.export.effects_plot import draw_effects
from boltdp.privacy.release_with_noise import Randomness, release_weights
from boltdp.privacy.weight_uncertainty import WeightDeviation, compute_weight_deviation
from boltdp.schema.schema import Categorical, Classes, Numeric, Projection, Schema, Standardization, Vector
from boltdp.settings import Settings
from boltdp.workflows.train import train
from tests.plans import plan_certificate

COLUMNS = (Numeric("age", 0, 80), Numeric("pulse", 30, 200), Categorical("ward", ("A", "B", 3)), Vector("v", 2, -1, 1))
STANDARDIZED = Standardization((0.2, -0.3, 0.1, 0.5, 0.2, 0.0, 0.4), (0.5, 1.0, 0.4, 1.0, 2.0, 1.0, 0.5), 9.0, 0.5)
SCHEMAS: dict[str, dict[str, Any]] = {
    "plain": {},
    "without an intercept": {"intercept": False},
    "standardized": {"standardization": STANDARDIZED},
    "projected": {"projection": Projection(dims=5, seed=3), "clip_norm": 50.0},
}
MISSING: dict[str, Any] = {"age": None, "pulse": None, "ward": None, "v": None}
TYPES = {"age": pa.float64(), "pulse": pa.float64(), "ward": pa.string(), "v": pa.list_(pa.float64())}


def made(settings: Settings, classes: int = 2, **changes: Any) -> Model:
    schema = Schema(Classes("y", tuple(range(classes))), COLUMNS, **changes)
    certificate = plan_certificate(settings, rows=10_000, dims=schema.dims, classes=classes)
    weights = np.random.default_rng(1).standard_normal(
        (certificate.model_count, certificate.problem.loss.vector_count, schema.dims)
    )
    return Model.from_release(schema, release_weights(weights, certificate, Randomness()), certificate)


def margins(model: Model, **cells: Any) -> Any:
    """Of one row with these cells, and the others missing."""
    row = MISSING | cells
    table = pa.table({name: pa.array([cell], TYPES[name]) for name, cell in row.items()})
    return next(iter(model.score_batches(open_source(table))))[0]


def column(found: Effects, name: str, panel: int = 0) -> Effect:
    (one,) = [effect for effect in found.panels[panel].effects if effect.name == name]
    return one


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize(
    ("classes", "settings"),
    [
        (2, Settings(epsilon=1.0)),
        (3, Settings(epsilon=1.0, algorithm="bolton")),
        (3, Settings(epsilon=1.0, multiclass="one-vs-all")),
    ],
)
def test_an_effect_is_what_a_value_does_to_the_margin(name: str, classes: int, settings: Settings) -> None:
    model = made(settings, classes, **SCHEMAS[name])
    found, nothing = compute_effects(model), margins(model)
    rounding = 1e-6 * float(np.abs(model.weights).sum())  # of cells, which are single floats
    assert [panel.favours for panel in found.panels] == ([*"012"] if classes == 3 else ["1"])
    for index, panel in enumerate(found.panels):
        assert (panel.constant is None) == (not model.schema.intercept)
        if panel.constant is not None and "standard" not in name:
            assert panel.constant == pytest.approx(nothing[index], rel=1e-5, abs=rounding)
        for number in ("age", "pulse"):
            effect = column(found, number, index)
            for place, value in zip(effect.places, effect.effects, strict=True):
                expected = margins(model, **{number: place})[index] - nothing[index]
                assert value == pytest.approx(expected, rel=1e-4, abs=rounding)
            assert effect.difference == pytest.approx(effect.effects[-1] - effect.effects[0])
        ward = column(found, "ward", index)
        assert ward.labels == ("A", "B", "3")
        expected = [margins(model, ward=label)[index] - nothing[index] for label in ward.labels]
        assert ward.effects == pytest.approx(expected, rel=1e-4, abs=rounding)
        assert ward.difference == pytest.approx(max(expected) - min(expected), rel=1e-4, abs=rounding)
        order = [(not effect.significant, -effect.importance) for effect in panel.effects]
        assert order == sorted(order)


PAIRED = (Numeric("age", 0, 80, curve=(10, 20, 40, 60)), Numeric("pulse", 30, 200), Categorical("ward", ("A", "B", 3)))


def make_paired(settings: Settings, classes: int = 2) -> Model:
    schema = Schema(Classes("y", tuple(range(classes))), PAIRED, pairs=(("age", "ward"), ("pulse", "age")))
    centers = np.random.default_rng(3).uniform(-0.2, 0.2, schema.column_feature_count).tolist()
    schema = replace(schema, standardization=Standardization((*centers,), (1.0,) * len(centers), 9.0, 0.5))
    certificate = plan_certificate(settings, rows=10_000, dims=schema.dims, classes=classes)
    shape = (certificate.model_count, certificate.problem.loss.vector_count, schema.dims)
    weights = np.random.default_rng(2).standard_normal(shape)
    return Model.from_release(schema, release_weights(weights, certificate, Randomness()), certificate)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_effect_of_a_pair_is_what_both_values_do_beyond_each(classes: int) -> None:
    model = make_paired(Settings(epsilon=1.0, algorithm="bolton"), classes)
    found, spread = compute_effects(model), compute_weight_deviation(model.certificate.training)
    assert spread is not None
    plan, first = model.schema.encoding, model.schema.column_feature_count
    numbers = {"below 10": 9, "10 to 40": 10, "40 to 60": 59.9, "from 60": 70}
    values: dict[str, dict[str, Any]] = {
        "age": numbers,
        "pulse": {"below 115": 114.0, "from 115": 115.0},
        "ward": {"A": "A", "B": "B", "3": "3"},
    }
    missing = {"age": None, "pulse": None, "ward": None}
    types = {"age": pa.float64(), "pulse": pa.float64(), "ward": pa.string()}

    def encode(**cells: Any) -> Any:
        table = pa.table({name: pa.array([cell], types[name]) for name, cell in (missing | cells).items()})
        (packed,) = encode_rows(open_source(table), model.schema, label=False)
        return plan.read_features(packed)[0, 1:]

    for weights, panel in zip(model.weights, found.panels, strict=True):
        assert {pair.columns for pair in panel.pairs} == {("age", "ward"), ("pulse", "age")}
        for pair in panel.pairs:
            one, other = pair.columns
            for row, column, effect, deviation in pair.list_cells():
                cells = {one: values[one][row], other: values[other][column]}
                alone = encode(**{one: cells[one]}) + encode(**{other: cells[other]}) - encode()
                beyond = encode(**cells) - alone
                assert np.abs(beyond[:first]).max() < 1e-15
                assert effect == pytest.approx(float(beyond @ weights), rel=1e-9)
                assert deviation == pytest.approx(spread.deviation * float(np.linalg.norm(beyond)), rel=1e-9)
            table = np.array(pair.effects)
            assert pair.importance == pytest.approx(np.ptp(table))
            assert pair.largest == np.abs(table).max() == abs(pair.list_cells()[0][2])


def test_pairs_are_drawn_as_heat_maps_with_a_description(tmp_path: Path) -> None:
    model = make_paired(Settings(epsilon=1.0))
    found = compute_effects(model)
    text = write_effects_page(model, found, [], top=1)
    reader = read(text)
    assert reader.tags <= TAGS
    assert text.count('<rect class="cell ') == 4 * 3
    assert "1 more pairs are not drawn" in reader.text
    labels = [value or "" for name, value in reader.attributes if name == "aria-label"]
    (label,) = [value for value in labels if value.startswith("Heat map of")]
    assert label.startswith("Heat map of what age and ward do together. Largest effect: age ")
    assert re.search(r"<title>age 10 to 40, ward A: [+-][0-9.]+, bound on noise std [0-9.]+</title>", text)
    assert "--under: #ffb27f" in text  # in the dark
    hostile = Schema(
        Classes("y", (0, 1)),
        (Numeric("<script>", 0, 1), Categorical("</svg>", ("<b>", '"'))),
        pairs=(("<script>", "</svg>"),),
    )
    certificate = plan_certificate(Settings(epsilon=1.0), rows=10_000, dims=hostile.dims, classes=2)
    other = Model(hostile, np.ones((1, hostile.dims)), certificate)
    assert read(write_effects_page(other, compute_effects(other), [], top=9)).tags <= TAGS
    draw_effects(model, found, tmp_path / "model.svg", top=4)
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.parse(tmp_path / "model.svg").iter()}
    assert not tags & {"script", "a", "foreignObject", "image"}


@pytest.mark.parametrize(("one", "other"), [(2, 12), (12, 2), (20, 20)])
def test_the_names_and_effects_of_a_heat_map_have_room(one: int, other: int) -> None:
    """The column with more values is below one another; names that would overlap are left out, and so are effects."""
    sides = (
        Categorical("a", tuple(f"a{k}" for k in range(one))),
        Categorical("b", tuple(f"b{k}" for k in range(other))),
    )
    schema = Schema(Classes("y", (0, 1)), sides, pairs=(("a", "b"),))
    certificate = plan_certificate(Settings(epsilon=1.0), rows=10_000, dims=schema.dims, classes=2)
    weights = np.random.default_rng(4).normal(size=(1, schema.dims))
    model = Model(schema, weights, certificate)
    text = write_effects_page(model, compute_effects(model), [], top=9)
    (heat_map,) = re.findall(r"<svg [^>]*Heat map.*?</svg>", text)
    cells = [
        (float(x), float(width), written)
        for x, width, written in re.findall(
            r'<rect class="cell [^>]* x="([0-9.]+)" [^>]* width="([0-9.]+)" [^>]*/>(?:<text[^>]*>([^<]*)</text>)?',
            heat_map,
        )
    ]
    assert len(cells) == one * other
    assert len({x for x, _, _ in cells}) == min(one, other)
    assert all(6 * len(written) < width for _, width, written in cells)
    assert any(written for _, _, written in cells) == (min(one, other) == 2)
    names = [float(x) for x in re.findall(r"rotate\(-35 ([0-9.]+) ", heat_map)]
    assert len(names) > 1
    assert np.diff(names).min() > 17
    assert "<figcaption>a &amp; b " in text


def test_a_pair_is_significant_if_it_is_more_than_noise() -> None:
    random, rows = np.random.default_rng(5), 20_000
    a, b, y = random.integers(0, 2, (3, rows))
    table = pa.table({"a": a, "b": b, "c": y, "y": np.where(random.random(rows) < 0.9, a ^ b, 1 - (a ^ b))})
    columns = tuple(Numeric(name, 0, 1) for name in "abc")
    schema = Schema(Classes("y", (0, 1)), columns, pairs=(("b", "c"), ("a", "b")))
    model = train(open_source(table), schema, Settings(epsilon=5.0))
    panel = compute_effects(model).panels[0]
    assert [(pair.name, pair.significant) for pair in panel.pairs] == [("a & b", True), ("b & c", False)]
    assert [effect.significant for effect in panel.effects] == [False] * 3


def test_the_length_of_a_vector_s_weights_is_told() -> None:
    model = made(Settings(epsilon=1.0, algorithm="bolton"))
    effect = column(compute_effects(model), "v")
    spread = compute_weight_deviation(model.certificate.training)
    assert spread is not None
    assert list(effect.effects) == pytest.approx([np.linalg.norm(model.weights[0, 5:7])])
    assert effect.deviation == pytest.approx(spread.deviation * np.sqrt(2))


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("classes", [2, 3])
def test_the_noise_of_an_effect_is_that_of_its_weights(name: str, classes: int) -> None:
    """Against models that were released many times with nothing but noise."""
    model = made(Settings(epsilon=1.0, algorithm="bolton"), classes, **SCHEMAS[name])
    zero = np.zeros((1, model.certificate.problem.loss.vector_count, model.schema.dims))
    many = [
        compute_effects(
            Model.from_release(model.schema, release_weights(zero, model.certificate, Randomness()), model.certificate)
        )
        for _ in range(1500)
    ]
    for panel in range(len(many[0].panels)):
        for known in many[0].panels[panel].effects:
            drawn = np.array([column(found, known.name, panel).effects for found in many])
            assert known.deviations is not None
            if known.kind == "vector":
                assert np.sqrt((drawn**2).mean()) == pytest.approx(known.deviations[0], rel=0.15)
                continue
            assert drawn.std(axis=0) == pytest.approx(known.deviations, rel=0.15, abs=1e-12)
            if known.kind == "number":
                assert (drawn[:, -1] - drawn[:, 0]).std() == pytest.approx(known.deviation, rel=0.15)
        constants = [found.panels[panel].constant for found in many]
        told = many[0].panels[panel].constant_deviation
        assert (told is None) == (not model.schema.intercept)
        if told is not None:
            assert np.std(np.array(constants, dtype=float)) == pytest.approx(told, rel=0.15)


def test_steps_are_drawn_where_a_number_has_a_curve() -> None:
    rule = Numeric("age", 0, 100, curve=(18.0, 65.0)).encoding_rule
    scaled = ScaledRule(rule, np.array([0.0, -0.25, 0.0]), np.array([1.0, 2.0, 4.0]))
    no_noise = effects_module._NoiseDeviation(None, None)
    places, features = effects_module._EffectVisitor(scaled, np.zeros(3), no_noise, np.ones(3))._sample_features(rule)
    at = {place: features[index] for index, place in enumerate(places)}
    assert at[0.0].tolist() == pytest.approx([-1.0, 0.0, -1.0])
    assert at[100.0].tolist() == pytest.approx([1.0, 1.0, 1.0])
    before, after = (index for index, place in enumerate(places) if place == 18.0)
    assert features[before].tolist() == pytest.approx([-0.64, 0.0, -1.0])
    assert features[after].tolist() == pytest.approx([-0.64, 1.0, -1.0])
    assert list(places) == sorted(places)
    effect = Effect("age", "number", places, (), tuple(features[:, 0]), None, 2.0, None, 2.0)
    assert [place for place, *_ in effect.corners] == [0.0, 18.0, 18.0, 65.0, 65.0, 100.0]


@pytest.mark.parametrize(
    ("settings", "said", "exact"),
    [
        (
            Settings(epsilon=1.0, loss="logistic"),
            "added before training: in any one direction it pulls as",
            False,
        ),
        (Settings(epsilon=1.0, algorithm="bolton"), "added to the trained weights", True),
        (Settings(epsilon=1.0, algorithm="scs13"), "added in every update; what it does to an effect is not", False),
        (Settings(epsilon=None), "none was added", True),
    ],
)
def test_what_is_drawn_of_noise_is_said(settings: Settings, said: str, exact: bool) -> None:
    found = compute_effects(made(settings))
    assert found.noise.startswith(said)
    assert found.exact == exact
    assert found.noise_name == ("noise std" if exact else "noise" if found.spread is None else "bound on noise std")
    assert (found.spread is None) == ("not known" in found.noise)
    for effect in found.panels[0].effects:
        assert (effect.deviations is None) == (effect.deviation is None) == (found.spread is None)
    assert found.unit == "log odds of '1' against '0'"


def test_only_log_odds_are_called_so() -> None:
    assert compute_effects(made(Settings(epsilon=1.0))).unit == "margin of '1' against '0'"
    assert compute_effects(made(Settings(epsilon=1.0, loss="huber"))).unit == "margin of '1' against '0'"
    assert (
        compute_effects(made(Settings(epsilon=1.0, loss="huber", multiclass="one-vs-all"), 3)).unit
        == "margin of each class against all others"
    )
    assert (
        compute_effects(made(Settings(epsilon=1.0, loss="huber"), 3)).unit
        == "margin of each class against the average of all"
    )
    assert compute_effects(made(Settings(epsilon=1.0), 3)).unit == "log odds of each class against the average of all"


def test_each_drawing_has_its_own_scale_and_wide_bands_are_cut() -> None:
    def reach(deviation: float | None, *, exact: bool = True) -> float:
        known = None if deviation is None else (deviation, deviation)
        effect = Effect("c", "categories", (), ("a", "b"), (-2.0, 1.0), known, 3.0, deviation, 3.0)
        return effect.compute_axis_limit(exact=exact)

    assert reach(None) == 2.0
    assert reach(0.25) == 2.5
    assert reach(10.0) == 5.0
    assert reach(10.0, exact=False) == 2.0
    assert Effect("c", "categories", (), ("a",), (0.0,), None, 0.0, None, 0.0).compute_axis_limit(exact=True) == 1.0
    text = drawn(Numeric("small", 0, 1), Categorical("large", ("a", "b")), weights=(0.01, 1.0, -2.0, 0.0))
    ends = re.findall(r">(\+[0-9.e-]+)</text>", text)
    assert len(ends) == 2
    assert float(ends[0]) != float(ends[1])


#: Rows whose label is drawn alone: nothing about it can be learned from the columns.
MEANINGLESS = Schema(
    Classes("y", (0, 1)),
    (
        Numeric("age", 0, 100),
        Numeric("pay", 0, 500),
        Categorical("ward", tuple("ABCD")),
        Categorical("sex", tuple("fm")),
    ),
)


def draw_rows(random: np.random.Generator, *, positive: float, effect: float = 0.0) -> pa.Table:
    age = random.gamma(9, 6, 3000).clip(0, 100)
    odds = positive / (1 - positive) * np.exp(effect * (age - 54))
    columns = {
        "age": age,
        "pay": random.lognormal(3, 1, 3000).clip(0, 500),
        "ward": random.choice(list("ABCD"), 3000, p=(0.6, 0.3, 0.08, 0.02)),
        "sex": random.choice(list("fm"), 3000),
        "y": (random.random(3000) < odds / (1 + odds)).astype(int),
    }
    return pa.table(columns)


@pytest.mark.parametrize("positive", [0.5, 0.05])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"delta": 1e-6},
        {"regularization": 0.01},
        {"algorithm": "bolton"},
        {"algorithm": "bolton", "standardize": "private", "regularization": 0.01},
    ],
)
def test_labels_without_meaning_have_no_effects(settings: dict[str, Any], positive: float) -> None:
    """Of 20 models at most one may have any; all noise is seeded."""
    random = np.random.default_rng(11)
    false = 0
    for seed in range(20):
        asked = Settings(epsilon=(0.5, 2.0)[seed % 2], noise_seed=seed, seed=1, **settings)
        model = train(open_source(draw_rows(random, positive=positive)), MEANINGLESS, asked)
        false += any(effect.significant for effect in compute_effects(model).panels[0].effects)
    assert false <= 1


@pytest.mark.parametrize(
    "settings", [{"regularization": 0.01}, {"algorithm": "bolton"}, {"algorithm": "bolton", "standardize": "private"}]
)
def test_a_large_effect_is_significant_and_alone(settings: dict[str, Any]) -> None:
    random = np.random.default_rng(12)
    for seed in range(5):
        asked = Settings(epsilon=4.0, noise_seed=seed, seed=1, **settings)
        model = train(open_source(draw_rows(random, positive=0.5, effect=0.15)), MEANINGLESS, asked)
        found = compute_effects(model)
        assert [effect.name for effect in found.panels[0].effects if effect.significant] == ["age"]
        assert found.panels[0].effects[0].name == "age"
        assert found.significance.startswith("1 of 4: ")


@pytest.mark.parametrize(
    ("settings", "changes", "cause"),
    [
        (Settings(epsilon=1.0, algorithm="scs13"), {}, "noise in every update"),
        (Settings(epsilon=1.0, algorithm="bolton", loss="huber"), {}, "the sampling of rows"),
        (Settings(epsilon=1.0, algorithm="bolton"), {"intercept": False}, "a common class"),
        (Settings(epsilon=1.0, algorithm="bolton"), {"projection": Projection(dims=5, seed=3)}, "a common class"),
    ],
)
def test_where_no_bound_is_known_nothing_is_significant(
    settings: Settings, changes: dict[str, Any], cause: str
) -> None:
    found = compute_effects(made(settings, **changes))
    assert found.significance.startswith(f"none of 4: public numbers give no bound on what {cause}")
    assert not any(effect.significant for effect in found.panels[0].effects)


def test_more_columns_and_more_categories_make_the_test_stricter() -> None:
    spread = WeightDeviation(1.0, exact=True, combined=1.0, noise=None)
    one = Effect("c", "categories", (), ("a", "b"), (0.0, 2.5), None, 2.5, None, 2.5, largest=2.5)
    assert effects_module._is_significant(one, spread, 0.0, 1)
    assert not effects_module._is_significant(one, spread, 0.0, 10)
    assert not effects_module._is_significant(replace(one, comparisons=10), spread, 0.0, 1)
    assert not effects_module._is_significant(replace(one, norm=1.5), spread, 0.0, 1)
    assert effects_module._is_significant(one, spread, 1.0, 1)
    assert not effects_module._is_significant(replace(one, mean=1.0), spread, 1.0, 1)
    model = made(Settings(epsilon=1.0, algorithm="bolton"))
    comparisons = {effect.name: effect.comparisons for effect in compute_effects(model).panels[0].effects}
    assert comparisons == {"age": 1, "pulse": 1, "ward": 3, "v": 2}


def test_of_many_classes_the_first_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects_module, "MAX_PANELS", 2)
    model = made(Settings(epsilon=1.0), 3)
    found = compute_effects(model)
    assert ([panel.favours for panel in found.panels], found.left_out) == (["0", "1"], 1)
    assert "1 classes more are not shown" in write_effects_page(model, found, [], top=5)


def test_large_columns_need_no_square_of_their_size() -> None:
    """One of 20,000 categories and a vector as long would need 3 GB each."""
    columns = (Categorical("c", tuple(range(20_000))), Vector("v", 20_000, -1, 1))
    schema = Schema(Classes("y", (0, 1)), columns)
    certificate = plan_certificate(Settings(epsilon=1.0), rows=10_000, dims=schema.dims, classes=2)
    model = Model(schema, np.ones((1, schema.dims)), certificate)
    found = compute_effects(model)
    assert sorted(len(effect.effects) for effect in found.panels[0].effects) == [1, 20_000]
    text = write_effects_page(model, found, [], top=5)
    assert f"{20_000 - MAX_BARS:,} categories with smaller effects are not drawn" in text
    assert len(text) < 50_000


class Reader(HTMLParser):
    """Every tag must be closed in order; notes which there are, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data if self.open[-1:] != ["style"] else ""


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


TAGS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "main",
    "h1",
    "h2",
    "h3",
    "g",
    "p",
    "dl",
    "dt",
    "dd",
    "div",
    "section",
} | {*("figure", "figcaption", "span", "svg", "path", "polygon", "polyline", "text", "rect")}


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("algorithm", ["auto", "bolton", "scs13"])
def test_the_page_is_whole_and_loads_nothing(classes: int, algorithm: str) -> None:
    model = made(Settings(epsilon=1.0, algorithm=algorithm), classes)
    text = write_effects_page(model, compute_effects(model), [("rows", "10,000")], top=3)
    reader = read(text)
    assert reader.tags <= TAGS
    assert "(ε = 1)-differentially private:" in reader.text
    assert {name for name, _ in reader.attributes}.isdisjoint({"src", "href", "onload", "style"})
    assert not re.search(r"https?:|url\(|@import", text)
    assert "prefers-color-scheme: dark" in text
    assert reader.text.count("1 more columns are not drawn") == (1 if classes == 2 else 3)
    # Noise that is known is a surface, noise that is only bounded is a number.
    assert ("polygon" in reader.tags) == (algorithm == "bolton")
    assert (("class", "two") in reader.attributes) == (algorithm == "bolton")
    assert ("Shaded: one and two standard deviations" in reader.text) == (algorithm == "bolton")
    assert ("bound on noise std" in reader.text) == (algorithm == "auto")
    assert ", noise std" in reader.text or algorithm != "bolton"
    assert "Each drawing has its own scale" in reader.text
    assert re.search("missing counts as (40|115)", reader.text)


def drawn(*columns: Any, weights: Sequence[float] | None = None) -> str:
    schema = Schema(Classes("y", (0, 1)), columns)
    certificate = plan_certificate(Settings(epsilon=1.0), rows=10_000, dims=schema.dims, classes=2)
    model = Model(schema, np.ones((1, schema.dims)) if weights is None else np.array([weights]), certificate)
    return write_effects_page(model, compute_effects(model), [], top=9)


def test_long_names_of_categories_are_whole_in_several_lines() -> None:
    name = "Outlying-US(Guam-USVI-etc)"
    text = drawn(Categorical("country", (name, "Cuba")))
    assert re.search(r"<g><title>Outlying-US\(Guam-USVI-etc\): \+[0-9.]+</title>", text)
    lines = re.findall(r'x="122" y="([0-9.]+)" text-anchor="end">([^<>]*)<', text)
    assert "".join(line for _, line in lines) == f"{name}Cuba"
    assert max(len(line) for _, line in lines) <= MAX_NAME
    assert [float(height) for height, _ in lines] == [13.0, 25.0, 43.0]
    assert "smallest to largest: +0<" in text


@pytest.mark.parametrize(
    ("curve", "distances", "places"),
    [
        ((), {240}, ["0", "1,000,000"]),
        ((2e5, 4e5, 6e5, 8e5), {48}, ["0", "400,000", "600,000", "1,000,000"]),
        ((1e2, 1e3, 1e4, 1e5), {48}, ["0", "1,000", "10,000", "1,000,000"]),
        ((5e5, 6e5), {24, 120, 96}, ["0", "500,000", "600,000", "1,000,000"]),
    ],
)
def test_steps_have_marks_and_are_apart_even_if_their_places_are_not(
    curve: tuple[float, ...], distances: set[int], places: list[str]
) -> None:
    text = drawn(Numeric("pay", 0, 1e6, curve=curve))
    marks = [float(mark) for mark in re.findall(r"M([0-9.]+) 120v4", text)]
    assert (marks[0], marks[-1], len(marks)) == (44.0, 284.0, len(curve) + 2)
    assert {round(distance) for distance in np.diff(marks)} == distances
    assert re.findall(r'y="136" text-anchor="[a-z]+">([^<]+)<', text) == places
    assert ("drawn equally far apart" in text) == (curve == (1e2, 1e3, 1e4, 1e5))


def test_one_category_is_compared_with_none() -> None:
    assert "<figcaption>smokes <span>+" in drawn(Categorical("smokes", ("yes",)))


def test_a_page_of_a_model_that_is_not_private_says_so_loudly() -> None:
    model = made(Settings(epsilon=None))
    reader = read(write_effects_page(model, compute_effects(model), [], top=9))
    assert ("class", "guarantee none") in reader.attributes
    assert "NOT PRIVATE: no noise was added." in reader.text


FORGED = "</title><script>alert(1)</script>\x1b[2J\u202e$x_{$ & \"quotes'"


def forged(settings: Settings = Settings(epsilon=1.0)) -> Model:  # noqa: B008
    columns = (Numeric(FORGED, 0, 1), Categorical("c", (FORGED, "b")), Vector(f"v{FORGED}", 2, 0, 1))
    schema = Schema(Classes(f"label {FORGED}", (f"0 {FORGED}", f"1 {FORGED}", "2")), columns)
    certificate = plan_certificate(settings, rows=10_000, dims=schema.dims, classes=3)
    shape = (certificate.model_count, certificate.problem.loss.vector_count, schema.dims)
    released = release_weights(np.ones(shape), certificate, Randomness())
    return Model(schema, released.reshape(-1, schema.dims), certificate, trained_where=FORGED)


def test_texts_of_a_file_are_no_markup() -> None:
    model = forged()
    text = write_effects_page(model, compute_effects(model), [("trained", FORGED)], top=9)
    reader = read(text)
    assert reader.tags <= TAGS
    assert "<script>alert(1)" in reader.text
    assert text.isprintable() or set(text) - {"\n"} == {one for one in text if one.isprintable()}
    assert make_printable(FORGED) in reader.text


@pytest.mark.parametrize("ending", ["png", "svg"])
@pytest.mark.parametrize(
    "model", [made(Settings(epsilon=1.0, algorithm="bolton")), made(Settings(epsilon=None), 3), forged()]
)
def test_a_picture_is_written(tmp_path: Path, ending: str, model: Model) -> None:
    path = tmp_path / f"model.{ending}"
    draw_effects(model, compute_effects(model), path, top=4)
    begin = path.read_bytes()[:200]
    if ending == "png":
        assert begin.startswith(b"\x89PNG")
    else:
        tags = {element.tag.rpartition("}")[2] for element in ElementTree.parse(path).iter()}
        assert {"svg", "path"} <= tags
        assert not tags & {"script", "a", "foreignObject", "image"}


def test_a_picture_that_cannot_be_drawn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(Settings(epsilon=1.0))
    with pytest.raises(ParameterError, match=r"^a picture must end in \.png, \.svg, \.pdf, got '.*model\.bmp'$"):
        draw_effects(model, compute_effects(model), tmp_path / "model.bmp", top=4)
    monkeypatch.setattr("boltdp.export.effects_plot.MAX_DRAWINGS", 3)
    with pytest.raises(ParameterError, match=r"^a picture must have at most 3 drawings, got 4$"):
        draw_effects(model, compute_effects(model), tmp_path / "model.png", top=4)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingPackageError, match=r"^a picture needs matplotlib, which is not installed$") as caught:
        draw_effects(model, compute_effects(model), tmp_path / "model.png", top=4)
    assert caught.value.hint == "pip install 'boltdp[plot]'"
    assert list(tmp_path.iterdir()) == []
