"""Train a private classifier on real health data, and draw what privacy costs: `make demo`.

The data is the RAND Health Insurance Experiment's, which comes with statsmodels: for 20,190 person-years, the
insurance plan, the state of health, and how often the person saw a doctor. The experiment is long over and its data
published, so that the demo can measure accuracy where a hospital could not.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from statsmodels.datasets import randhie

from boltdp.engines import open_source
from boltdp.schema.schema import Schema
from boltdp.settings import Settings
from boltdp.workflows.predict import predict
from boltdp.workflows.train import train

HERE = Path(__file__).parent
OUTPUT = HERE / "output"
SCHEMA = HERE / "randhie.toml"

EPSILONS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
REPEATS = 25


def main() -> None:
    """Make the files, run the commands, draw the picture."""
    OUTPUT.mkdir(exist_ok=True)
    training, held_out = write_rows()
    say(
        f"{count(training):,} rows to learn from, {count(held_out):,} held out. The question: does this person see a "
        f"doctor twice or more in the year? What is public about the columns is declared in {shown(SCHEMA)}. Each row "
        "is one person in one year, and the guarantee is about one row: it does not hide all years of a person."
    )
    model = OUTPUT / "model.json"

    say("1. Train. The guarantee is about the model file: it may be published, sold or stolen.")
    boltdp("train", training, "--schema", SCHEMA, "--epsilon", "1", "--overwrite", "-o", model)

    say("2. Verify. Anyone who gets the model can recompute what it claims, without the data.")
    boltdp("verify", model)

    say("3. Evaluate, on rows the model has not seen. About half of them are in either class.")
    boltdp("evaluate", model, held_out)

    say("4. Score where the data is: the model as SQL (its first lines).")
    boltdp("sql", model, "--dialect", "duckdb", lines=4)

    say(f"5. What does privacy cost? Train {REPEATS} times at each epsilon and compare with no privacy at all.")
    draw(training, held_out, OUTPUT / "accuracy.png")


def write_rows() -> tuple[Path, Path]:
    """The rows as two Parquet files: four fifths to learn from, the rest held out."""
    frame = randhie.load_pandas().data
    table = pa.Table.from_pandas(frame.drop(columns="mdvis"), preserve_index=False)
    table = table.append_column("saw_doctor_twice", pa.array(frame["mdvis"] >= 2))
    order = np.random.default_rng(0).permutation(len(frame))
    cut = 4 * len(frame) // 5
    files = OUTPUT / "train.parquet", OUTPUT / "held_out.parquet"
    for file, part in zip(files, (order[:cut], order[cut:]), strict=True):
        pq.write_table(table.take(pa.array(part)), file)
    return files


def boltdp(*arguments: str | Path, lines: int | None = None) -> None:
    """Run a command as a user would, and show it with what it prints."""
    print("$", shlex.join(["boltdp", *map(shown, arguments)]), flush=True)
    command = [sys.executable, "-m", "boltdp", *map(shown, arguments)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    for line in printed[:lines]:
        print(f"  {line[:100]} ..." if lines else textwrap.fill(line, 110, initial_indent="  ", subsequent_indent="  "))


def draw(training: Path, held_out: Path, picture: Path) -> None:
    """Accuracy against epsilon, with the spread over repeats, between no privacy and no model."""
    schema = Schema.load(SCHEMA)
    rows, test = pq.read_table(training), pq.read_table(held_out)
    truth = np.array(test[schema.label])

    def accuracy(epsilon: float | None) -> float:
        model = train(open_source(rows), schema, Settings(epsilon=epsilon, anyway=True))
        return float((predict(model, open_source(test)) == truth).mean())

    noiseless = float(np.mean([accuracy(None) for _ in range(5)]))
    majority = float(max(truth.mean(), 1 - truth.mean()))
    private = np.array([[accuracy(epsilon) for _ in range(REPEATS)] for epsilon in EPSILONS])
    print("  epsilon   accuracy: mean, and the middle 80 % of the trainings")
    for epsilon, (low, high), mean in zip(EPSILONS, middle(private), private.mean(axis=1), strict=True):
        print(f"  {epsilon:7g}   {mean:.3f}   {low:.3f} to {high:.3f}")
    print(f"  no noise  {noiseless:.3f}   not private")
    print(f"  guessing  {majority:.3f}   the larger class for everyone")
    plot(private, noiseless=noiseless, majority=majority, picture=picture)
    kept = (private.mean(axis=1)[EPSILONS.index(1.0)] - majority) / (noiseless - majority)
    say(
        f"At epsilon = 1 the model keeps {kept:.0%} of what can be learned beyond guessing. A smaller epsilon is a "
        "stronger guarantee, and the noise that keeps it hides more of what was learned. "
        "With ten times the rows, the same accuracy would cost about a tenth of the epsilon. "
        f"The picture: {shown(picture)}"
    )


def count(file: Path) -> int:
    """The rows of a Parquet file."""
    return int(pq.read_metadata(file).num_rows)


def middle(accuracies: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The 10th and 90th percentile of each row."""
    return np.quantile(accuracies, [0.1, 0.9], axis=1).T


def plot(private: npt.NDArray[np.float64], *, noiseless: float, majority: float, picture: Path) -> None:
    """Draw the picture."""
    means, ends = private.mean(axis=1), middle(private)
    figure, axes = plt.subplots(figsize=(7.5, 4.6), layout="constrained")
    left, right = EPSILONS[0] / 1.4, EPSILONS[-1] * 1.4
    axes.axhline(noiseless, color="#555555", linewidth=1.4)
    axes.text(left * 1.04, noiseless + 0.002, "no privacy", color="#555555", va="bottom")
    axes.axhline(majority, color="#999999", linewidth=1.4, linestyle=(0, (4, 3)))
    axes.text(
        right / 1.04, majority - 0.002, "no model: the larger class for everyone", color="#777777", va="top", ha="right"
    )
    axes.errorbar(
        EPSILONS,
        means,
        yerr=np.abs(ends.T - means),
        color="#0b6e99",
        linewidth=2,
        marker="o",
        markersize=6,
        capsize=4,
        elinewidth=1.3,
    )
    # Below the dashed line, on the right, nothing is drawn.
    axes.text(
        right / 1.04,
        majority - 0.02,
        f"private: mean, and the middle 80 % of {REPEATS} trainings",
        color="#0b6e99",
        va="top",
        ha="right",
    )
    axes.set_xscale("log")
    axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
    axes.minorticks_off()
    axes.set_xlim(left, right)
    axes.set_ylim(min(majority - 0.03, ends.min()) - 0.012, noiseless + 0.014)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("epsilon   (smaller: stronger guarantee)")
    axes.set_ylabel("accuracy on held-out rows")
    axes.set_title("What privacy costs: who sees a doctor twice a year or more?", loc="left", fontsize=12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    figure.savefig(picture, dpi=150)
    plt.close(figure)


def shown(argument: str | Path) -> str:
    """A path as seen from where the demo was started."""
    if isinstance(argument, Path) and argument.is_relative_to(Path.cwd()):
        return str(argument.relative_to(Path.cwd()))
    return str(argument)


def say(text: str) -> None:
    """Print an explanation."""
    print(f"\n{textwrap.fill(text, 110)}\n", flush=True)


if __name__ == "__main__":
    main()
