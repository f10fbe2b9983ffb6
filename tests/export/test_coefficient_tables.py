"""Tables of coefficients in every format, of seeded trainings."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import boltdp
from boltdp.errors import ParameterError
from boltdp.export.coefficient_tables import WRITERS, CoefficientTable, _ForestPlot
from boltdp.export.coefficients import Coefficients
from boltdp.schema.schema import Categorical, Classes, Number, Numeric, Schema
from boltdp.settings import Settings
from boltdp.workflows.train import train

LONG = "the kind of admission, as it was written down by whoever was at the desk that night"
ROWS = 20_000


def make_rows() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age, ward = rng.uniform(20, 80, ROWS), rng.choice(["a_1", "<b>", "c & d"], ROWS)
    margin = 0.04 * (age - 50) + 0.8 * (ward == "<b>")
    return pd.DataFrame(
        {
            "age": age,
            LONG: ward,
            "sick": rng.random(ROWS) < 1 / (1 + np.exp(-margin)),
            "cost": 100 + 3 * age + rng.standard_t(5, ROWS) * 20,
        }
    )


def find(target: Classes | Number, **settings: object) -> Coefficients:
    columns = (Numeric("age", 0, 100), Categorical(LONG, ("a_1", "<b>", "c & d"), reference="c & d"))
    chosen = Settings(inference=True, **({"epsilon": 1.0, "seed": 1, "noise_seed": 1} | settings))  # type: ignore[arg-type]
    return Coefficients(train(boltdp.engines.open_source(make_rows()), Schema(target, columns), chosen))


@pytest.fixture(scope="module")
def classes() -> Coefficients:
    return find(Classes("sick", (False, True)))


@pytest.fixture(scope="module")
def number() -> Coefficients:
    return find(Number("cost", 0, 500))


def test_text_has_the_estimates_and_what_a_reader_must_know(classes: Coefficients) -> None:
    text = CoefficientTable(classes).write_text()
    head, *lines = text.split("\n\n")[0].splitlines()
    assert head.split() == ["term", "coef", "std_err", "z", "p_value", "odds_ratio", "low", "high", "noise"]
    assert [line.split()[0] for line in lines][0::3] == ["age", "intercept"]
    assert lines[1].startswith(f"{LONG}=a_1 ")
    facts = dict(line.split("  ", 1) for line in text.split("\n\n")[1].splitlines())
    facts = {name: said.strip() for name, said in facts.items()}
    assert facts["intervals"] == "95 %: each covers the parameter of the model, if it holds; rows and noise are in it"
    assert facts["reference"] == f"{LONG}: c & d"
    assert re.fullmatch(rf"{LONG}: chi2\(2\) = \d+\.\d\d, p < 0.001", facts["joint test"])
    assert "a category as the reference" in facts["missing"]
    assert facts["privacy"].startswith("NOT PRIVATE: the noise came from a seed")


def test_decimals_are_those_of_the_standard_error(classes: Coefficients) -> None:
    table = CoefficientTable(classes)
    for line in classes:
        _, coef, error, _, _, odds, low, high, _ = table.format_line(line)
        assert len({len(one.partition(".")[2]) for one in (coef, error, low, high)}) == 1
        assert 3 <= len(error.replace(".", "").lstrip("0")) <= 4
        assert float(coef) == pytest.approx(line.coef, abs=line.std_err / 100)
        assert float(odds) == pytest.approx(line.odds_ratio, rel=line.std_err / 100)


def test_csv_and_json_have_all_digits(classes: Coefficients) -> None:
    table = CoefficientTable(classes)
    rows = list(csv.DictReader(io.StringIO(table.write_csv())))
    record = json.loads(table.write_json())
    for row, found, line in zip(rows, record["coefficients"], classes, strict=True):
        assert (row["term"], float(row["coef"]), float(row["high"])) == (line.term, line.coef, line.high)
        assert (found["term"], found["std_err"], found["p_value"]) == (line.term, line.std_err, line.p_value)
    assert record["interval_of"] == "coefficient"


def test_intervals_of_odds_ratios(classes: Coefficients, number: Coefficients) -> None:
    table = CoefficientTable(classes, odds_ratios=True)
    rows = list(csv.DictReader(io.StringIO(table.write_csv())))
    for row, line in zip(rows, classes, strict=True):
        assert (float(row["odds_low"]), float(row["odds_high"])) == (math.exp(line.low), math.exp(line.high))
    assert "the odds ratio of the model, if it holds" in table.write_text()
    with pytest.raises(ParameterError, match="odds ratios must be of classes"):
        CoefficientTable(number, odds_ratios=True)


def test_a_number_has_no_odds_and_robust_errors(number: Coefficients) -> None:
    text = CoefficientTable(number).write_text()
    assert "odds" not in text
    assert "of the best model of this form, whether or not it holds" in text
    assert "robust (sandwich)" in text
    age = next(line for line in number if line.term == "age")
    assert age.low < 3 < age.high


def test_latex_escapes_names(classes: Coefficients) -> None:
    written = CoefficientTable(classes).write_latex()
    assert rf"{LONG}=a\_1 & " in written
    assert rf"{LONG}=$<$b$>$ & " in written
    body = written.split(r"\hline")[2]
    assert [line.count(" & ") for line in body.strip().splitlines()] == [8] * 4
    assert written.count("{") == written.count("}")


def test_the_page_draws_every_interval_but_the_intercept_on_one_scale(classes: Coefficients) -> None:
    page = CoefficientTable(classes).write_html()
    body = ElementTree.fromstring(page[page.index("<body>") : page.index("</html>")])  # all names are escaped
    rows = list(body.iter("tr"))
    assert rows[2][0].text == f"{LONG}=a_1"
    assert [len(list(row.iter("circle"))) for row in rows] == [0, 1, 1, 1, 0, 0]
    plot = _ForestPlot(classes)
    for row, line in zip(rows[1:4], classes, strict=False):
        step = 20.0 if line.term == "age" else 1.0
        (circle,) = row.iter("circle")
        assert float(circle.get("cx", "")) == pytest.approx(plot._compute_x(line.coef * step), abs=0.06)
    assert "per 20" in "".join(rows[1].itertext())


def test_an_interval_that_is_far_wider_than_others_is_cut_off(classes: Coefficients) -> None:
    plot = _ForestPlot(classes)
    plot._reach = max(line.high for line in classes if line.term != "age") / 2
    wide = max(classes, key=lambda line: line.high)
    assert plot.draw_line(wide).count("v8") < 2
    assert plot._compute_x(1e9) == plot._compute_x(plot._reach)


@pytest.mark.parametrize(("epsilon", "said"), [(None, "no noise was added"), (0.2, "noise"), (50.0, "few rows, not")])
def test_what_makes_intervals_wide_is_told(epsilon: float | None, said: str) -> None:
    seed = None if epsilon is None else 1
    found = find(Classes("sick", (False, True)), epsilon=epsilon, noise_seed=seed)
    width = dict(CoefficientTable(found).facts)["width"]
    assert said in width
    mostly = sum(line.noise_share >= 0.5 for line in found)
    assert (mostly > 0) == (epsilon == 0.2)


def test_a_warning_is_in_every_format(classes: Coefficients) -> None:
    classes.signal, before = 0.5, classes.signal
    try:
        for name, write in WRITERS.items():
            assert ("hardly above its noise" in write(CoefficientTable(classes))) == (name != "csv")
    finally:
        classes.signal = before
