"""The algorithms as the paper ran them, each as published and as it must be: from a cell of a figure to an accuracy.

Tests 1 and 2 are convex, with a step of 1/sqrt(m); tests 3 and 4 strongly convex, with lambda, R = 1/lambda and steps
of min(1/beta, 1/(gamma*t)), beta = 1 + lambda as in the paper. Tests 1 and 3 have delta = 0, 2 and 4 delta = 1/m^2.
Ten classes are one-vs-all, with a tenth of the budget each. For "noiseless" the steps are those of ours; the paper's
1/(gamma*t) begins with steps of 10,000. BST14 needs a radius in the convex case, on which the paper is silent: 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np

from boltdp._array_types import Doubles, Integers
from boltdp.algorithms import Job, get_algorithm
from boltdp.engines.base import PreparedRows
from boltdp.losses import HuberSVM, Logistic, Loss
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate, certify
from boltdp.privacy.events.event import BudgetedEvent, Event, NoiselessTraining, SelfComposition, Training
from boltdp.privacy.events.output_perturbation import OutputPerturbation, make_output_perturbation
from boltdp.privacy.events.sgd_sensitivity import compute_published_sensitivity, compute_sgd_sensitivity
from boltdp.privacy.mechanisms import Mechanism, compute_gaussian_epsilon
from boltdp.privacy.release_with_noise import Randomness, release_weights
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import Schedule, make_constant_schedule
from boltdp.run_context import Context
from boltdp.schema.schema import make_array_schema
from boltdp.settings import Settings
from boltdp.workflows.plan_training import plan_models
from boltdp.workflows.select import (
    TRIALS,
    ChosenModel,
    choose_by_portions,
    choose_by_trials,
    plan_portion_selection,
    plan_trial_selection,
)
from boltdp.workflows.train import train
from experiments import rivals
from experiments.reproduce import data
from experiments.tasks import Answer, budget_of

LossName = Literal["logistic", "huber"]
Tuning = Literal["fixed", "portions", "trials"]
TESTS: Mapping[int, str] = {
    1: "convex, ε",
    2: "convex, (ε, δ)",
    3: "strongly convex, ε",
    4: "strongly convex, (ε, δ)",
}
BATCH_SIZE, PASSES, REGULARIZATION = 50, 10, 1e-4
REGULARIZATIONS, TUNED_PASSES = (1e-4, 1e-3, 1e-2), (5, 10)
HUBER_WIDTH = 0.1
#: Ways that train as the paper did, and those that choose their own settings by public numbers, whatever the test.
PAPER_WAYS = ("noiseless", "published", "valid", "scs13", "bst14")
OWN_WAYS = ("auto", "scs13-best", "bst14-best")
WAYS = (*PAPER_WAYS, *OWN_WAYS)

Measured: TypeAlias = dict[str, float]


@dataclass(frozen=True)
class Cell:
    """What is trained again and again."""

    data: str
    test: int
    way: str
    epsilon: float | None = None
    loss: LossName = "logistic"
    batch_size: int = BATCH_SIZE
    passes: int = PASSES
    regularization: float = 0.0
    tuning: Tuning = "fixed"

    @property
    def kind(self) -> str:
        """Of the budget: pure, or with delta = 1/m^2."""
        return "pure" if self.test in (1, 3) else "approximate"

    @property
    def convex(self) -> bool:
        """Without regularization."""
        return self.test in (1, 2)

    @property
    def able(self) -> bool:
        """Whether the way can keep such a budget."""
        return self.kind == "approximate" or not self.way.startswith("bst14")

    def normal(self) -> Cell:
        """The cell that stands for all with the same result."""
        if self.way in OWN_WAYS:
            test = 1 if self.kind == "pure" else 2
            return Cell(self.data, test, self.way, self.epsilon, self.loss)
        kept = replace(self, epsilon=None) if self.way == "noiseless" else self
        if kept.way == "noiseless" and kept.test in (2, 4):  # delta makes no difference to it
            kept = replace(kept, test=kept.test - 1)
        tuned = kept.tuning != "fixed"
        return replace(
            kept,
            passes=PASSES if tuned else kept.passes,
            regularization=0.0 if kept.convex or tuned else kept.regularization or REGULARIZATION,
        )

    def __str__(self) -> str:
        budget = "" if self.epsilon is None else f" at {self.epsilon:g}"
        return f"{self.data}, test {self.test}: {self.way}{budget}"


def recipe_of(cell: Cell, *, rows: int, dims: int) -> Recipe:
    """The run of ours: what the paper trains before noise.

    >>> recipe = recipe_of(Cell("mnist", 3, "valid", 1.0, regularization=1e-2), rows=60_000, dims=50)
    >>> recipe.schedule.compute_steps([1, 200])
    array([0.99009901, 0.5       ])
    """
    loss: Loss = Logistic() if cell.loss == "logistic" else HuberSVM(HUBER_WIDTH)
    smoothness = 1.0 if cell.loss == "logistic" else 1.0 / (2.0 * HUBER_WIDTH)
    schedule = make_constant_schedule(rows**-0.5)
    if not cell.convex:
        gamma = cell.regularization
        schedule = Schedule("linear", scale=1.0 / gamma, cap=1.0 / (smoothness + gamma))
    return Recipe(
        loss=loss,
        dims=dims,
        rows=rows,
        batch_size=min(cell.batch_size, rows),
        passes=cell.passes,
        schedule=schedule,
        regularization=cell.regularization,
        radius=math.inf if cell.convex else 1.0 / cell.regularization,
    )


def published_output(recipe: Recipe, budget: Budget) -> OutputPerturbation:
    """Output perturbation with the paper's sensitivity and the classical Gaussian bound.

    Rows are cut into batches whose sizes differ by one where the paper would leave a short one; its formula gets the
    size of the smallest.
    """
    distance = compute_published_sensitivity(recipe).total * recipe.batch_size / recipe.smallest_batch
    if budget.delta == 0:
        noise = Mechanism("spherical", distance / budget.epsilon, recipe.dimensions)
    else:
        sigma = distance * math.sqrt(2.0 * math.log(1.25 / budget.delta)) / budget.epsilon
        noise = Mechanism("gaussian", sigma, recipe.dimensions)
    return OutputPerturbation(recipe, noise, "paper")


def spent_epsilon(event: OutputPerturbation, budget: Budget) -> float:
    """The epsilon that a training with this noise really keeps, by the proved sensitivity, at the budget's delta."""
    distance = compute_sgd_sensitivity(event.problem).total / event.noise.scale
    return distance if event.noise.kind == "spherical" else compute_gaussian_epsilon(distance, budget.delta)


def planned(cell: Cell, *, rows: int, dims: int, classes: int, budget: Budget | None) -> Event:
    """What the training of a cell spends: one model, or one for each class with its share of the budget."""
    if cell.way in ("scs13", "bst14"):
        assert budget is not None
        asked = Settings(
            epsilon=budget.epsilon,
            delta=budget.delta,
            algorithm=cell.way,
            analysis="paper",
            loss=cell.loss,
            loss_parameter=HUBER_WIDTH if cell.loss == "huber" else None,
            multiclass="one-vs-all",
            passes=cell.passes,
            batch_size=min(cell.batch_size, rows),
            regularization=cell.regularization,
            radius=None if cell.convex else 1.0 / cell.regularization,
        )
        return plan_models(asked, make_array_schema(dims=dims, classes=range(classes)), rows, budget)
    recipe, models = recipe_of(cell, rows=rows, dims=dims), 1 if classes == 2 else classes
    share = None if budget is None else budget.split(models)
    training: Training
    if share is None:
        training = NoiselessTraining(recipe)
    elif cell.way == "published":
        training = published_output(recipe, share)
    else:
        training = make_output_perturbation(recipe, share)
    return training if models == 1 else SelfComposition(BudgetedEvent(share, training), models)


def candidates(cell: Cell) -> list[Cell]:
    """The paper's grid: passes, and lambda where there is one."""
    lambdas: Sequence[float] = (0.0,) if cell.convex else REGULARIZATIONS
    return [
        replace(cell, passes=passes, regularization=one, tuning="fixed") for passes in TUNED_PASSES for one in lambdas
    ]


def measure(cell: Cell, repeat: int) -> Measured:
    """Train once, with fresh noise and an order of the rows that the repeat's number gives, and judge."""
    if cell.way in OWN_WAYS:
        return _own(cell)
    rows = data.on_the_sphere(cell.data)
    with_noise: Measured = {}
    budget = None if cell.epsilon is None else budget_of(cell.kind, cell.epsilon, rows.rows)
    sizes = {"rows": rows.rows, "dims": rows.dims, "classes": rows.classes}
    if cell.tuning != "fixed":
        weights = _tuned(cell, repeat, rows, budget)
    else:
        event = planned(cell, budget=budget, **sizes)
        certificate = certify(event, budget)
        training = certificate.training
        if isinstance(training, OutputPerturbation) and training.published and budget is not None:
            share = budget.split(certificate.model_count)
            with_noise["spent"] = certificate.model_count * spent_epsilon(training, share)
        weights = _trained(cell, certificate, repeat, rows)
    return {**judged(weights, rows), **with_noise}


def _trained(cell: Cell, certificate: Certificate, repeat: int, rows: data.Prepared) -> Doubles:
    randomness = Randomness()
    if cell.way in ("scs13", "bst14"):
        job = Job(certificate, randomness)
        (weights,) = get_algorithm(certificate.algorithm).run(
            prepare_permuted(cell.data, repeat), [job], classes=rows.classes, context=Context(seed=repeat)
        )
    else:
        recipe = certificate.problem
        assert isinstance(recipe, Recipe)
        weights = noiseless_weights(cell.data, repeat, recipe)
    return release_weights(weights, certificate, randomness)


@lru_cache(maxsize=256)
def noiseless_weights(name: str, repeat: int, recipe: Recipe) -> Doubles:
    """What is trained before noise is the same for every epsilon and either analysis: it is trained once."""
    rows = data.on_the_sphere(name)
    training: Event = NoiselessTraining(recipe)
    if rows.classes > 2:
        training = SelfComposition(BudgetedEvent(None, training), rows.classes)
    certificate = certify(training, None)
    (weights,) = get_algorithm(certificate.algorithm).run(
        prepare_permuted(name, repeat),
        [Job(certificate, Randomness())],
        classes=rows.classes,
        context=Context(seed=repeat),
    )
    return weights


@lru_cache(maxsize=1)
def prepare_permuted(name: str, repeat: int) -> PreparedRows:
    """Prepare the rows, permuted by the seed of a repeat."""
    rows = data.on_the_sphere(name)
    return rows.engine().prepare(rows.schema, Context(seed=repeat))


def _tuned(cell: Cell, repeat: int, rows: data.Prepared, budget: Budget | None) -> Doubles:
    grid = candidates(cell)

    def plan_one(number: int, count: int, share: Budget | None) -> Event:
        return planned(grid[number], rows=count, dims=rows.dims, classes=rows.classes, budget=share)

    if cell.tuning == "portions":
        events = plan_portion_selection(plan_one, budget, candidates=len(grid), rows=rows.rows)
        choose: Callable[..., ChosenModel] = choose_by_portions
    else:
        events = plan_trial_selection(plan_one, budget, candidates=len(grid), rows=rows.rows, mean=TRIALS)
        choose = choose_by_trials
    certificates = [certify(event, budget) for event in events]
    return choose(
        prepare_permuted(cell.data, repeat), certificates, classes=rows.classes, context=Context(seed=repeat)
    )[1]


def _own(cell: Cell) -> Measured:
    """Ways that get the rows as they are, with what is public about them, and prepare them in their own way."""
    given = data.task(cell.data)
    assert cell.epsilon is not None
    budget = budget_of(cell.kind, cell.epsilon, given.rows)
    loss = "huber" if cell.loss == "huber" else "auto"
    if cell.way == "auto":
        model = train(
            given.training, given.schema, Settings(epsilon=budget.epsilon, delta=budget.delta, loss=loss, anyway=True)
        )
        answer = Answer.of_model(model, given.testing)
    else:
        answer = BEST[cell.way](given, budget, np.random.default_rng(), loss=loss)
    return scores(answer.chosen, given.labels)


def _best_scs13(*arguments: Any, **settings: Any) -> Answer:
    return rivals.white_box(*arguments, algorithm="scs13", batches=1, passes=10, stretch=10.0, **settings)


def _best_bst14(*arguments: Any, **settings: Any) -> Answer:
    return rivals.white_box(*arguments, algorithm="bst14", batches=50, passes=30, stretch=10.0, radius=30.0, **settings)


#: The settings of docs/accuracy.md, chosen on training rows of Adult and Covertype.
BEST: Mapping[str, rivals.Rival] = {"scs13-best": _best_scs13, "bst14-best": _best_bst14}


def judged(weights: Doubles, rows: data.Prepared) -> Measured:
    """Accuracy of the weights of all models on the testing rows."""
    margins = rows.testing @ weights.reshape(-1, rows.dims).T.astype(np.float32)
    chosen = margins.argmax(axis=1) if rows.classes > 2 else (margins[:, 0] > 0).astype(np.int64)
    return scores(chosen, rows.truth)


def scores(chosen: Integers, truth: Integers) -> Measured:
    """Accuracy, and its mean over the classes, which a rare class shows in.

    >>> scores(np.array([0, 0, 0, 0]), np.array([0, 0, 0, 1]))
    {'accuracy': 0.75, 'balanced': 0.5}
    """
    of_class = [float((chosen[truth == one] == one).mean()) for one in np.unique(truth)]
    return {"accuracy": float((chosen == truth).mean()), "balanced": float(np.mean(of_class))}
