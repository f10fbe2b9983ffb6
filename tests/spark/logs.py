"""What two event logs of Spark differ in, apart from times, names and addresses."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Keys, or names of accumulated numbers, that tell of time, of the garbage collector's mood or of where it ran.
UNTOLD = re.compile(
    r"time|timestamp|duration|gc|^port$|^app id$|^process tree|^jvm|^executor metrics|^task executor metrics"
    r"|peak.*memory|executionmemory|^metadata$|^jobtags$|data size of memory|^properties$",
    re.IGNORECASE,
)
#: What names have in them that is drawn or counted: identifiers of expressions, objects and runs.
DRAWN = re.compile(
    r"#\d+L?|@[0-9a-f]+|\b[0-9a-f]{16,}\b|plan_id=\d+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|local-\d+"
)

#: Of a result, for each number that a task has accumulated and that is not zero.
RESULT_NUMBER_BYTES = 43


def events(folder: Path) -> list[dict[str, Any]]:
    """All that Spark has logged there."""
    (path,) = (folder / "events").iterdir()
    text = path.read_text().replace(str(folder), "")
    return [json.loads(line) for line in text.splitlines()]


def told(folder: Path) -> Counter[tuple[str, str]]:
    """What each event says, as pairs of a key, by which it is told apart from others of its kind, and a value."""
    found: Counter[tuple[str, str]] = Counter()
    for event in events(folder):
        kind = event["Event"].rpartition(".")[2]
        # The last has the milliseconds that listing files took, among numbers without names.
        if kind in (
            "SparkListenerEnvironmentUpdate",
            "SparkListenerApplicationStart",
            "SparkListenerExecutorAdded",
            "SparkListenerDriverAccumUpdates",
        ):
            continue
        task = event.get("Task Info", {})
        where = [str(event[key]) for key in ("Stage ID", "Job ID", "executionId") if key in event]
        where += [str(task["Index"])] if task else []
        # A broadcast has objects of Spark's own, and what is ours in it is hidden.
        if "Block Updated Info" in event and event["Block Updated Info"]["Block ID"].startswith("broadcast_"):
            continue
        if "Block Updated Info" in event:
            where.append(str(event["Block Updated Info"]["Block ID"]))
        for key, value in leaves(event, ()):
            found[f"{kind}[{','.join(where)}].{'.'.join(key)}", DRAWN.sub("", value)] += 1
    return found


def leaves(data: Any, key: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The values in nested objects, each with its path."""
    if isinstance(data, dict):
        named = str(data.get("Name", data.get("name", "")))
        if ("Value" in data or "Update" in data) and UNTOLD.search(named):
            return
        for name, value in data.items():
            if not UNTOLD.search(name):
                inner = (*key, named, name) if name in ("Value", "Update") else (*key, name)
                yield from leaves(value, inner)
    elif isinstance(data, list):
        for value in data:
            yield from leaves(value, key)
    elif key[-1] == "Result Size" or "internal.metrics.resultSize" in key:
        # A number of which there is an update takes 43 bytes of the result, and times are such numbers, if not zero.
        # So only what remains is compared; what a stage or its last task has in total is a sum of such.
        yield key, str(int(data) % RESULT_NUMBER_BYTES)
    else:
        yield key, str(data)


def differences(one: Path, other: Path) -> dict[str, tuple[list[str], list[str]]]:
    """What only one of two logs tells, by keys: there, and in the other."""
    first, second = told(one), told(other)
    found: dict[str, tuple[list[str], list[str]]] = {}
    for side, counts in ((0, first - second), (1, second - first)):
        for (key, value), count in sorted(counts.items()):
            found.setdefault(key, ([], []))[side].extend([value] * count)
    return found


def kinds(found: dict[str, Any]) -> Counter[str]:
    """The keys without the stages, tasks and blocks that they are of."""
    return Counter(re.sub(r"\[.*?\]|(?<=_)\d+", "", key) for key in found)
