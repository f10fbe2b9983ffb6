"""Plans of trainings, made from public numbers alone, before any row is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

from boltdp.algorithms import Algorithm, choose_algorithm, get_algorithm
from boltdp.errors import ParameterError
from boltdp.losses import Logistic
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate, certify, fits_budget, subtract_gaussian, subtract_spent
from boltdp.privacy.events.event import BudgetedEvent, Event, SelfComposition, Training
from boltdp.privacy.events.noisy_counts import NoisyHistograms
from boltdp.privacy.events.objective_perturbation import calibrate_objective_noise
from boltdp.privacy.mechanisms import calibrate
from boltdp.privacy.training_problem import Problem
from boltdp.schema.columns import Numeric
from boltdp.schema.curves import add_curves
from boltdp.schema.pairs import add_pair_curves, add_pairs
from boltdp.schema.schema import Schema, check_size
from boltdp.settings import OPTIONS, Settings
from boltdp.workflows.histograms import STEPS, add_provisional_curves, can_have_histograms, plan_histograms
from boltdp.workflows.inference import add_references, plan_inference
from boltdp.workflows.label_check import plan_label_check
from boltdp.workflows.standardize import check_standardization, plan_standardization
from boltdp.workflows.target_range import plan_target_range

#: Curves, and histograms for several classes with a delta, are always added if the noise per row stays below this.
SMALL_NOISE_PER_ROW = 0.01
#: The steps of curves at quantiles of two classes, and without a delta where many columns have curves; and the largest
#: noise per row with each, without a delta.
DETAILED_STEPS, REDUCED_STEPS = 16, 4
MAX_DETAILED_STEPS_NOISE, MAX_REDUCED_STEPS_NOISE = 0.003, 0.012
#: The largest noise per row with which objective perturbation trains two classes with a delta: it reaches the minimum
#: of rows of any shape, which 40 scans do not.
MAX_OBJECTIVE_NOISE = 0.002
#: The largest noise of the mean of a feature for the latter.
MAX_MEAN_NOISE = 0.13
#: The largest number of interactions that "auto" adds, and of features with them, as more take the solver much longer;
#: and the largest noise per row.
MAX_AUTO_INTERACTIONS, MAX_INTERACTIONS_DIMS, MAX_INTERACTIONS_NOISE = 64, 700, 0.002
#: "auto" chooses histograms only where these settings have their defaults.
AUTO_SETTINGS = (
    "algorithm",
    "loss",
    "curves",
    "regularization",
    "standardize",
    "standardize_share",
    "standardize_moments",
)


@dataclass(frozen=True)
class Plan:
    """A training as it will run; `boltdp plan` shows it, and every training, tuning and comparison follows one."""

    schema: Schema  #: with its curves
    certificate: Certificate  #: of all events, including the label check, standardization and the draft of the schema

    @property
    def algorithm(self) -> Algorithm:
        return get_algorithm(self.certificate.algorithm)


def make_plan(
    schema: Schema, rows: int, settings: Settings, *, dims: int | None = None, reasons: tuple[str, ...] = ()
) -> Plan:
    """Plan a training on `rows` rows of `schema`.

    `dims` overrides the number of features of the schema. `reasons` are why the result will not be private, if the
    caller knows any.
    """
    resolved, labels = plan_label_check(resolve_settings(settings, schema), schema, rows=rows)
    resolved = choose_loss_by_noise(choose_histograms(resolved, schema, rows=rows), schema, rows=rows)
    resolved, target = plan_target_range(resolved, schema, rows=rows)
    if settings.inference:
        schema = adapt_target_to_loss(resolved, add_references(schema))
        event = plan_inference(resolved, schema, rows=rows)
        return Plan(schema, _certify(event, settings, schema, labels, target, None, reasons))
    schema, standardization = add_auto_curves(resolved, schema, rows=rows)
    schema = adapt_target_to_loss(resolved, schema)
    budget = left = resolved.budget
    if budget is not None:
        left = subtract_spent(budget, standardization)
    event = plan_models(resolved, schema, rows, left, dims=dims)
    if budget is not None and standardization is not None and standardization.event.mu is not None:
        event = share_budget(resolved, schema, rows, budget, standardization, event)
    return Plan(schema, _certify(event, settings, schema, labels, target, standardization, reasons))


def share_budget(
    settings: Settings, schema: Schema, rows: int, budget: Budget, standardization: BudgetedEvent, event: Event
) -> Event:
    """Plan the training again so that it composes with a Gaussian standardization as one, if it then has less noise.

    Gaussian mechanisms compose more tightly than basic composition, which leaves more of the budget.
    """
    algorithm = get_algorithm(event.algorithm) if isinstance(event, Training) else None
    if algorithm is None or not isinstance(event, Training) or not algorithm.can_share_budget(event.problem):
        return event
    more = subtract_gaussian(budget, standardization)
    if more == subtract_spent(budget, standardization):
        return event
    shared = plan_models(settings, schema, rows, more, dims=event.problem.dims)
    if event.mu is not None:
        return shared
    assert isinstance(shared, Training)
    try:
        shared = algorithm.share_budget(shared, budget, other_mu=standardization.event.mu or 0.0)
    except ParameterError:  # the standardization leaves nothing of the whole to another Gaussian
        return event
    return min(event, shared, key=lambda one: one.training_noise.expected_norm if one.training_noise else math.inf)


def make_plans(
    schema: Schema,
    rows: int,
    candidates: Sequence[Settings],
    *,
    plan_selection: Callable[..., Sequence[Event]],
    reasons: tuple[str, ...] = (),
) -> list[Plan]:
    """Plan a selection among candidates that share a budget, schema and standardization.

    Each candidate has a plan for the case that it is selected; `plan_selection` makes its event.
    """
    if any(each.inference for each in candidates):
        raise ParameterError("inference must not be given for a choice among models: its intervals would not hold")
    checked = [plan_label_check(resolve_settings(each, schema), schema, rows=rows) for each in candidates]
    chosen = [choose_loss_by_noise(each, schema, rows=rows) for each, _ in checked]
    ranged = [plan_target_range(each, schema, rows=rows) for each in chosen]
    resolved, labels, target = [each for each, _ in ranged], checked[0][1], ranged[0][1]
    first = resolved[0]
    schema, standardization = add_auto_curves(first, schema, rows=rows)
    schema = adapt_target_to_loss(first, schema)
    left = None if first.budget is None else subtract_spent(first.budget, standardization)
    # The same algorithm for all: one that accepts the settings of each.
    loss = first.choose_loss(schema.target)[0]
    name = choose_algorithm(resolved, loss, first.budget, dims=schema.dims, rows=rows).name
    resolved = [replace(each, algorithm=name) for each in resolved]

    def plan_candidate(number: int, rows: int, budget: Budget | None) -> Event:
        return plan_models(resolved[number], schema, rows, budget)

    events = plan_selection(plan_candidate, left, candidates=len(candidates), rows=rows)
    return [
        Plan(schema, _certify(event, candidates[0], schema, labels, target, standardization, reasons))
        for event in events
    ]


def _certify(
    event: Event,
    settings: Settings,
    schema: Schema,
    labels: BudgetedEvent | None,
    target: BudgetedEvent | None,
    standardization: BudgetedEvent | None,
    reasons: tuple[str, ...],
) -> Certificate:
    """Make the certificate of an event with the draft of the schema, the label check, the range and standardization."""
    before = {"draft": schema.spent, "labels": labels, "target": target, "standardization": standardization}
    return certify(event, settings.budget, seeded=settings.noise_seed is not None, reasons=reasons, **before)


def resolve_settings(settings: Settings, schema: Schema) -> Settings:
    """Check `settings`, and return them with class weights as numbers and the budget that the schema's draft leaves."""
    settings.check()
    check_standardization(schema)
    if settings.robust_errors and not settings.inference:
        raise ParameterError("robust_errors must be given with inference only: there are no standard errors")
    if settings.inference and (schema.pairs or settings.interactions == "numbers"):
        raise ParameterError("inference must be of a schema without pairs of columns: its intervals would not hold")
    settings = settings.resolve_class_weights(schema.target)
    whole, draft = settings.budget, schema.spent
    if whole is None or draft is None or draft.budget is None:
        return settings
    if not fits_budget(draft.event, draft.budget):
        raise ParameterError("the schema must have spent no more than its [spent] table claims, and has")
    for name, needed in (("epsilon", "more than"), ("delta", "at least")):
        has, cost = getattr(whole, name), getattr(draft.budget, name)
        if has < cost or (name == "epsilon" and has == cost):
            raise ParameterError(
                f"{name} must be {needed} the {cost:g} that finding the schema has spent, got {has:g}",
                hint="epsilon and delta are those of the whole model: of its schema, found from the same rows, too",
            )
    left = whole.subtract(draft.budget)
    return replace(settings, epsilon=left.epsilon, delta=left.delta)


def choose_loss_by_noise(settings: Settings, schema: Schema, *, rows: int) -> Settings:
    """Return the settings with the loss that "auto" chooses by the noise per row, if it depends on that."""
    if settings.budget is None or settings.inference or rows < 2:
        return settings
    if settings.loss != "auto" or settings.loss_parameter is not None or settings.algorithm != "auto":
        return settings
    choose = partial(schema.target.choose_default_loss, plain=False)
    if choose(noise=0.0) == choose(noise=math.inf):
        return settings
    plain = add_pair_curves(add_curves(schema, settings.curves or 0))
    noise = _compute_noise_per_row(settings.budget, plain, plan_standardization(settings, plain, rows=rows), rows=rows)
    loss, parameter = chosen = choose(noise=noise)
    return settings if chosen == choose() else replace(settings, loss=loss, loss_parameter=parameter)


def choose_histograms(settings: Settings, schema: Schema, *, rows: int) -> Settings:
    """Return the settings with histograms, and the algorithm and curves beside them, where "auto" chooses them.

    They are for classes and columns that can be counted. With a delta "auto" always chooses them for two classes, with
    noisy gradient descent unless there is little noise; without one only with little noise, or where many columns would
    leave each with few steps. With little noise few numbers have interactions, too. Several classes have histograms
    with a delta and little noise. docs/accuracy.md has the measurements, and the cells in which they are worse.
    """
    budget, target, (loss, models) = settings.budget, schema.target, settings.choose_loss(schema.target)
    changed = [name for name in AUTO_SETTINGS if getattr(settings, name) != OPTIONS[name].default]
    columns = _count_curves(schema)
    if budget is None or changed or settings.given_names or settings.inference or loss.target != "classes" or rows < 2:
        return settings
    if models > 1 or not (can_have_histograms(schema) and target.choose_curve_steps(columns, loss)):
        return settings
    if loss.vector_count > 1:
        counted = replace(settings, standardize_moments="histograms")
        noise, _ = _try_histograms(replace(counted, curves=STEPS), schema, rows=rows)
        return counted if budget.delta and noise <= SMALL_NOISE_PER_ROW else settings
    detailed = replace(settings, standardize_moments="histograms", curves=DETAILED_STEPS)
    noise, _ = _try_histograms(detailed, schema, rows=rows)
    if noise <= (MAX_OBJECTIVE_NOISE if budget.delta else MAX_DETAILED_STEPS_NOISE):
        return _choose_interactions(detailed, schema, rows=rows)
    if budget.delta:
        return replace(detailed, algorithm="noisy-gd", loss="logistic")
    noise, spread = _try_histograms(replace(settings, curves=REDUCED_STEPS), schema, rows=rows)
    few = target.choose_curve_steps(columns, loss) < REDUCED_STEPS
    if few and noise <= MAX_REDUCED_STEPS_NOISE and spread <= MAX_MEAN_NOISE:
        return replace(settings, standardize_moments="histograms", curves=REDUCED_STEPS)
    return settings


def _choose_interactions(settings: Settings, schema: Schema, *, rows: int) -> Settings:
    """Return settings of histograms with interactions of all numbers, if "auto" chooses them."""
    if settings.interactions != "auto" or schema.pairs or schema.is_monotone:
        return settings
    curved = add_provisional_curves(schema, DETAILED_STEPS)
    if not 0 < math.comb(len(_list_curved_numbers(curved)), 2) <= MAX_AUTO_INTERACTIONS:
        return settings
    paired = replace(settings, interactions="numbers")
    if _add_interactions(paired, curved).dims > MAX_INTERACTIONS_DIMS:
        return settings
    noise, _ = _try_histograms(paired, schema, rows=rows)
    return paired if noise <= MAX_INTERACTIONS_NOISE else settings


def _add_interactions(settings: Settings, schema: Schema) -> Schema:
    """Return a schema with curves with the pairs of columns that the settings ask for."""
    if settings.interactions != "numbers":
        return schema
    return add_pairs(schema, [*combinations(_list_curved_numbers(schema), 2)])


def _list_curved_numbers(schema: Schema) -> list[str]:
    return [column.name for column in schema.columns if isinstance(column, Numeric) and column.curve]


def _count_curves(schema: Schema) -> int:
    """Return the number of columns that would have an automatic curve."""
    return sum(new != old for new, old in zip(add_curves(schema, 1).columns, schema.columns, strict=True))


def _try_histograms(settings: Settings, schema: Schema, *, rows: int) -> tuple[float, float]:
    """Return the noise per row of a training with histograms, and that of the mean of a feature."""
    assert settings.budget is not None
    assert settings.curves is not None
    curved = _add_interactions(settings, add_provisional_curves(schema, settings.curves))
    event = plan_histograms(settings, curved, rows=rows)
    assert isinstance(event.event, NoisyHistograms)
    left, changed = subtract_gaussian(settings.budget, event), schema.max_rows_per_person or 1
    noise = calibrate(2.0 * changed, dimensions=curved.dims, budget=left).expected_norm
    return noise / rows, event.event.mean_deviation / rows


def add_auto_curves(settings: Settings, schema: Schema, *, rows: int) -> tuple[Schema, BudgetedEvent | None]:
    """Return the schema with its curves, and the event and budget of standardizing its features.

    If `settings` do not set the number of steps, the algorithm "auto" adds curves where the noise is small: each step
    is one more weight that noise is added to. The more columns there are, the fewer steps each has.
    """
    if settings.standardize_moments == "histograms":
        if settings.standardize == "none":
            raise ParameterError("standardize must not be 'none' for histograms, which centre the features")
        if not can_have_histograms(schema) or settings.curves == 0:
            raise ParameterError(
                "histograms must be of columns without vectors and projections, of which at least one gets a curve",
                hint="a schema of about 1,500 numbers, or with bounds that have no number between them, has none",
            )
        curved = add_provisional_curves(schema, STEPS if settings.curves is None else settings.curves)
        curved = add_pair_curves(_add_interactions(settings, curved))
        return curved, plan_standardization(settings, curved, rows=rows)
    budget, steps = settings.budget, settings.curves
    automatic = steps is None and settings.algorithm == "auto" and settings.standardize != "none" and rows > 1
    if automatic and budget is not None:
        steps = schema.target.choose_curve_steps(_count_curves(schema), settings.choose_loss(schema.target)[0])
    curved = add_pair_curves(_add_interactions(settings, add_curves(schema, steps or 0)))
    schema = add_pair_curves(_add_interactions(settings, schema))
    standardization = plan_standardization(settings, curved, rows=rows)
    if not automatic or budget is None or curved == schema:
        return curved, standardization
    if standardization is None:
        return schema, plan_standardization(settings, schema, rows=rows)
    noise = _compute_noise_per_row(budget, curved, standardization, rows=rows)
    if noise > SMALL_NOISE_PER_ROW:
        plain = plan_standardization(settings, schema, rows=rows)
        plain_noise = _compute_noise_per_row(budget, schema, plain, rows=rows)
        loss = settings.choose_loss(schema.target)[0]
        chosen = choose_algorithm([settings], loss, budget, dims=curved.dims, rows=rows)
        if not schema.target.allows_curves(plain_noise, noise, gaussian=chosen.gaussian):
            return schema, plain
    return curved, standardization


def adapt_target_to_loss(settings: Settings, schema: Schema) -> Schema:
    """Return the schema with the target as the loss of `settings` reads it."""
    return replace(schema, target=schema.target.adapt_to_loss(settings.choose_loss(schema.target)[0]))


def _compute_noise_per_row(
    budget: Budget, schema: Schema, standardization: BudgetedEvent | None, *, rows: int
) -> float:
    """Return the noise per row of objective perturbation with the rest of a budget."""
    # For two classes, with a Lambda so large that it does not affect the noise.
    problem = Problem(loss=Logistic(), dims=schema.dims, rows=rows, person_rows=schema.max_rows_per_person)
    problem = replace(problem, regularization=problem.changed_rows * (1.0 + 8.0 / budget.epsilon))
    return calibrate_objective_noise(problem, subtract_spent(budget, standardization)).expected_norm / rows


def plan_models(
    settings: Settings, schema: Schema, rows: int, budget: Budget | None, *, dims: int | None = None
) -> Event:
    """Return the event of training all models within `budget`, by the algorithm of the settings or that of "auto"."""
    if settings.epsilon is None and settings.noise_seed is not None:
        raise ParameterError("noise_seed must not be given without epsilon: there is no noise")
    if schema.downweights:
        raise ParameterError(
            "the standardization of the schema must not downweight long rows, unless it is for inference",
            hint="remove its key downweights",
        )
    loss, models = settings.choose_loss(schema.target)
    dims = schema.dims if dims is None else dims
    # By the whole budget: what is left of it for the models must not change the choice.
    algorithm = choose_algorithm([settings], loss, settings.budget, dims=dims, rows=rows)
    share, asked = None if budget is None else budget.split(models), settings.class_weights
    problem = Problem(
        loss=loss,
        dims=dims,
        rows=rows,
        class_weights=None if asked is None else schema.target.resolve_class_weights(asked),
        person_rows=schema.max_rows_per_person,
    )
    check_size(features=problem.dims, classes=schema.target.kernel_class_count)
    training = algorithm.plan(settings, problem, share)
    return training if models == 1 else SelfComposition(BudgetedEvent(share, training), models)
