from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix, log_loss, roc_auc_score
from website.cli_reference import reference

from boltdp import Model, __version__
from boltdp._files.sealed import add_digest
from boltdp.cli import COMMANDS
from boltdp.engines import open_source
from boltdp.privacy.events.event import SEEDED, Event
from boltdp.privacy.serialization import from_record, to_record
from boltdp.schema.schema import Schema
from boltdp.workflows.train import BAD_ROWS_REASON

from .conftest import SECRET, Run, find_events

ROOT = Path(__file__).parents[2]

REMINDER = (
    "note: classes no, yes: rows with an unknown label are ignored; `boltdp check` on public rows shows "
    "whether there are any\n"
)


def test_train_prints_the_promise_its_cost_and_where_the_model_is(run: Run, rows: Path) -> None:
    result = run("train", rows, "--schema", "schema.toml", "--epsilon", 1, "-o", "model.json")
    assert result.exit_code == 0
    assert "(ε = 1)-differentially private" in result.stdout
    assert "2,000 rows" in result.stdout
    certificate = Model.load("model.json").certificate
    assert certificate.private
    assert certificate.training_noise is not None
    assert "expected L2 norm" not in result.stdout
    verbose = run("train", rows, "--verbose", "--schema", "schema.toml", "--epsilon", 1, "-o", "other.json")
    assert f"expected L2 norm {certificate.training_noise.expected_norm:.3g}" in verbose.stdout
    assert "centres and the clip norm of 5 features" in result.stdout
    assert "model.json: 6 weights for 2 classes" in result.stdout
    assert "curves" not in result.stdout
    assert SECRET not in result.output
    assert SECRET not in Path("model.json").read_text()


def test_train_passes_every_setting_on(run: Run, rows: Path) -> None:
    options = """--epsilon 2 --delta 1e-5 --loss huber --loss-parameter 0.5 --passes 3 --batch-size 7
        --schedule square-root --exponent 0.25
        --regularization 0.1 --radius 3 --averaging tail --permutation fresh --partitions 4 --analysis proved --seed 5
        --noise-seed 6 --label sick --on-bad-row neutral --spool . --quiet --json"""
    result = run("train", rows, "--schema", "schema.toml", "-o", "model.json", *options.split())
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["model"] == "model.json"
    assert (record["epsilon"], record["delta"], record["algorithm"]) == (2.0, 1e-5, "bolton")
    assert record["reasons"] == [SEEDED]
    (event,) = find_events(record, "output perturbation")
    assert event["analysis"] == "proved"
    recipe = event["problem"]
    expected = {"passes": 3, "batch_size": 7, "regularization": 0.1, "radius": 3.0, "partitions": 4}
    assert {key: recipe[key] for key in expected} == expected
    assert (recipe["averaging"], recipe["permutation"]) == ("tail", "fresh")
    assert (recipe["loss"]["name"], recipe["loss"]["width"]) == ("huber", 0.5)
    assert recipe["schedule"]["growth"] == "sqrt"
    assert recipe["schedule"]["offset"] == pytest.approx(500**0.25)
    step = run("train", rows, "--schema", "schema.toml", "--epsilon", 1, "-o", "m.json", "--step-size", 0.5, "--json")
    (event,) = find_events(json.loads(step.stdout), "output perturbation")
    assert event["problem"]["schedule"] == {"growth": "none", "scale": 0.5, "offset": 1.0, "cap": None}
    assert json.loads(step.stdout)["reasons"] == []


def test_partitions_are_told_of_before_and_after_a_training_and_verified(run: Run, rows: Path) -> None:
    options = ("--schema", "schema.toml", "--epsilon", 1, "--partitions", 3)
    planned = run("plan", "--rows", 2000, *options)
    assert planned.exit_code == 0, planned.output
    assert "3 of 666 or 667 rows, each trained on alone; their weights are averaged" in " ".join(planned.stdout.split())
    trained = run("train", rows, *options, "-o", "model.json")
    assert trained.exit_code == 0, trained.output
    told = "10 passes over 2,000 rows in 3 partitions, 130 updates in each, then averaged"
    assert told in " ".join(trained.stdout.split())
    verified = run("verify", "model.json")
    assert verified.exit_code == 0
    assert "recomputed by closed form, in each of 3 partitions" in verified.stdout
    record = json.loads(Path("model.json").read_text())
    (event,) = find_events(record["certificate"], "output perturbation")
    event["noise"]["scale"] /= 3
    event["derived"] = to_record(from_record(Event.KINDS["output perturbation"], event))["derived"]
    Path("model.json").write_text(json.dumps(add_digest(record)))
    refused = run("verify", "model.json")
    assert refused.exit_code == 1
    assert refused.stdout == ""


def test_csv_parquet_and_duckdb_give_the_same_bits(run: Run, rows: Path, table: pa.Table) -> None:
    pa.csv.write_csv(table, "rows.csv")
    with duckdb.connect("rows.duckdb") as connection:
        connection.execute("CREATE TABLE patients AS FROM read_parquet(?)", [str(rows)])
    sources = (("rows.csv",), ("rows.parquet",), ("rows.duckdb", "--table", "patients"))
    models = []
    for source in sources:
        options = ("--schema", "schema.toml", "--epsilon", 1, "--seed", 3, "--noise-seed", 4, "-o", "model.json")
        result = run("train", *source, *options, "--overwrite")
        assert result.exit_code == 0, result.output
        models.append(Path("model.json").read_bytes())
    assert models[0] == models[1] == models[2]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--noiseless",), "no noise was added"),
        (("--epsilon", 1, "--noise-seed", 1), "the noise came from a seed"),
        (("--epsilon", 1, "--analysis", "paper"), "the paper's published one"),
    ],
)
def test_models_that_are_not_private_say_so_wherever_they_are_shown(
    run: Run, rows: Path, options: tuple[object, ...], reason: str
) -> None:
    trained = run("train", rows, "--schema", "schema.toml", "-o", "model.json", *options)
    assert trained.exit_code == 0
    refused = run("verify", "model.json")
    assert refused.exit_code == 1
    assert refused.stdout == ""
    assert refused.stderr.startswith("error: NOT PRIVATE: ")
    verified = run("verify", "model.json", "--allow-not-private")
    assert verified.exit_code == 0
    for result in (trained, verified):
        assert result.stdout.startswith("NOT PRIVATE")
        assert reason in result.stdout
    assert verified.stdout.endswith("NOT PRIVATE.\n")
    assert json.loads(run("verify", "model.json", "--allow-not-private", "--json").stdout)["private"] is False


def test_rows_that_were_shown_cost_the_promise_and_the_file_says_so(run: Run, rows: Path, table: pa.Table) -> None:
    complete = [row for row in table.to_pylist() if not {SECRET, None} & set(row.values())]
    pa.parquet.write_table(pa.Table.from_pylist(complete), rows)
    arguments = ("train", rows, "--schema", "schema.toml", "--epsilon", 1, "--on-bad-row", "error", "-o", "model.json")
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert Model.load("model.json").certificate.reasons == (BAD_ROWS_REASON,)
    for shown in (result, run("verify", "model.json", "--allow-not-private")):
        assert shown.stdout.startswith(f"NOT PRIVATE: {BAD_ROWS_REASON}")
        assert shown.exit_code == 0


@pytest.mark.parametrize(
    ("kind", "noise"),
    [("objective perturbation", "linear"), ("objective perturbation", "end"), ("noisy moments", "noise")],
)
def test_verify_recomputes_and_catches_a_changed_number(run: Run, model: Path, kind: str, noise: str) -> None:
    record = json.loads(model.read_text())
    assert run("verify", model, "--allow-not-private").exit_code == 0
    (event,) = find_events(record["certificate"], kind)
    event[noise]["scale"] /= 2
    # Whoever forges a number forges what follows from it too.
    event["derived"] = to_record(from_record(Event.KINDS[kind], event))["derived"]
    model.write_text(json.dumps(add_digest(record)))
    result = run("verify", model, "--allow-not-private")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: the certificate claims delta = 0 at epsilon = 1, but ")


@pytest.mark.parametrize(
    ("kind", "number"), [("objective perturbation", "volume_term"), ("noisy moments", "sensitivity")]
)
def test_verify_catches_a_number_that_does_not_follow(run: Run, model: Path, kind: str, number: str) -> None:
    record = json.loads(model.read_text())
    (event,) = find_events(record["certificate"], kind)
    event["derived"][number] /= 2
    model.write_text(json.dumps(add_digest(record)))
    result = run("verify", model, "--allow-not-private")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"in '{number}', says" in result.stderr
    assert "follows from the rest" in result.stderr


def claim_privacy(certificate: dict[str, Any]) -> None:
    certificate["private"] = True
    certificate["reasons"] = []


def leave_reasons_out(certificate: dict[str, Any]) -> None:
    certificate["reasons"] = []


@pytest.mark.parametrize(("change", "named"), [(claim_privacy, "private"), (leave_reasons_out, "reasons")])
def test_verify_catches_a_model_that_claims_to_be_private(run: Run, model: Path, change: Any, named: str) -> None:
    record = json.loads(model.read_text())
    assert record["format_version"] == 4
    change(record["certificate"])
    record["private"] = record["certificate"]["private"]
    model.write_text(json.dumps(add_digest(record)))
    result = run("verify", model, "--allow-not-private")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"in '{named}', says" in result.stderr


def test_predict_keeps_the_order_of_rows_in_every_output(run: Run, model: Path, rows: Path) -> None:
    expected = Model.load(model).predict(open_source(rows)).tolist()
    printed = run("predict", model, rows)
    assert printed.exit_code == 0
    assert printed.stdout.splitlines() == ["prediction", *expected]
    run("predict", model, rows, "-o", "out.csv")
    assert Path("out.csv").read_text() == printed.stdout
    run("predict", model, rows, "-o", "out.parquet", "--proba")
    read = pa.parquet.read_table("out.parquet")
    assert read.column_names == ["prediction", "probability_no", "probability_yes"]
    assert read["prediction"].to_pylist() == expected
    likelier = [
        y > n for n, y in zip(read["probability_no"].to_pylist(), read["probability_yes"].to_pylist(), strict=True)
    ]
    assert likelier == [value == "yes" for value in expected]
    with_proba = run("predict", model, rows, "--proba").stdout.splitlines()
    assert with_proba[0] == "prediction,probability_no,probability_yes"
    assert [line.split(",")[0] for line in with_proba[1:]] == expected


def test_predict_needs_no_label(run: Run, model: Path, table: pa.Table) -> None:
    pa.csv.write_csv(table.drop_columns(["sick"]), "new.csv")
    assert len(run("predict", model, "new.csv").stdout.splitlines()) == 2001


def test_evaluate_measures_what_scikit_learn_measures(run: Run, model: Path, rows: Path, table: pa.Table) -> None:
    result = run("evaluate", model, rows, "--json")
    assert result.exit_code == 0
    assert "must be non-sensitive data" in result.stderr
    record = json.loads(result.stdout)
    scores = {name: score["value"] for name, score in record["scores"].items()}
    truth = table["sick"].to_pylist()
    known = [i for i, value in enumerate(truth) if value != SECRET]
    loaded = Model.load(model)
    margins = [margin for batch in loaded.score_batches(open_source(rows)) for margin in batch[:, 0].tolist()]
    predicted = loaded.predict(open_source(rows)).tolist()
    y, p = [truth[i] for i in known], [predicted[i] for i in known]
    assert record["rows"] == len(truth)
    assert record["rows_without_label"]["value"] == 40
    assert scores["accuracy"] == pytest.approx(accuracy_score(y, p))
    assert scores["balanced accuracy"] == pytest.approx(balanced_accuracy_score(y, p))
    assert scores["area under the curve"] == pytest.approx(roc_auc_score(y, [margins[i] for i in known]))
    likely = loaded.probabilities(np.array(margins)[known][:, None])
    assert scores["log loss"] == pytest.approx(log_loss(y, likely, labels=["no", "yes"]))
    assert record["confusion"] == confusion_matrix(y, p, labels=["no", "yes"]).tolist()
    shown = run("evaluate", model, rows).stdout
    assert f"accuracy                       {scores['accuracy']:.4f}" in shown
    assert SECRET not in shown


def test_a_threshold_of_the_training_is_in_the_model_and_one_of_the_scoring_goes_before_it(
    run: Run, rows: Path
) -> None:
    options = ["--schema", "schema.toml", "--epsilon", 1, "--seed", 1, "--noise-seed", 1]
    assert run("train", rows, *options, "-o", "plain.json").exit_code == 0
    model, plain = "plain.json", Model.load("plain.json")
    trained = run("train", rows, *options, "-o", "decided.json", "--threshold", 0.2)
    assert trained.exit_code == 0, trained.output
    assert "threshold               'yes' where its probability exceeds 0.2; this costs no privacy" in trained.stdout
    decided = Model.load("decided.json")
    assert decided.threshold == 0.2
    # With the same seeds nothing but the decision differs.
    assert (decided.weights == plain.weights).all()
    assert decided.certificate == plain.certificate
    assert run("verify", "decided.json", "--allow-not-private").exit_code == 0

    def predictions(*arguments: object) -> list[str]:
        return [str(line) for line in run("predict", *arguments).stdout.splitlines()[1:]]

    expected = plain.with_threshold(0.2).predict(open_source(rows)).tolist()
    assert predictions("decided.json", rows) == predictions(model, rows, "--threshold", 0.2) == expected
    assert predictions("decided.json", rows, "--threshold", 0.5) == predictions(model, rows) != expected
    for arguments in (("decided.json",), (model, "--threshold", 0.2)):
        expression = run("sql", *arguments).stdout
        with duckdb.connect() as connection:
            scored = connection.execute(f"SELECT {expression} FROM '{rows}'").fetchall()
        assert [row[0] for row in scored] == expected
    told = [json.loads(run("evaluate", *one, "--json").stdout) for one in (("decided.json", rows), (model, rows))]
    assert [one["threshold"] for one in told] == [0.2, None]
    assert told[0]["confusion"] != told[1]["confusion"]
    losses = [one["scores"]["log loss"]["value"] for one in told]
    assert losses[0] == pytest.approx(losses[1], rel=1e-14)
    assert "\nthreshold                         0.3\n" in run("evaluate", model, rows, "--threshold", 0.3).stdout


@pytest.mark.parametrize("command", ["train", "tune"])
def test_the_prior_of_the_schema_is_a_threshold(run: Run, rows: Path, command: str) -> None:
    declared = Path("schema.toml").read_text()
    options: list[object] = ["--schema", "schema.toml", "--epsilon", 1, "--threshold", "prior", "-o", "model.json"]
    if command == "tune":
        options += ["--grid", "regularization=0.01,0.1", "--trials", 2]
    refused = run(command, rows, *options)
    assert refused.exit_code == 1
    assert "the threshold 'prior' must be declared in the schema, which has no prior" in refused.stderr
    Path("schema.toml").write_text(f"prior = [0.6, 0.4]\n{declared}")
    made = run(command, rows, *options, "--json")
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["threshold"] == Model.load("model.json").threshold == 0.4
    assert Model.load("model.json").schema.target.require_classes().prior == (0.6, 0.4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--threshold", "1"], "threshold must be between 0 and 1, without these, got 1"),
        (["--threshold", "many"], "--threshold must be a number or 'prior', got 'many'"),
        (["--threshold", "0.2", "--loss", "huber"], "a threshold must be for a model that gives probabilities"),
    ],
)
def test_a_threshold_that_cannot_be_is_refused_before_a_row_is_read(
    run: Run, rows: Path, options: list[str], said: str
) -> None:
    rows.unlink()
    result = run("train", rows, "--schema", "schema.toml", "--epsilon", 1, "-o", "model.json", *options)
    assert result.exit_code == 1
    assert said in result.stderr


def test_a_probability_in_sql_has_no_threshold(run: Run, model: Path) -> None:
    result = run("sql", model, "--proba", "--threshold", 0.2)
    assert result.exit_code == 1
    assert "--threshold is for classes, and must not be given with --proba" in result.stderr


def test_evaluate_without_any_declared_class_is_an_error(run: Run, model: Path, table: pa.Table) -> None:
    pa.csv.write_csv(table.set_column(3, "sick", pa.array([SECRET] * 2000)), "other.csv")
    result = run("evaluate", model, "other.csv")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "got none of 2,000" in result.stderr
    assert "training uses classes no, yes" in result.stderr
    assert SECRET not in result.output


@pytest.mark.parametrize(("spelt", "warned"), [(1000, True), (201, True), (200, False)])
def test_evaluate_warns_where_many_labels_are_spelt_otherwise(
    run: Run, model: Path, table: pa.Table, spelt: int, warned: bool
) -> None:
    labels = ["Yes"] * spelt + ["yes"] * (2000 - spelt)
    pa.csv.write_csv(table.set_column(3, "sick", pa.array(labels)), "other.csv")
    result = run("evaluate", model, "other.csv")
    assert result.exit_code == 0
    assert re.search(f"rows without a declared class +{spelt:,}", result.stdout)
    assert (f"warning: {spelt:,} of 2,000 rows have no declared class in column 'sick'" in result.stderr) == warned


def test_evaluate_where_most_labels_are_spelt_otherwise_is_an_error(run: Run, model: Path, table: pa.Table) -> None:
    pa.csv.write_csv(table.set_column(3, "sick", pa.array(["Yes"] * 1001 + ["yes"] * 999)), "other.csv")
    result = run("evaluate", model, "other.csv")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "most rows must have a declared class to compare with, got 999 of 2,000" in result.stderr
    assert "training uses classes no, yes" in result.stderr


def test_private_evaluation_warns_by_the_released_count_of_rows_without_a_class(
    run: Run, model: Path, table: pa.Table
) -> None:
    pa.csv.write_csv(table.set_column(3, "sick", pa.array(["Yes"] * 2000)), "other.csv")
    result = run("evaluate", model, "other.csv", "--epsilon", 1000)
    assert result.exit_code == 0
    assert "of 2,000 rows have no declared class in column 'sick'" in result.stderr


@pytest.mark.parametrize("command", ["train", "tune"])
def test_training_reminds_of_the_classes_whatever_the_rows_are(
    run: Run, rows: Path, table: pa.Table, command: str
) -> None:
    pa.csv.write_csv(table.set_column(3, "sick", pa.array(["Yes"] * 2000)), "other.csv")
    options = ["--schema", "schema.toml", "--epsilon", 1, "--overwrite", "-o", "model.json"]
    if command == "tune":
        options += ["--grid", "regularization=0.01,0.1", "--trials", 2]
    said = {run(command, source, *options).stderr for source in (rows, "other.csv")}
    assert said == {REMINDER}


def test_of_many_classes_not_all_are_named(run: Run, rows: Path) -> None:
    many = ", ".join(f'"c{i}"' for i in range(30))
    Path("many.toml").write_text(Path("schema.toml").read_text().replace('"no", "yes"', many))
    told = run("train", rows, "--schema", "many.toml", "--epsilon", 1, "-o", "m.json").stderr
    assert "classes c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, …, c29: rows with an unknown label" in told


def test_schema_drafts_from_names_and_types_only(run: Run, rows: Path) -> None:
    result = run("schema", rows, "--label", "sick")
    assert result.exit_code == 0
    assert "age = []" in result.stdout
    assert SECRET not in result.output
    public = run("schema", rows, "--label", "sick", "--public", "-o", "draft.toml")
    assert "must be public data" in public.stderr
    assert Schema.load("draft.toml").label == "sick"


def test_schema_never_replaces_a_file_that_was_completed_by_hand(run: Run, rows: Path) -> None:
    before = Path("schema.toml").read_text()
    result = run("schema", rows, "--label", "sick", "-o", "schema.toml")
    assert result.exit_code == 1
    assert "exists already" in result.stderr
    assert Path("schema.toml").read_text() == before


@pytest.mark.parametrize("file", ["out.parquet", "out.duckdb"])
def test_synth_writes_rows_that_train(run: Run, file: str) -> None:
    made = run("synth", file, "--rows", 500, "--dims", 4, "--classes", 3, "--schema", "out.toml", "--json")
    assert json.loads(made.stdout)["rows"] == 500
    table = ("--table", "rows") if file.endswith("duckdb") else ()
    result = run("train", file, *table, "--schema", "out.toml", "--epsilon", 1, "-o", "model.json")
    assert result.exit_code == 0, result.output
    assert Model.load("model.json").classes == (0, 1, 2)
    assert run("synth", file, "--rows", 5, "--dims", 4).exit_code == 1


def test_sql_predicts_what_predict_predicts(run: Run, model: Path, rows: Path) -> None:
    expression = run("sql", model).stdout
    with duckdb.connect() as connection:
        scored = connection.execute(f"SELECT {expression} FROM read_parquet(?)", [str(rows)]).fetchall()
    assert [row[0] for row in scored] == run("predict", model, rows).stdout.splitlines()[1:]
    assert json.loads(run("sql", model, "--dialect", "postgres", "--json").stdout)["dialect"] == "postgres"
    assert "tanh" in run("sql", model, "--proba").stdout


def test_a_query_is_told_what_the_promise_asks_of_it(run: Run, rows: Path) -> None:
    with duckdb.connect("rows.duckdb") as connection:
        connection.execute("CREATE TABLE people AS FROM read_parquet(?)", [str(rows)])
    arguments = ("train", "rows.duckdb", "--query", "FROM people", "--schema", "schema.toml", "-o", "a.json")
    private = run(*arguments, "--epsilon", 1)
    assert private.exit_code == 0, private.output
    assert private.stderr.startswith("condition: the guarantee is about the rows of the query's result, by position")
    assert run(*arguments, "--noiseless", "--overwrite").stderr == REMINDER
    by_table = ("train", "rows.duckdb", "--table", "people", "--schema", "schema.toml", "-o", "b.json")
    assert run(*by_table, "--epsilon", 1).stderr == REMINDER


def test_quiet_silences_notes_but_no_condition_of_the_guarantee(run: Run, rows: Path) -> None:
    arguments = (rows, "--query", "FROM source", "--schema", "schema.toml", "--epsilon", 1, "-o", "a.json")
    after = run("train", "--quiet", *arguments)
    before = run("-q", "train", *arguments, "--overwrite")
    assert after.exit_code == before.exit_code == 0, after.output + before.output
    assert after.stderr == before.stderr
    assert after.stderr.startswith("condition: the guarantee is about the rows of the query's result")
    assert "note:" not in after.stderr


def test_plan_speaks_of_a_model_that_is_not_there_yet(run: Run) -> None:
    assert "rows would change the probability" in run("plan", "--rows", 1000, "--features", 3).stdout


def test_curves_are_added_where_they_are_asked_for_or_rows_are_many(run: Run, rows: Path) -> None:
    told = run("train", rows, "--schema", "schema.toml", "--epsilon", 1, "--curves", 3, "-o", "model.json").stdout
    assert "curves                  3 steps of age, 3 of pulse\n" in told
    assert "model.json: 12 weights for 2 classes" in told
    planned = ("plan", "--schema", "schema.toml", "--epsilon", 1, "--rows")
    assert " 8 steps of age, 8 of pulse\n" in run(*planned, 20_000).stdout
    assert "curves" not in run(*planned, 2000).stdout
    assert "curves must be >= 0, got -1" in run(*planned, 2000, "--curves", -1).stderr
    columns = "".join(f"column{i} = [0, 100]\n" for i in range(7))
    Path("wide.toml").write_text(f'label = "sick"\nclasses = ["no", "yes"]\n[numeric]\n{columns}')
    told = run("plan", "--schema", "wide.toml", "--epsilon", 1, "--rows", 100_000).stdout
    assert "16 of column4 and 32 of 2 more\n" in told


def test_plan_needs_public_numbers_only(run: Run, rows: Path) -> None:
    by_schema = run("plan", "--rows", 2000, "--schema", "schema.toml", "--epsilon", 0.3, "--curves", 0, "--json")
    record = json.loads(by_schema.stdout)
    by_numbers = run("plan", "--rows", 2000, "--features", 6, "--epsilon", 0.3, "--json")
    numbered = json.loads(by_numbers.stdout)
    assert {**numbered, "spent": None} == {**record, "spent": None}
    # Which of the features are numbers, and so the noise of their moments, is known from the schema alone.
    (moments, minimised), (other_moments, other_minimised) = record["spent"]["parts"], numbered["spent"]["parts"]
    assert minimised == other_minimised
    assert moments["budget"] == other_moments["budget"]
    assert [each["event"]["numbers"] for each in (moments, other_moments)] == [2, 5]
    trained = run(
        "train", rows, "--schema", "schema.toml", "--epsilon", 0.3, "--curves", 0, "-o", "model.json", "--json"
    )
    made = json.loads(trained.stdout)
    same = ("private", "reasons", "adjacency", "epsilon", "delta", "algorithm", "rows", "models", "spent", "version")
    assert {key: made[key] for key in same} == {key: record[key] for key in same}
    noise = [row["noise_per_row"] for row in record["by_epsilon"]]
    assert noise == sorted(noise, reverse=True)
    assert 0.3 in [row["epsilon"] for row in record["by_epsilon"]]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "delta = 0 allows no other"),
        (("--delta", 1e-6, "--features", 200), "spherical: the smaller of the two"),
        (("--regularization", 0.01), "0.01: as asked for"),
        (("--regularization", 0.01, "--passes", 2), "the steps that fit the regularization"),
        (("--passes", 2), "sensitivity"),
        (("--step-size", 0.1), "0.1: as asked for"),
        (("--loss", "huber", "--multiclass", "one-vs-all", "--classes", 3), "huber, 3 models"),
    ],
)
def test_plan_says_why(run: Run, options: tuple[object, ...], said: str) -> None:
    result = run("plan", "--rows", 10_000, "--features", 9, *options)
    assert result.exit_code == 0, result.output
    assert said in result.stdout


@pytest.mark.parametrize(
    ("options", "algorithm"),
    [
        ((), "objective"),
        (("--schedule", "auto", "--analysis", "proved"), "objective"),
        (("--passes", 10), "bolton"),
        (("--batch-size", 50), "bolton"),
        (("--exponent", 0.5), "bolton"),
        (("--averaging", "last"), "bolton"),
        (("--permutation", "once"), "bolton"),
    ],
)
def test_what_only_passes_have_is_asked_for_even_as_it_would_be_anyway(
    run: Run, rows: Path, options: tuple[object, ...], algorithm: str
) -> None:
    planned = run("plan", "--rows", 1000, "--features", 5, "--epsilon", 1, *options, "--json")
    assert planned.exit_code == 0, planned.output
    assert json.loads(planned.stdout)["algorithm"] == algorithm
    recipes = [event["problem"] for event in find_events(json.loads(planned.stdout), "output perturbation")]
    assert [(recipe["passes"], recipe["batch_size"]) for recipe in recipes] == [(10, 50)] * (algorithm == "bolton")
    trained = run("train", rows, "--schema", "schema.toml", "--epsilon", 1, *options, "-o", "model.json", "--json")
    assert trained.exit_code == 0, trained.output
    assert json.loads(trained.stdout)["algorithm"] == Model.load("model.json").certificate.algorithm == algorithm


def test_version_and_help(run: Run) -> None:
    assert run("--version").stdout == f"boltdp {__version__}\n"
    assert run().stdout == run("--help").stdout == run("-h").stdout
    for name in COMMANDS:
        result = run(name, "--help")
        assert result.exit_code == 0
        assert f"boltdp {name}" in result.stdout.split("Examples:")[1]


def test_the_command_reference_is_fresh() -> None:
    fresh = (ROOT / "docs" / "cli.md").read_text("utf-8")
    assert fresh == reference(), "run `python -m website.cli_reference > docs/cli.md`"


@pytest.mark.parametrize("algorithm", ["scs13", "bst14", "dpsgd"])
def test_white_box_algorithms_are_planned_trained_and_verified(run: Run, rows: Path, algorithm: str) -> None:
    budget = ("--epsilon", 2, "--delta", 1e-5, "--algorithm", algorithm)
    planned = run("plan", "--rows", 2000, "--schema", "schema.toml", *budget)
    assert planned.exit_code == 0
    assert "in each of 400 updates" in planned.stdout
    assert f"those of {algorithm}" in planned.stdout
    assert "The noise is that of the averaged gradient of each update" in planned.stdout
    trained = run("train", rows, "--schema", "schema.toml", *budget, "-o", "model.json")
    assert trained.exit_code == 0
    assert algorithm in trained.stdout
    assert SECRET not in trained.output
    verified = run("verify", "model.json")
    assert verified.exit_code == 0
    assert "noise in every update" in verified.stdout


def test_noiseless_is_an_algorithm_too(run: Run, rows: Path) -> None:
    result = run("train", rows, "--schema", "schema.toml", "--algorithm", "noiseless", "-o", "model.json")
    assert result.exit_code == 0
    assert "NOT PRIVATE: no noise was added" in result.stdout
    both = run("train", rows, "--schema", "schema.toml", "--algorithm", "noiseless", "--epsilon", 1, "-o", "model.json")
    assert both.exit_code == 1


def test_sampled_algorithms_ask_for_a_delta(run: Run, rows: Path) -> None:
    result = run("train", rows, "--schema", "schema.toml", "--algorithm", "dpsgd", "--epsilon", 1, "-o", "model.json")
    assert result.exit_code == 1
    assert "delta must be > 0 for dpsgd, got 0" in result.stderr


@pytest.mark.parametrize("command", ["train", "tune"])
def test_a_model_that_was_paid_for_is_not_replaced_by_mistake(run: Run, rows: Path, command: str) -> None:
    before = rows.with_name("model.json")
    before.write_text("paid for")
    options = ["--schema", "schema.toml", "--epsilon", 1, "-o", "model.json"]
    if command == "tune":
        options += ["--grid", "regularization=0.01,0.1", "--trials", 2]
    refused = run(command, "not-even-there.parquet", *options)
    assert refused.exit_code == 1
    assert refused.stderr.startswith("error: the output 'model.json' exists already")
    assert "--overwrite" in refused.stderr
    assert before.read_text() == "paid for"
    assert run(command, rows, *options, "--overwrite").exit_code == 0
    assert before.read_text().startswith("{")
