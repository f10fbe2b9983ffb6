"""Heads on wide vectors: `auto` on public features of images, accuracy and cost.

    python -m experiments.wide                                  # prints the table of docs/accuracy.md, test rows
    python -m experiments.wide fashion hog --within             # the last tenth of the TRAINING rows judges

The images are looked for in BOLTDP_DATA. Each training is a process of its own, which reads a Parquet file with a
column of lists, so that its processor time and its memory are those of a user.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from boltdp.engines import open_source
from boltdp.schema.schema import make_array_schema
from boltdp.settings import Settings
from boltdp.workflows.train import train
from experiments.datasets import data_directory
from experiments.image_features import Features, Images, orient, scatter
from experiments.tasks import Answer, Scores, judged

IMAGES: Mapping[str, str] = {"mnist": "mnist", "fashion": "fashion_mnist"}
SIDE = 28


def normalize_pixels(images: Images) -> Features:
    """Return the pixels, divided by the largest norm that an image can have."""
    return images.reshape(len(images), -1) / np.float32(SIDE)


FEATURES: Mapping[str, Callable[[Images], Features]] = {
    "pixels": normalize_pixels,
    "hog": orient,
    "scattering": scatter,
}
EPSILONS, DELTA = (0.1, 0.3, 1.0, 3.0), 1e-5


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", metavar="what", help=", ".join([*IMAGES, *FEATURES]))
    parser.add_argument("--epsilons", type=lambda text: [float(one) for one in text.split(",")], default=EPSILONS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--within", action="store_true", help="look at training rows alone")
    parser.add_argument("--rows", type=int, default=60_000, help="the number of training rows")
    chosen = parser.parse_args()
    print("| images | features | epsilon | accuracy | log loss | scans | CPU seconds | peak memory |\n|" + "---|" * 8)
    for images in [name for name in IMAGES if name in chosen.only] or IMAGES:
        for features in [name for name in FEATURES if name in chosen.only] or FEATURES:
            with tempfile.TemporaryDirectory() as directory:
                width = write_rows(images, features, Path(directory), within=chosen.within, rows=chosen.rows)
                for epsilon in chosen.epsilons:
                    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
                        runs = pool.starmap(run, [(directory, width, epsilon)] * chosen.repeats, chunksize=1)
                    print(
                        f"| {images} | {features}, {width:,} | {epsilon:g} | {' | '.join(summarize(runs))} |",
                        flush=True,
                    )


def write_rows(images: str, features: str, directory: Path, *, within: bool, rows: int) -> int:
    """Write the features of the rows to train on and to judge by as Parquet files, and return their width."""
    parts = {part: _read_images(IMAGES[images], part) for part in (("train",) if within else ("train", "test"))}
    pixels, labels = parts["train"]
    if within:
        cut = len(pixels) - len(pixels) // 10
        parts = {"train": (pixels[:cut], labels[:cut]), "test": (pixels[cut:], labels[cut:])}
    for part, (pixels, labels) in parts.items():
        found = FEATURES[features](pixels[:rows])
        lists = pa.FixedSizeListArray.from_arrays(pa.array(found.reshape(-1)), found.shape[1])
        table = pa.table({"x": lists, "label": labels[:rows]})
        pq.write_table(table, directory / f"{part}.parquet", row_group_size=4096, use_dictionary=False)
    return int(found.shape[1])


def _read_images(name: str, part: str) -> tuple[Images, Any]:
    table = pq.read_table(data_directory() / f"{name}_{part}.parquet")
    pixels = np.stack([table[f"f{place}"].to_numpy() for place in range(SIDE * SIDE)], axis=1)
    return pixels.reshape(-1, SIDE, SIDE).astype(np.float32) / np.float32(255), table["label"].to_numpy()


def run(directory: str, width: int, epsilon: float) -> Scores:
    """Train by `auto` and return the scores, and what the training cost."""
    schema = make_array_schema(dims=width, classes=range(10), intercept=True)
    start = time.process_time()
    with open_source(Path(directory) / "train.parquet") as rows:
        model = train(rows, schema, Settings(epsilon=epsilon, delta=DELTA, anyway=True))
    seconds = time.process_time() - start
    # Of this process since its start: what `getrusage` says begins with the memory of its parent.
    peak = Path("/proc/self/status").read_text("utf-8").split("VmHWM:")[1].split()[0]
    scans = float(getattr(model.certificate.training, "scans", 0))
    test = Path(directory) / "test.parquet"
    labels = pq.read_table(test, columns=["label"])["label"].to_numpy().astype(np.int64)
    with open_source(test) as rows:
        answer = Answer.of_model(model, rows)
    return {**judged(answer, labels), "scans": scans, "s": seconds, "MB": int(peak) / 1000.0}


def summarize(runs: Sequence[Scores]) -> Iterator[str]:
    """Yield the cells of a row of the table."""
    for metric in ("accuracy", "log loss"):
        values = [one[metric] for one in runs]
        yield f"{statistics.mean(values):.3f} ± {statistics.stdev(values) if len(values) > 1 else 0.0:.3f}"
    yield f"{runs[0]['scans']:.0f}"
    yield f"{statistics.mean(one['s'] for one in runs):.0f}"
    yield f"{max(one['MB'] for one in runs):,.0f} MB"


if __name__ == "__main__":
    main()
