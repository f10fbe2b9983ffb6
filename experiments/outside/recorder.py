"""Re:cord-play (Cebere, Erb, Desfontaines, Bellet and Fitzsimons, arXiv 2602.17454), in our own code.

A training is recorded: what each mechanism was given and what it gave, random bytes that were read outside of the
mechanisms, which lines were run, and all that an observer sees. It is run again on a neighbouring dataset with the same
random bytes, and each mechanism gives what it gave before. Then everything but the inputs of mechanisms must be the
same, and these must differ by at most what is declared.

The minimiser of objective perturbation is not the output of a mechanism with a sensitivity. There, the second run has
the linear term with which the minimiser is the same, and the distance of both terms is compared, as in the proof.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import boltdp
from boltdp._array_types import Doubles
from boltdp.audit.replay_on_neighbours import list_releases
from boltdp.audit.subject import Claim
from boltdp.engines.in_memory import ArrayEngine
from boltdp.model import Model
from boltdp.privacy import release_with_noise
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.noisy_sgd import NoisyUpdates
from boltdp.privacy.events.objective_perturbation import ObjectivePerturbation
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.release_with_noise import RandomBytes
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.run_context import Context
from boltdp.schema.schema import Classes, Numeric, Schema
from boltdp.settings import Settings
from boltdp.workflows.train import train

#: Lines of these rooms must be the same in both runs. The solver's number of steps depends on rows, and is not shown.
ROOMS, LEFT_OUT = ("algorithms", "workflows", "privacy"), ("_newton.py", "exact_noise.py", "mechanisms.py")
SCHEMA = Schema(Classes("y", (0, 1)), (Numeric("a", -1, 1), Numeric("b", -1, 1)))
#: Tolerance of ratios, for rounding.
ROUNDING = 1e-9

Row = tuple[Any, Any, Any]  #: the values of a, b and y


@dataclass
class Trace:
    """All that a run has done, and all that it shows."""

    calls: list[tuple[Mechanism, Doubles, Doubles]] = field(default_factory=list)  #: mechanism, input, output
    random: list[bytes] = field(default_factory=list)  #: read outside of mechanisms
    lines: list[tuple[str, int]] = field(default_factory=list)
    seen: list[Any] = field(default_factory=list)  #: progress, and the model


@dataclass(frozen=True)
class Verdict:
    """What two runs differ in."""

    mechanisms: int  #: calls in a run
    ratio: float  #: the largest distance of inputs, in declared sensitivities
    faults: tuple[str, ...]


def make_rows(count: int, *, seed: int = 0) -> list[Row]:
    """Make rows of two features, and classes that depend on them."""
    made = np.random.default_rng(seed)
    return [(float(a), float(b), int(a + b > 0)) for a, b in made.uniform(-1, 1, (count, 2))]


#: What the first row is in each of two neighbouring datasets.
NEIGHBOURS: Sequence[tuple[Row, Row]] = (
    ((1.0, 1.0, 1), (1.0, 1.0, 0)),
    ((1.0, 1.0, 1), (-1.0, -1.0, 1)),
    ((1e9, -1e9, 0), (None, None, None)),
    ((float("nan"), float("inf"), 1), (0.3, -0.4, 1)),
)


def audit_training(settings: Settings, *, rows: int = 40) -> Verdict:
    """Record a training and run it again on each neighbour; return the worst of all."""
    faults: list[str] = []
    ratio, calls = 0.0, 0
    others = make_rows(rows - 1)
    run_recorded(settings, others[:1] * rows, Trace())  # so that all caches are filled
    for one, other in NEIGHBOURS:
        first, second = Trace(), Trace()
        model = run_recorded(settings, [one, *others], first)
        certificate = model.certificate
        run_recorded(
            settings, [other, *others], second, recorded=first, shift=_shift_terms(certificate, first, one, other)
        )
        found, farthest = compare(certificate, first, second)
        faults += [fault for fault in found if fault not in faults]
        ratio, calls = max(ratio, farthest), len(first.calls)
    if ratio > 1.0 + ROUNDING:
        faults.append(f"an input differs by {ratio:.3g} declared sensitivities")
    return Verdict(calls, ratio, tuple(faults))


def run_recorded(
    settings: Settings,
    rows: Sequence[Row],
    trace: Trace,
    *,
    recorded: Trace | None = None,
    shift: Callable[[Mechanism], Doubles | None] = lambda _: None,
) -> Model:
    """Train with everything written into `trace`; with a recorded run, its random bytes and outputs are used again."""
    import pyarrow as pa

    engine = ArrayEngine.from_arrow(
        pa.table({name: list(column) for name, column in zip("aby", zip(*rows, strict=True), strict=True)})
    )
    context = Context(seed=1, threads=1, progress=lambda *report: trace.seen.append(report))
    with intercepted(trace, recorded, shift), traced(trace):
        model = train(engine, SCHEMA, settings, context=context)
    trace.seen.append(model.to_dict())
    return model


@contextmanager
def intercepted(trace: Trace, recorded: Trace | None, shift: Callable[[Mechanism], Doubles | None]) -> Iterator[None]:
    """Take the place of the mechanism and of the source of random bytes."""
    names = vars(release_with_noise)
    add_noise, system_bytes = names["add_noise"], names["system_bytes"]
    inside = [False]

    def mechanism(noise: Mechanism, vector: Doubles, random_bytes: RandomBytes) -> Doubles:
        place = len(trace.calls)
        again = None if recorded is None else recorded.calls[place : place + 1]
        if again:
            output, moved = again[0][2], shift(noise)
            if moved is not None:
                vector, output = vector + moved, output + moved
        else:
            inside[0] = True
            output = add_noise(noise, vector, random_bytes)
            inside[0] = False
        trace.calls.append((noise, vector.copy(), output.copy()))
        return np.array(output)

    def random_bytes(count: int) -> bytes:
        if inside[0]:
            return bytes(system_bytes(count))
        place = len(trace.random)
        again = [] if recorded is None else recorded.random[place : place + 1]
        trace.random.append(again[0] if again and len(again[0]) == count else system_bytes(count))
        return trace.random[-1]

    names["add_noise"], names["system_bytes"] = mechanism, random_bytes
    try:
        yield
    finally:
        names["add_noise"], names["system_bytes"] = add_noise, system_bytes


@contextmanager
def traced(trace: Trace) -> Iterator[None]:
    """Write down which lines of the rooms are run."""
    rooms = tuple(str(Path(boltdp.__file__).parent / room) for room in ROOMS)

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        del event
        if not frame.f_code.co_filename.startswith(rooms):
            return None
        outer: FrameType | None = frame
        while outer is not None:  # whatever is called from what is left out is left out too
            if outer.f_code.co_filename.endswith(LEFT_OUT):
                return None
            outer = outer.f_back
        return line

    def line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            trace.lines.append((frame.f_code.co_filename, frame.f_lineno))
        return line

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)


def declare_sensitivities(certificate: Certificate) -> dict[Mechanism, float]:
    """Return the declared sensitivity of each mechanism of a training."""
    events = [certificate.training, certificate.moments, certificate.unusable_label_count]
    claims = [Claim(event, Budget(1.0)) for event in events if event is not None]
    return {limit.noise: limit.sensitivity for claim in claims for limit in list_releases(claim)}


def compare(certificate: Certificate, first: Trace, second: Trace) -> tuple[list[str], float]:
    """Return what two runs differ in that they must not, and the largest distance of inputs in sensitivities."""
    faults, ratio, declared = [], 0.0, declare_sensitivities(certificate)
    if [call[0] for call in first.calls] != [call[0] for call in second.calls]:
        faults.append("the mechanisms that are called depend on the data")
    if [len(read) for read in first.random] != [len(read) for read in second.random]:
        faults.append("the number of random bytes depends on the data")
    if first.lines != second.lines:
        # The file alone: which line it is may depend on the version.
        place = next(one or other for one, other in zip_longest(first.lines, second.lines) if one != other)
        faults.append(f"the control flow depends on the data ({Path(place[0]).name})")
    for (noise, before, _), (_, after, _) in zip(first.calls, second.calls, strict=False):
        if noise not in declared:
            faults.append("a mechanism is called that the certificate does not declare")
        else:
            ratio = max(ratio, float(np.linalg.norm(after - before)) / declared[noise])
    *progress, model = first.seen
    *progress_again, model_again = second.seen
    if progress != progress_again:
        faults.append("the progress depends on the data")
    if isinstance(event := certificate.training, NoisyUpdates):
        ratio = max(ratio, _move_of_update(event, model, model_again))
        model, model_again = {**model, "weights": None}, {**model_again, "weights": None}
    if repr(model) != repr(model_again):
        faults.append("something is released that no mechanism gave")
    return faults, ratio


def _move_of_update(event: NoisyUpdates, one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return how far the gradients of the only update are apart, whose noise is the same, in sensitivities."""
    recipe = event.problem
    assert isinstance(recipe, Recipe)
    assert recipe.updates == 1
    step = float(recipe.schedule.compute_steps(1)[0])
    moved = np.linalg.norm(np.array(one["weights"]) - np.array(other["weights"])) / step
    return float(moved) / (2.0 * recipe.loss.lipschitz / recipe.smallest_batch)


def _shift_terms(certificate: Certificate, first: Trace, one: Row, other: Row) -> Callable[[Mechanism], Doubles | None]:
    """Return the move of the linear term with which the neighbour has the recorded minimiser; else nothing."""
    event = certificate.training
    if not isinstance(event, ObjectivePerturbation):
        return lambda _: None
    (weights,) = [given for noise, given, _ in first.calls if noise == event.end]
    loss, (before, after) = event.problem.loss, (_encode(row) for row in (one, other))

    def gradient(row: tuple[Doubles, int] | None) -> Doubles:
        if row is None:
            return np.zeros_like(weights)
        features, label = row
        return np.asarray(loss.compute_slopes(np.array([weights @ features]), label, positive=1)[0] * features)

    moved = gradient(before) - gradient(after)
    return lambda noise: moved if noise == event.linear else None


def _encode(row: Row) -> tuple[Doubles, int] | None:
    """Return the features and the class of a row, as docs/design.md says; None where it counts for nothing."""
    *values, label = row
    if label is None:
        return None
    known = [0.0 if value is None or np.isnan(value) else np.clip(value, -1.0, 1.0) for value in values]
    packed = np.array(known, np.float32).astype(np.float64)
    return np.append(packed, 1.0) / np.sqrt(3.0), label


#: The trainings that are run again: those whose noise is drawn inside the kernel make one update.
TRAININGS: dict[str, Settings] = {
    "bolton": Settings(epsilon=1.0, algorithm="bolton", loss="logistic", passes=2),
    "bolton, standardized": Settings(epsilon=1.0, algorithm="bolton", passes=2, standardize="private"),
    "objective": Settings(epsilon=1.0, algorithm="objective", loss="logistic"),
    "noisy-gd": Settings(epsilon=1.0, delta=1e-6, algorithm="noisy-gd", passes=5),
    "noisy-gd, standardized": Settings(epsilon=1.0, delta=1e-6, algorithm="noisy-gd", passes=5, standardize="private"),
    "scs13": Settings(epsilon=1.0, algorithm="scs13", loss="logistic", passes=1, batch_size=40),
    "bst14": Settings(epsilon=1.0, delta=1e-6, algorithm="bst14", loss="logistic", passes=1, batch_size=40),
    "dpsgd": Settings(epsilon=1.0, delta=1e-6, algorithm="dpsgd", loss="logistic", passes=1, batch_size=40),
}
