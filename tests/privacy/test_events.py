"""The tree of what was spent: what is planned keeps its budget, less noise does not, and nothing else is read."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import pytest

from boltdp.errors import ParameterError
from boltdp.losses import LOSSES, Logistic, Loss, Multinomial
from boltdp.privacy.adjacency import Adjacency
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import (
    OVERSPENT,
    UNCLAIMED,
    Certificate,
    CertificateError,
    certify,
    check_claimed_budget,
    fits_budget,
    subtract_spent,
    verify,
)
from boltdp.privacy.events.event import (
    NOISELESS,
    SEEDED,
    BudgetedEvent,
    Composition,
    Event,
    NoiselessTraining,
    NonPrivateEvent,
    SelfComposition,
    Training,
    compose,
    mark_non_private,
)
from boltdp.privacy.events.noisy_moments import NoisyMoments
from boltdp.privacy.events.noisy_sgd import NoisyUpdates, calibrate_bst14, calibrate_dpsgd, calibrate_scs13
from boltdp.privacy.events.objective_perturbation import make_objective_perturbation
from boltdp.privacy.events.output_perturbation import OutputPerturbation, make_output_perturbation
from boltdp.privacy.events.selection import PortionSelection, PublicSelection, TrialSelection, split_trial_budget
from boltdp.privacy.events.sgd_sensitivity import compute_sgd_sensitivity
from boltdp.privacy.mechanisms import Mechanism, calibrate, calibrate_unit_gaussian, calibrate_unit_spherical
from boltdp.privacy.serialization import from_record, load_event_classes, to_record
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule, make_strongly_convex_schedule
from boltdp.privacy.training_problem import Problem
from tests.example_losses import every_loss

PURE, APPROXIMATE = Budget(0.8), Budget(0.8, 1e-6)
EVERY = every_loss(classes=4)

Plan = Callable[[Loss, Budget], Event]


# ---- one of each, planned for a budget --------------------------------------------------------------------------


def recipe(loss: Loss, *, dims: int = 40) -> Recipe:
    return Recipe(loss=loss, dims=dims, rows=1000, batch_size=30, passes=4, schedule=make_constant_schedule(0.05))


def problem(loss: Loss, *, dims: int = 6) -> Problem:
    # Kinks take a share of epsilon, even where a model has a third of it.
    return Problem(loss=loss, dims=dims, rows=1000, regularization=0.1 if loss.simplex.kink_curvature is None else 2.0)


def output(loss: Loss, budget: Budget) -> OutputPerturbation:
    return make_output_perturbation(recipe(loss, dims=6), budget)


def harmonic(loss: Loss, budget: Budget) -> OutputPerturbation:
    schedule = make_strongly_convex_schedule(beta=loss.smoothness + 0.1, gamma=0.1)
    return make_output_perturbation(replace(recipe(loss, dims=6), regularization=0.1, schedule=schedule), budget)


def in_partitions(loss: Loss, budget: Budget) -> OutputPerturbation:
    return make_output_perturbation(replace(recipe(loss, dims=6), partitions=7), budget)


def gaussian(loss: Loss, budget: Budget) -> OutputPerturbation:
    run = recipe(loss, dims=6)
    sigma = math.nextafter(compute_sgd_sensitivity(run).total * calibrate_unit_gaussian(budget), math.inf)
    return OutputPerturbation(run, Mechanism("gaussian", sigma, run.dimensions))


def spherical(loss: Loss, budget: Budget) -> OutputPerturbation:
    run = recipe(loss, dims=6)
    scale = compute_sgd_sensitivity(run).total * calibrate_unit_spherical(budget, dimensions=run.dimensions)
    return OutputPerturbation(run, Mechanism("spherical", math.nextafter(scale, math.inf), run.dimensions))


def objective(loss: Loss, budget: Budget) -> Event:
    return make_objective_perturbation(problem(loss), budget)


def wide_objective(loss: Loss, budget: Budget) -> Event:
    """So many dimensions that the noise is Gaussian."""
    return make_objective_perturbation(problem(loss, dims=1200), budget)


def scs13(loss: Loss, budget: Budget) -> NoisyUpdates:
    return NoisyUpdates(recipe(loss), calibrate_scs13(recipe(loss), budget), "permutation")


def bst14(loss: Loss, budget: Budget) -> NoisyUpdates:
    return NoisyUpdates(recipe(loss), calibrate_bst14(recipe(loss), budget), "fixed size")


def dpsgd(loss: Loss, budget: Budget) -> NoisyUpdates:
    return NoisyUpdates(recipe(loss), calibrate_dpsgd(recipe(loss), budget), "poisson")


def moments(kind: str, budget: Budget) -> NoisyMoments:
    return NoisyMoments(moments=cast(Any, kind), features=5, numbers=3, clip_norm=1.5).calibrate_noise(budget)


def standardized(train: Plan, kind: str = "mean") -> Plan:
    def plan(loss: Loss, budget: Budget) -> Event:
        share, left = budget.take_share(0.1)
        return compose(BudgetedEvent(share, moments(kind, share)), BudgetedEvent(left, train(loss, left)))

    return plan


def one_vs_all(train: Plan, models: int = 3) -> Plan:
    def plan(loss: Loss, budget: Budget) -> Event:
        share = budget.split(models)
        return SelfComposition(BudgetedEvent(share, train(loss, share)), models)

    return plan


def on_portions(train: Plan) -> Plan:
    def plan(loss: Loss, budget: Budget) -> Event:
        trained = tuple(BudgetedEvent(budget, train(loss, budget)) for _ in range(2))
        return PortionSelection(trained=trained, chosen=1, rows=3000, epsilon=budget.epsilon)

    return plan


def by_trials(train: Plan) -> Plan:
    def plan(loss: Loss, budget: Budget) -> Event:
        model, score = split_trial_budget(budget, mean=10.0)
        trained = tuple(BudgetedEvent(model, train(loss, model)) for _ in range(2))
        return TrialSelection(trained=trained, chosen=0, rows=1000, mean=10.0, score_epsilon=score.epsilon)

    return plan


def on_public_rows(train: Plan) -> Plan:
    def plan(loss: Loss, budget: Budget) -> Event:
        part = BudgetedEvent(budget, train(loss, budget))
        return PublicSelection(trained=part, compared=4, chosen=3, rows=1000, public_rows=20)

    return plan


@dataclass(frozen=True)
class Case:
    name: str
    plan: Plan
    budget: Budget
    losses: tuple[Loss, ...] = EVERY


CASES = [
    Case("output, pure", output, PURE),
    Case("output, steps that fall, pure", harmonic, PURE),
    Case("output, with delta", output, APPROXIMATE),
    Case("output, steps that fall, with delta", harmonic, APPROXIMATE),
    Case("output, in partitions, pure", in_partitions, PURE),
    Case("output, in partitions, with delta", in_partitions, APPROXIMATE),
    Case("output, gaussian", gaussian, APPROXIMATE),
    Case("output, spherical", spherical, APPROXIMATE),
    Case("objective, pure", objective, PURE),
    Case("objective, with delta", objective, APPROXIMATE),
    Case("objective, gaussian", wide_objective, APPROXIMATE),
    Case("scs13, pure", scs13, PURE),
    Case("scs13, gaussian", scs13, APPROXIMATE),
    Case("bst14", bst14, APPROXIMATE),
    Case("dpsgd", dpsgd, APPROXIMATE),
    Case("moments and objective, pure", standardized(objective), PURE),
    Case("moments and objective, with delta", standardized(objective), APPROXIMATE),
    Case("squares and objective, with delta", standardized(objective, "squares"), APPROXIMATE),
    Case("moments and output, pure", standardized(output), PURE),
    Case("moments and dpsgd", standardized(dpsgd), APPROXIMATE),
    Case("one-vs-all of objective, pure", one_vs_all(objective), PURE),
    Case("one-vs-all of output, with delta", one_vs_all(output), APPROXIMATE),
    Case("one-vs-all of scs13", one_vs_all(scs13), APPROXIMATE),
    Case("one-vs-all of bst14", one_vs_all(bst14), APPROXIMATE),
    Case("moments and one-vs-all of objective", standardized(one_vs_all(objective)), APPROXIMATE),
    Case("portions of objective, pure", on_portions(objective), PURE),
    Case("portions of output, with delta", on_portions(output), APPROXIMATE),
    Case("trials of objective, pure", by_trials(objective), PURE),
    Case("trials of output, with delta", by_trials(output), APPROXIMATE),
    Case("trials of one-vs-all of output", by_trials(one_vs_all(output)), APPROXIMATE),
    Case("public rows, objective, with delta", on_public_rows(objective), APPROXIMATE),
    Case("public rows, dpsgd", on_public_rows(dpsgd), APPROXIMATE),
    Case("moments and trials of objective", standardized(by_trials(objective)), APPROXIMATE),
    Case("moments and portions of one-vs-all", standardized(on_portions(one_vs_all(output))), PURE),
]
LISTED = [pytest.param(case, loss, id=f"{case.name}, {loss.name}") for case in CASES for loss in case.losses]


def certified(case: Case, loss: Loss) -> Certificate:
    return certify(case.plan(loss, case.budget), case.budget)


def scaled(value: Any, factor: float) -> Iterator[Any]:
    """The same tree with one of its noises scaled, for each of them."""
    if isinstance(value, Mechanism):
        yield replace(value, scale=factor * value.scale)
    elif isinstance(value, tuple):
        for i, one in enumerate(value):
            for changed in scaled(one, factor):
                yield (*value[:i], changed, *value[i + 1 :])
    elif isinstance(value, (Event, BudgetedEvent)):
        for field in dataclasses.fields(cast(Any, value)):
            for changed in scaled(getattr(value, field.name), factor):
                yield replace(cast(Any, value), **{field.name: changed})


def mechanisms(event: Event) -> int:
    return sum(1 for _ in scaled(event, 1.0))


def strongest(value: Any, factor: float) -> Any:
    """The same tree with all of its noises scaled."""
    if isinstance(value, Mechanism):
        return replace(value, scale=factor * value.scale)
    if isinstance(value, tuple):
        return tuple(strongest(one, factor) for one in value)
    if isinstance(value, (Event, BudgetedEvent)):
        names = [field.name for field in dataclasses.fields(cast(Any, value))]
        return replace(cast(Any, value), **{name: strongest(getattr(value, name), factor) for name in names})
    return value


# ---- what is planned keeps its budget, and less does not --------------------------------------------------------


@pytest.mark.parametrize(("case", "loss"), LISTED)
def test_what_is_planned_for_a_budget_keeps_it(case: Case, loss: Loss) -> None:
    certificate = certified(case, loss)
    assert fits_budget(certificate.spent, case.budget)
    assert certificate.private
    assert certificate.reasons == ()
    verify(certificate)
    spent = certificate.spent.delta(case.budget.epsilon, target=case.budget.delta or 1e-9)
    assert 0 <= spent <= case.budget.delta * (1 + 1e-9)
    assert certificate.delta(case.budget.epsilon) <= case.budget.delta * (1 + 1e-9)


@pytest.mark.parametrize(("case", "loss"), LISTED)
def test_a_tenth_less_of_any_noise_does_not_keep_it(case: Case, loss: Loss) -> None:
    """Each noise of the tree by itself, and all of them."""
    event, budget = case.plan(loss, case.budget), case.budget
    shorter = [*scaled(event, 0.9), strongest(event, 0.9)]
    assert len(shorter) == 1 + mechanisms(event) >= 2
    for less in shorter:
        assert not fits_budget(less, budget)
        certificate = certify(less, budget)
        assert not certificate.private
        assert certificate.reasons == (OVERSPENT,)
        assert certificate.guarantee() == f"NOT PRIVATE: {OVERSPENT}."
        with pytest.raises(CertificateError, match=f"the certificate claims delta = {budget.delta:g} at epsilon = "):
            verify(certificate)


@pytest.mark.parametrize(("case", "loss"), LISTED)
def test_longer_noise_keeps_it_too(case: Case, loss: Loss) -> None:
    event = case.plan(loss, case.budget)
    for longer in (*scaled(event, 1.25), strongest(event, 1.25)):
        verify(certify(longer, case.budget))


@pytest.mark.parametrize(("case", "loss"), LISTED)
def test_the_curve_never_rises(case: Case, loss: Loss) -> None:
    certificate = certified(case, loss)
    factors = (0.01, 0.25, 0.5, 0.9, 0.99, 1.0, 1.01, 1.1, 1.5, 2.0, 3.0)
    curve = [certificate.delta(factor * case.budget.epsilon) for factor in factors]
    assert all(0 <= one <= 1 for one in curve)
    assert curve == sorted(curve, reverse=True)
    assert curve[0] > 1e-3


SAMPLED = [
    pytest.param(plan, Budget(epsilon, delta), id=f"{name}, {epsilon:g}, {delta:g}")
    for name, plan in {
        "bst14": bst14,
        "dpsgd": dpsgd,
        "one-vs-all of dpsgd": one_vs_all(dpsgd),
        "moments and bst14": standardized(bst14),
    }.items()
    for epsilon, delta in ((0.1, 1e-6), (1.0, 1e-12), (1.0, 1e-4), (1.0, 1e-2), (8.0, 1e-6))
]


@pytest.mark.parametrize(("plan", "budget"), SAMPLED)
def test_the_curve_of_sampled_updates_passes_through_what_is_claimed(plan: Plan, budget: Budget) -> None:
    """It is computed on a grid that is fine near one delta: wherever that is, what is claimed must be seen to hold."""
    certificate = certify(plan(Logistic(), budget), budget)
    assert certificate.private
    assert certificate.delta(budget.epsilon) <= budget.delta * (1 + 1e-9)


@pytest.mark.parametrize(("plan", "budget"), SAMPLED)
def test_the_curve_of_sampled_updates_never_rises_above_half_of_what_is_claimed(plan: Plan, budget: Budget) -> None:
    certificate = certify(plan(Logistic(), budget), budget)
    factors = (0.25, 0.5, 0.8, 0.95, 1.0, 1.05, 1.1, 1.5, 2.0, 3.0, 10.0)
    curve = [certificate.delta(factor * budget.epsilon) for factor in factors]
    # Far below what is claimed a quick bound is taken that may be above the close one at a smaller epsilon.
    assert all(later <= max(earlier, budget.delta / 2) for earlier, later in pairwise(curve))


@pytest.mark.parametrize("kind", ["mean", "squares"])
@pytest.mark.parametrize("budget", [PURE, APPROXIMATE])
def test_moments_keep_their_part_and_a_tenth_less_noise_does_not(kind: str, budget: Budget) -> None:
    event = moments(kind, budget)
    assert fits_budget(event, budget)
    assert event.non_private_reasons == ()
    curve = [event.delta(factor * budget.epsilon) for factor in (0.1, 0.5, 1.0, 2.0)]
    assert curve == sorted(curve, reverse=True)
    assert curve[2] <= budget.delta * (1 + 1e-9)
    (shorter,) = scaled(event, 0.9)
    assert not fits_budget(shorter, budget)
    # Alone they are not the training of a model, which is what a certificate is about.
    with pytest.raises(ParameterError, match="a certificate must be about the training of a model"):
        certify(event, budget)


@pytest.mark.parametrize(("case", "loss"), LISTED)
def test_nothing_is_claimed_and_nothing_is_private_without_a_budget(case: Case, loss: Loss) -> None:
    event = case.plan(loss, case.budget)
    unclaimed = Certificate(budget=None, spent=event)
    assert unclaimed.reasons == (UNCLAIMED,)
    assert not unclaimed.private
    assert unclaimed.guarantee() == f"NOT PRIVATE: {UNCLAIMED}."
    assert unclaimed.to_dict()["private"] is False
    verify(unclaimed)
    again = Certificate.from_dict(json.loads(json.dumps(unclaimed.to_dict(), allow_nan=False)))
    assert again == unclaimed
    assert not again.private


@pytest.mark.parametrize(("case", "loss"), LISTED)
def test_whatever_spoils_it_leaves_no_promise(case: Case, loss: Loss) -> None:
    event = case.plan(loss, case.budget)
    for certificate, reasons in (
        (certify(event, case.budget, seeded=True), (SEEDED,)),
        (certify(event, case.budget, reasons=("bad rows were told",)), ("bad rows were told",)),
        (certify(event, case.budget, seeded=True, reasons=("a", "b")), ("a", "b", SEEDED)),
    ):
        assert certificate.reasons == reasons
        assert not certificate.private
        assert certificate.seeded == (SEEDED in reasons)
        assert certificate.delta(1.0) == certificate.delta(1e6) == 1.0
        assert not fits_budget(certificate.spent, Budget(1e6, 0.99))
        assert certificate.training == event.released
        verify(certificate)


# ---- what is written is what is read ----------------------------------------------------------------------------


def written(certificate: Certificate) -> Any:
    return json.loads(json.dumps(certificate.to_dict(), allow_nan=False))


def assert_exact(certificate: Certificate) -> None:
    again = Certificate.from_dict(written(certificate))
    assert again == certificate
    assert again.private is certificate.private
    assert json.dumps(again.to_dict()) == json.dumps(certificate.to_dict())
    assert repr(again) == repr(certificate)
    verify(again)


@pytest.mark.parametrize(("case", "loss"), LISTED)
def test_the_round_trip_is_exact(case: Case, loss: Loss) -> None:
    certificate = certified(case, loss)
    assert certificate.private
    assert_exact(certificate)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_round_trip_of_what_is_not_private_is_exact(case: Case) -> None:
    event = case.plan(case.losses[-1], case.budget)
    for reasons, seeded in (((), True), (("the classes were read from the data",), False), (("one", "other"), True)):
        certificate = certify(event, case.budget, reasons=reasons, seeded=seeded)
        assert not certificate.private
        assert_exact(certificate)


@pytest.mark.parametrize("loss", EVERY)
def test_the_round_trip_without_noise_is_exact(loss: Loss) -> None:
    quiet = BudgetedEvent(
        None, NoisyMoments(moments="mean", features=5, numbers=3, clip_norm=1.5).calibrate_noise(None)
    )
    models = SelfComposition(BudgetedEvent(None, NoiselessTraining(recipe(loss))), 3)
    for event, before in ((NoiselessTraining(problem(loss)), None), (models, None), (models, quiet)):
        certificate = certify(event, None, standardization=before)
        assert certificate.reasons == (NOISELESS,)
        assert_exact(certificate)


def test_a_record_without_partitions_is_of_one() -> None:
    """Files from before there were any."""
    record = written(certify(output(Logistic(), PURE), PURE))
    assert "partitions" not in record["spent"]["problem"]
    assert cast(Recipe, Certificate.from_dict(record).problem).partitions == 1
    several = written(certify(in_partitions(Logistic(), PURE), PURE))
    assert several["spent"]["problem"]["partitions"] == 7
    assert cast(Recipe, Certificate.from_dict(several).problem).partitions == 7


@pytest.mark.parametrize("plan", [output, in_partitions])
@pytest.mark.parametrize("partitions", [2, 8, 30])
def test_other_partitions_than_the_sensitivity_is_of_are_refused(plan: Plan, partitions: int) -> None:
    """More of them would need less noise: what is stated beside must be what follows from them."""
    record = written(certify(plan(Logistic(), PURE), PURE))
    record["spent"]["problem"]["partitions"] = partitions
    with pytest.raises(CertificateError, match=r", says .*, where .* follows from the rest$"):
        Certificate.from_dict(record)


def test_a_smaller_sensitivity_of_partitions_is_refused() -> None:
    certificate = certify(in_partitions(Logistic(), PURE), PURE)
    record = written(certificate)
    smaller = compute_sgd_sensitivity(replace(cast(Recipe, certificate.problem), partitions=8)).total
    record["spent"]["derived"]["sensitivity"] = smaller
    with pytest.raises(CertificateError, match="in 'sensitivity', says"):
        Certificate.from_dict(record)
    # Nor does it help to state all that follows from noise for it: it does not keep the budget.
    event = replace(cast(OutputPerturbation, certificate.spent), noise=calibrate(smaller, dimensions=6, budget=PURE))
    with pytest.raises(CertificateError, match=r"the certificate claims delta = 0 at epsilon = 0\.8, but "):
        verify(Certificate.from_dict(written(certify(event, PURE))))


@pytest.mark.parametrize("partitions", [0, -1, 1, 501, 10**9, 2.0, True, None, "2"])
def test_partitions_that_cannot_be_are_not_read(partitions: Any) -> None:
    record = written(certify(in_partitions(Logistic(), PURE), PURE))
    record["spent"]["problem"]["partitions"] = partitions
    with pytest.raises(CertificateError):
        Certificate.from_dict(record)


@pytest.mark.parametrize("plan", [scs13, bst14, dpsgd])
def test_updates_with_noise_have_no_partitions(plan: Plan) -> None:
    record = written(certify(plan(Logistic(), APPROXIMATE), APPROXIMATE))
    record["spent"]["problem"]["partitions"] = 4
    with pytest.raises(CertificateError, match=r"partitions must be 1 for noise in every update, got 4$"):
        Certificate.from_dict(record)


def test_the_published_bounds_have_no_partitions() -> None:
    record = written(certify(in_partitions(Logistic(), PURE), PURE))
    record["spent"]["analysis"] = "paper"
    with pytest.raises(CertificateError, match=r"partitions must be 1 for the published bounds, got 7$"):
        Certificate.from_dict(record)


def test_the_last_digits_of_derived_numbers_may_differ_between_machines() -> None:
    certificate = certify(output(Logistic(), PURE), PURE)
    record = written(certificate)
    derived = record["spent"]["derived"]
    derived["sensitivity"] *= 1 + 1e-12
    assert Certificate.from_dict(record) == certificate
    derived["sensitivity"] *= 1 + 1e-6
    with pytest.raises(CertificateError, match="'sensitivity'"):
        Certificate.from_dict(record)


def test_infinity_is_written_as_null_and_read_again() -> None:
    record = to_record(recipe(Logistic()))
    assert record["radius"] is None
    assert from_record(Recipe, record) == recipe(Logistic())
    assert from_record(Recipe, {**record, "radius": 3}).radius == 3.0


def test_words_of_an_enumeration_are_written_and_read() -> None:
    assert to_record(Adjacency.REPLACE_ONE) == "replace-one"
    assert from_record(Adjacency, "replace-one") is Adjacency.REPLACE_ONE
    assert from_record(bool, True) is True
    with pytest.raises(ValueError, match="the record must be true or false"):
        from_record(bool, 1)


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from keys(one)
    elif isinstance(value, list):
        for one in value:
            yield from keys(one)


#: What an objective that is minimised has not.
ONLY_OF_PASSES = {"passes", "batches", "batch_size", "schedule", "averaging", "permutation", "radius", "analysis"}


@pytest.mark.parametrize(
    "plan",
    [objective, wide_objective, standardized(objective), one_vs_all(objective), by_trials(objective)],
)
@pytest.mark.parametrize("loss", EVERY)
@pytest.mark.parametrize("budget", [PURE, APPROXIMATE])
def test_the_certificate_of_an_objective_says_nothing_of_passes(plan: Plan, loss: Loss, budget: Budget) -> None:
    record = certify(plan(loss, budget), budget).to_dict()
    assert not ONLY_OF_PASSES & set(keys(record))
    assert {"loss", "dims", "rows", "regularization", "linear", "end"} <= set(keys(record))
    # Where there are passes, they are told: the search above finds them.
    assert ONLY_OF_PASSES - {"batches"} <= set(keys(certify(output(loss, budget), budget).to_dict()))


def test_an_objective_with_passes_in_its_record_is_refused() -> None:
    record = written(certify(objective(Logistic(), PURE), PURE))
    run = written(certify(output(Logistic(), PURE), PURE))["spent"]["problem"]
    record["spent"]["problem"] = {**run, "regularization": 0.1}
    with pytest.raises(CertificateError, match="must be of a problem without passes"):
        Certificate.from_dict(record)


# ---- what is not known is not read ------------------------------------------------------------------------------

TREE = standardized(by_trials(one_vs_all(output)))
SECRET = "4711-secret"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every place in a record, with what is there."""
    yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield from places(one, (*path, key))


def changed(record: Any, path: tuple[Any, ...], value: Any) -> Any:
    made = copy.deepcopy(record)
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return made


def tree() -> Any:
    return written(certify(TREE(Multinomial(4), APPROXIMATE), APPROXIMATE))


ALL = [(path, value) for path, value in places(tree()) if path]
NUMBERS = [path for path, value in ALL if isinstance(value, (int, float)) and not isinstance(value, bool)]
OBJECTS = [(), *(path for path, value in ALL if isinstance(value, dict))]
MEMBERS = [path for path, _ in ALL if isinstance(path[-1], str)]


def named(path: tuple[Any, ...]) -> str:
    return ".".join(str(key) for key in path) or "all"


def test_all_kinds_of_places_are_tried() -> None:
    assert len(NUMBERS) > 40
    assert len(OBJECTS) > 20
    assert {"epsilon", "scale", "mean", "count", "classes", "clip_norm"} <= {path[-1] for path in NUMBERS}


@pytest.mark.parametrize("path", NUMBERS, ids=named)
def test_what_is_no_number_is_refused_wherever_one_must_be(path: tuple[Any, ...]) -> None:
    for value in (True, False, "1", [1], {"one": 1}):
        with pytest.raises(CertificateError):
            Certificate.from_dict(changed(tree(), path, value))


@pytest.mark.parametrize("path", OBJECTS, ids=named)
def test_an_unknown_entry_is_refused_wherever_it_is(path: tuple[Any, ...]) -> None:
    with pytest.raises(CertificateError, match="has an entry 'unknown' that this boltdp does not know") as refusal:
        Certificate.from_dict(changed(tree(), (*path, "unknown"), SECRET))
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize("path", MEMBERS, ids=named)
def test_a_missing_entry_is_refused_wherever_it_is(path: tuple[Any, ...]) -> None:
    record = tree()
    place = record
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    with pytest.raises(CertificateError) as refusal:
        Certificate.from_dict(record)
    if path[-1] not in ("kind", "name"):
        assert f"{path[-1]!r} is missing" in str(refusal.value)


#: Any text may stand in the first two; the third is true.
FREE = ("algorithm", "version", "private")


@pytest.mark.parametrize("path", [path for path in MEMBERS if path[-1] not in FREE], ids=named)
def test_another_kind_of_thing_is_refused_wherever_it_is(path: tuple[Any, ...]) -> None:
    for value in (["a list"], {"an": "object"}, SECRET, True, math.nan):
        with pytest.raises(CertificateError):
            Certificate.from_dict(changed(tree(), path, value))


@pytest.mark.parametrize("kind", ["magic", "Event", "OutputPerturbation", "", None, 3, ["composition"], {"a": 1}, True])
def test_an_unknown_event_is_refused(kind: object) -> None:
    with pytest.raises(CertificateError, match="the certificate cannot be read: unknown event"):
        Certificate.from_dict(changed(tree(), ("spent", "kind"), kind))


@pytest.mark.parametrize("name", ["hinge", "Logistic", "", None, 3, ["logistic"]])
def test_an_unknown_loss_is_refused(name: object) -> None:
    record = written(certify(output(Logistic(), PURE), PURE))
    with pytest.raises(CertificateError, match="the certificate cannot be read: unknown loss"):
        Certificate.from_dict(changed(record, ("spent", "problem", "loss", "name"), name))


@pytest.mark.parametrize(
    ("path", "word"),
    [
        (("spent", "analysis"), "guessed"),
        (("spent", "noise", "kind"), "cauchy"),
        (("spent", "problem", "averaging"), "some"),
        (("spent", "problem", "permutation"), "never"),
        (("spent", "problem", "schedule", "growth"), "cubic"),
    ],
    ids=lambda value: named(value) if isinstance(value, tuple) else "",
)
def test_a_word_that_is_none_of_those_known_is_refused(path: tuple[str, ...], word: str) -> None:
    record = written(certify(output(Logistic(), PURE), PURE))
    for value in (word, SECRET, ["last"], 1, None):
        with pytest.raises(CertificateError, match=f"cannot be read: {path[-1]} must be a known word") as refusal:
            Certificate.from_dict(changed(record, path, value))
        assert SECRET not in str(refusal.value)


def test_a_word_of_another_list_is_refused() -> None:
    record = written(certify(dpsgd(Logistic(), APPROXIMATE), APPROXIMATE))
    for path in (("spent", "sampling"), ("spent", "analysis")):
        with pytest.raises(CertificateError, match="must be a known word"):
            Certificate.from_dict(changed(record, path, "last"))


@pytest.mark.parametrize("path", NUMBERS, ids=named)
def test_what_stands_where_a_number_must_be_is_not_told(path: tuple[Any, ...]) -> None:
    """Of the tree: what is beside it, such as the number of rows, is compared with what follows and may be shown."""
    with pytest.raises(CertificateError) as refusal:
        Certificate.from_dict(changed(tree(), path, SECRET))
    if path[0] == "spent" and "derived" not in path:
        assert SECRET not in str(refusal.value)


def test_an_event_of_another_kind_than_must_be_there_is_refused() -> None:
    """Moments where a training must be; a loss where an event must be."""
    record = tree()
    moments_record = record["spent"]["parts"][0]["event"]
    with pytest.raises(CertificateError, match="must be about the training of a model"):
        Certificate.from_dict(changed(record, ("spent",), moments_record))
    with pytest.raises(CertificateError, match="unknown event"):
        Certificate.from_dict(changed(record, ("spent",), {"name": "logistic", "derived": {}}))


# ---- what cannot be made ----------------------------------------------------------------------------------------


def test_nothing_is_no_composition() -> None:
    with pytest.raises(ParameterError, match="a composition must have at least one event, got none"):
        Composition(())
    record = tree()
    with pytest.raises(CertificateError, match="a composition must have at least one event, got none"):
        Certificate.from_dict(changed(record, ("spent", "parts"), []))


@pytest.mark.parametrize("count", [0, -1, True, 2.0])
def test_no_time_at_all_is_no_repetition(count: Any) -> None:
    with pytest.raises(ParameterError, match="count must be"):
        SelfComposition(BudgetedEvent(PURE, output(Logistic(), PURE)), count)


@pytest.mark.parametrize("reasons", [(), ("",), (3,), ("a reason", "")])
def test_no_reason_is_no_reason(reasons: Any) -> None:
    with pytest.raises(ParameterError, match="must have reasons in words"):
        NonPrivateEvent(reasons, output(Logistic(), PURE))
    assert mark_non_private(output(Logistic(), PURE), ()) == output(Logistic(), PURE)


def test_an_event_without_a_profile_cannot_be_made() -> None:
    @dataclass(frozen=True)
    class Silent(Training):
        problem: Problem

    with pytest.raises(TypeError, match="abstract"):
        Silent(problem(Logistic()))  # type: ignore[abstract]
    for kind in (Event, Training):
        with pytest.raises(TypeError, match="abstract"):
            kind()  # type: ignore[abstract]
    assert Silent not in Event.KINDS.values()


def test_every_event_that_can_be_read_states_a_profile_of_its_own() -> None:
    for kind in load_event_classes().values():
        assert "delta" in kind.__dict__
        assert dataclasses.is_dataclass(kind)
        assert not getattr(kind, "__abstractmethods__", frozenset())
    assert len(load_event_classes()) == 20


def test_every_event_is_known_whatever_else_was_imported() -> None:
    program = "from boltdp.privacy.serialization import load_event_classes; print(len(load_event_classes()))"
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert int(run.stdout) == 20


def test_an_event_of_its_own_kind_has_no_noise_and_no_faults_unless_it_says_so() -> None:
    class Published(Training):
        """A training that guarantees everything; it has no kind, so that no certificate can be read with it."""

        algorithm = "mine"
        problem = problem(Logistic())

        def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
            return 0.0

    event = Published()
    assert (event.training_noise, event.release_noise, event.sensitivity) == (None, None, None)
    assert (event.non_private_reasons, event.children, event.derived_numbers) == ((), (), {})
    assert event.released is event
    assert list(event.walk()) == [event]


# ---- joining ----------------------------------------------------------------------------------------------------


def test_a_tree_is_walked_from_the_top() -> None:
    event = TREE(Logistic(), APPROXIMATE)
    kinds = [type(one).__name__ for one in event.walk()]
    each = ["SelfComposition", "OutputPerturbation"]
    assert kinds == ["Composition", "NoisyMoments", "TrialSelection", *each, *each]
    certificate = certify(event, APPROXIMATE)
    assert certificate.model_count == 3
    assert certificate.selection is not None
    assert certificate.moments is not None
    assert len(certificate.parts) == 2
    assert isinstance(certificate.training, OutputPerturbation)
    assert event.non_private_reasons == ()


def test_one_event_is_itself_and_several_are_a_composition() -> None:
    one = BudgetedEvent(PURE, output(Logistic(), PURE))
    assert compose(one) is one.event
    assert compose(one, one) == Composition((one, one))


def test_what_comes_before_takes_its_part_of_the_budget() -> None:
    share, left = APPROXIMATE.take_share(0.1)
    before = BudgetedEvent(share, moments("mean", share))
    assert subtract_spent(APPROXIMATE, before) == left
    assert (
        subtract_spent(APPROXIMATE, None)
        == subtract_spent(APPROXIMATE, BudgetedEvent(None, before.event))
        == APPROXIMATE
    )
    certificate = certify(output(Logistic(), left), APPROXIMATE, standardization=before)
    assert certificate.spent == Composition((before, BudgetedEvent(left, output(Logistic(), left))))
    assert certificate.private
    # All of the budget for the training, when a part of it is gone, is more than there is.
    greedy = certify(output(Logistic(), APPROXIMATE), APPROXIMATE, standardization=before)
    assert greedy.reasons == (OVERSPENT,)


def test_a_part_that_was_planned_for_nothing_promises_nothing() -> None:
    event = output(Logistic(), PURE)
    for whole in (
        Composition((BudgetedEvent(None, event),)),
        Composition((BudgetedEvent(PURE, event), BudgetedEvent(None, event))),
    ):
        assert whole.delta(0.8) == whole.delta(1e6) == 1.0
    assert BudgetedEvent(None, event).delta(0.8, target=1e-9) == 0.0
    assert BudgetedEvent(PURE, event).delta(0.0, target=1e-9) == 1.0


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.9])
def test_what_parts_are_said_to_have_been_planned_for_does_not_change_what_they_spend(share: float) -> None:
    """A budget that is divided otherwise than the noises were made for is not kept: words do not make noise longer."""
    first, second = PURE.take_share(0.2)
    one, other = output(Logistic(), first), output(Logistic(), second)
    assert fits_budget(Composition((BudgetedEvent(first, one), BudgetedEvent(second, other))), PURE)
    wrong = PURE.take_share(share)
    assert not fits_budget(Composition((BudgetedEvent(wrong[0], one), BudgetedEvent(wrong[1], other))), PURE)
    tiny = Budget(1e-9), Budget(1e-9)
    assert not fits_budget(Composition((BudgetedEvent(tiny[0], one), BudgetedEvent(tiny[1], other))), PURE)
    large = Budget(100.0), Budget(100.0)
    assert not fits_budget(Composition((BudgetedEvent(large[0], one), BudgetedEvent(large[1], other))), PURE)


@pytest.mark.parametrize("said", [Budget(0.8), Budget(0.1), Budget(1e5), Budget(0.8, 0.5), None])
def test_what_a_repetition_is_said_to_have_been_planned_for_does_not_either(said: Budget | None) -> None:
    event = output(Logistic(), PURE)
    assert not fits_budget(SelfComposition(BudgetedEvent(said, event), 2), PURE)
    assert fits_budget(SelfComposition(BudgetedEvent(said, event), 1), PURE)
    assert not fits_budget(
        PublicSelection(trained=BudgetedEvent(said, event), compared=1, chosen=0, rows=1000, public_rows=1), HALF
    )


HALF = Budget(0.4)


@pytest.mark.parametrize("loss", EVERY)
def test_several_models_spend_as_often_as_they_are(loss: Loss) -> None:
    event = output(loss, HALF)
    for count in (1, 2, 3):
        whole = SelfComposition(BudgetedEvent(HALF, event), count)
        assert fits_budget(whole, Budget(0.4 * count))
        assert not fits_budget(whole, Budget(0.39 * count))
        assert whole.delta(1e-3) == min(1.0, count * event.delta(1e-3 / count))


def test_models_are_those_that_were_paid_for_and_not_repetitions_of_something_else() -> None:
    one = BudgetedEvent(HALF, output(Logistic(), HALF))
    three, six = SelfComposition(one, 3), SelfComposition(BudgetedEvent(None, SelfComposition(one, 3)), 2)
    beside = Composition((BudgetedEvent(PURE, three), one))
    for event, models in (
        (one.event, 1),
        (three, 3),
        (six, 6),
        (beside, 1),
        (Composition((one, BudgetedEvent(PURE, three))), 3),
        (NonPrivateEvent(("told",), three), 3),
        (PortionSelection(trained=(one, one), chosen=1, rows=3000, epsilon=0.8), 1),
        (
            TrialSelection(trained=(BudgetedEvent(PURE, three), one), chosen=0, rows=1000, mean=2.0, score_epsilon=0.1),
            3,
        ),
        (
            TrialSelection(trained=(BudgetedEvent(PURE, three), one), chosen=1, rows=1000, mean=2.0, score_epsilon=0.1),
            1,
        ),
        (PublicSelection(trained=BudgetedEvent(PURE, three), compared=2, chosen=0, rows=1000, public_rows=1), 3),
    ):
        assert certify(event, PURE).model_count == models
    # So a certificate in which something else was done three times is that of one model.
    record = certify(beside, Budget(10.0)).to_dict()
    with pytest.raises(CertificateError, match="in 'models', says 3, where 1 follows"):
        Certificate.from_dict({**record, "models": 3})


def test_a_training_that_is_not_private_makes_nothing_private_of_which_it_is_a_part() -> None:
    quiet = BudgetedEvent(PURE, NoiselessTraining(problem(Logistic())))
    good = BudgetedEvent(PURE, output(Logistic(), PURE))
    for event in (
        Composition((quiet, good)),
        SelfComposition(quiet, 2),
        PortionSelection(trained=(quiet, good), chosen=1, rows=3000, epsilon=0.8),
        TrialSelection(trained=(good, quiet), chosen=0, rows=1000, mean=2.0, score_epsilon=0.1),
        PublicSelection(trained=quiet, compared=2, chosen=0, rows=1000, public_rows=1),
        Composition((BudgetedEvent(PURE, NonPrivateEvent(("told",), quiet.event)), good)),
    ):
        certificate = certify(event, Budget(1e6, 0.99))
        assert not certificate.private
        assert NOISELESS in certificate.reasons
        assert certificate.delta(1e6) == 1.0


# ---- losses -----------------------------------------------------------------------------------------------------


class Duck:
    """Looks like a loss, and is none."""

    name = "duck"
    lipschitz = smoothness = loss_at_zero = 1.0
    corners = ((4.0, 1),)
    vector_count = directions = 1


def test_what_only_looks_like_a_loss_is_refused() -> None:
    for loss in (Duck(), Logistic, "logistic", None):
        with pytest.raises(ParameterError, match="loss must be a Loss that states its constants, got "):
            Problem(loss=cast(Any, loss), dims=3, rows=100)
        with pytest.raises(ParameterError, match="loss must be a Loss that states its constants, got "):
            recipe(cast(Any, loss))


CONSTANTS = (
    *("lipschitz", "smoothness", "loss_at_zero", "simplex", "vector_count"),
    *("parameter", "max_abs_label", "whole_error"),
)
METHODS = (
    "compute_slopes",
    "compute_hessians",
    "compute_probabilities",
    "predict_labels",
    "write_sql_link",
    "make_joint_loss",
)
FACTS = {"number": 0, "target": "classes", "softmax": True, "shape": "", "label_unit": 0.25}


@pytest.mark.parametrize("left_out", [*CONSTANTS, *METHODS])
def test_a_loss_that_leaves_out_what_is_asked_of_it_cannot_be_made(left_out: str) -> None:
    stated = {name: getattr(Logistic, name) for name in (*CONSTANTS, *METHODS)}
    made = type("Whole", (Loss,), {"name": "whole", **FACTS, **stated})
    assert Problem(loss=made(), dims=3, rows=100).dimensions == 3
    del stated[left_out]
    lacking = type("Lacking", (Loss,), {"name": "lacking", **FACTS, **stated})
    with pytest.raises(TypeError, match=f"abstract method {left_out}"):
        lacking()
    assert "lacking" not in LOSSES


def test_an_invented_loss_can_be_planned_with_but_not_read() -> None:
    @dataclass(frozen=True)
    class Invented(Logistic):
        name = "invented"

    certificate = certify(output(Invented(), PURE), PURE)
    assert certificate.private
    with pytest.raises(CertificateError, match="unknown loss 'invented'"):
        Certificate.from_dict(written(certificate))


def test_a_tree_that_is_nested_too_deeply_is_refused() -> None:
    record = written(certify(output(Logistic(), PURE), PURE))
    for _ in range(5000):
        record["spent"] = {"kind": "non-private", "reasons": ["deep"], "spent": record["spent"]}
    with pytest.raises(CertificateError, match=r"^the certificate cannot be read: it is nested too deeply$"):
        Certificate.from_dict(record)


@pytest.mark.parametrize("reason", ["\x1b[2J", "a\nb", ""])
def test_reasons_are_words_that_a_terminal_shows(reason: str) -> None:
    with pytest.raises(ParameterError, match="must have reasons in words"):
        NonPrivateEvent((reason,), output(Logistic(), PURE))


def test_a_version_is_that_of_a_boltdp() -> None:
    with pytest.raises(ParameterError, match="the version of a certificate"):
        Certificate(budget=PURE, spent=output(Logistic(), PURE), version="\x1b[2J")


@pytest.mark.parametrize(
    ("limits", "enough"),
    [((1.0, None), True), ((None, 0.0), True), ((None, None), True), ((0.5, None), False), ((0.5, 0.5), False)],
)
def test_limits_of_what_is_spent(limits: tuple[float | None, float | None], enough: bool) -> None:
    certificate = certify(output(Logistic(), Budget(1.0)), Budget(1.0))
    if enough:
        check_claimed_budget(certificate, epsilon=limits[0], delta=limits[1])
        return
    with pytest.raises(CertificateError, match=r"the model spends epsilon = 1\.0, which is more than 0\.5"):
        check_claimed_budget(certificate, epsilon=limits[0], delta=limits[1])


def test_limits_are_numbers_and_need_a_claim() -> None:
    certificate = certify(output(Logistic(), PURE), None)
    with pytest.raises(ParameterError, match="the largest delta must be a finite number >= 0, got nan"):
        check_claimed_budget(certificate, epsilon=1.0, delta=math.nan)
    with pytest.raises(CertificateError, match="claims no epsilon"):
        check_claimed_budget(certificate, epsilon=1.0, delta=None)


def test_a_whole_number_is_no_real_one() -> None:
    record = written(certify(output(Logistic(), Budget(1.0)), Budget(1.0)))
    with pytest.raises(CertificateError, match=r"in 'epsilon', says 1, where 1\.0 follows"):
        Certificate.from_dict(changed(record, ("epsilon",), 1))
