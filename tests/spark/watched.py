"""A program that trains in Spark and prints the numbers that nobody may see: of rows, sums, states and weights.

`python -m tests.spark.watched ADDRESS TABLE`
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from boltdp.engines.spark import SparkEngine, executor_tasks, prepared_rows
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema
from boltdp.settings import Settings
from boltdp.workflows.train import train

ROWS = 700
SCHEMA = Schema(
    Classes("sick", (0, 1)), (Numeric("age", 0, 100), Numeric("dose", -1, 1), Categorical("town", ("Ulm", "Bonn")))
)
SETTINGS = (
    Settings(epsilon=1.0, delta=1e-6, algorithm="objective", seed=7, noise_seed=1),
    Settings(epsilon=1.0, algorithm="bolton", seed=7, noise_seed=1, passes=2, partitions=2, permutation="fresh"),
    Settings(epsilon=1.0, delta=1e-6, algorithm="noisy-gd", seed=7, noise_seed=1, passes=2),
)


def rows() -> pa.Table:
    """Numbers of many digits, so that none is found by chance."""
    random = np.random.default_rng(5)
    age, dose = random.uniform(0, 100, ROWS), random.normal(0, 0.5, ROWS)
    town = random.choice(["Ulm", "Bonn", "Unterwurmbach"], ROWS).tolist()
    return pa.table({"age": age, "dose": dose, "town": town, "sick": (age + 40 * dose > 50).astype(int)})


def main(address: str, table: str) -> None:
    seen: set[bytes] = set()

    def remember(data: bytes) -> None:
        """All words of a state or a sum, doubles or whole numbers, that have so many bytes that none is a constant."""
        words = np.frombuffer(data[: len(data) // 8 * 8], np.uint8).reshape(-1, 8)
        seen.update(word.tobytes() for word in words[((words != 0) & (words != 255)).sum(axis=1) >= 6])

    join, update, carry = executor_tasks.join_results, prepared_rows._update_from_result, executor_tasks.pack_payload

    def joined(sums: Sequence[Any], result: bytes) -> None:
        for data in executor_tasks.unpack_results(result):
            remember(data)
        join(sums, result)
        for each in sums:
            remember(np.asarray(each.value, np.float64).tobytes())

    def updated(states: Sequence[Any], row: Any) -> None:
        for data in executor_tasks.unpack_results(bytes(row["result"])):
            remember(data)
        update(states, row)

    def pack_payload(objects: Any) -> bytes:
        for one in objects:
            if hasattr(one, "to_bytes"):
                remember(one.to_bytes())
        return carry(objects)

    executor_tasks.join_results, prepared_rows._update_from_result, executor_tasks.pack_payload = (
        joined,
        updated,
        pack_payload,
    )
    with SparkEngine.open(address, table=table) as engine:
        for settings in SETTINGS:
            train(engine, SCHEMA, settings)
    print(json.dumps(sorted(word.hex() for word in seen)))


if __name__ == "__main__":
    main(*sys.argv[1:])
