"""The worker that trains models for roles without access to the rows: it claims, checks, charges and serves requests.

A request is a row of `boltdp.requests` in the database of the data. One worker serves it and writes its session into
the row; if that session has ended, the worker was killed. Before rows are read, the request is marked as charged to the
budget of a role, then reserved in the ledger. So a killed worker leaves either an uncharged request, which is served
again, or a charged one, which has failed and whose budget is spent. Models and answer are stored in one transaction.

The answer and the number of statements depend on public facts only: allowances, budgets, the number of rows. Answers
become visible at multiples of a coarse unit of time.

Tables, views and policies run with the privileges of the worker, so their owners must be trusted (`boltdp.is_trusted`),
which is checked in each transaction that reads them. Roles take turns, and are known by their OIDs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from boltdp import _interrupts
from boltdp._files.sealed import compute_digest
from boltdp.algorithms import ALGORITHMS
from boltdp.engines.base import PreparedRows, check_columns
from boltdp.engines.postgres import PostgresEngine, PostgresGroups, Session
from boltdp.engines.postgres.session import Composed, explain_unreachable
from boltdp.engines.postgres.source import SourceColumn
from boltdp.errors import BoltdpError, DataError
from boltdp.export.coefficients import describe_intervals
from boltdp.export.postgres_models import make_insert, make_model_row
from boltdp.ledger import Account, BudgetExceeded, Ledger, LedgerError
from boltdp.ledger.entries import LedgerUnavailableError, check_name
from boltdp.model import Model
from boltdp.privacy.accounting.spent_budget import Charge, ParallelComposition, Release, SpentBudget
from boltdp.privacy.budget import Budget
from boltdp.run_context import Context
from boltdp.schema.infer import derive_schema
from boltdp.schema.schema import Schema
from boltdp.service.train_per_group import train_groups
from boltdp.settings import Settings
from boltdp.workflows.label_check import describe_unusable_labels
from boltdp.workflows.noise_check import describe_drowning_noise
from boltdp.workflows.plan_training import Plan, choose_histograms, make_plan
from boltdp.workflows.standardize import plan_standardization
from boltdp.workflows.train import run_plan

Refusal = Literal["not allowed", "bad budget", "outside limits", "over budget", "not possible", "drowned"]

#: The only reasons that an analyst receives for a missing model; public facts determine them.
REASONS: dict[Refusal | Literal["failed"], str] = {
    "not allowed": "no such table, label, columns or groups are allowed to this role",
    "bad budget": "epsilon must be between 1e-12 and 1e6, and delta in [0, 1)",
    "outside limits": "epsilon must be within the limits of a request, which boltdp.allowed shows",
    "over budget": "the budget has not that much left",
    "not possible": "no such model can be trained on these columns with this budget",
    "drowned": "the noise of this budget would leave a model that is no better than always answering the most common "
    "class; a larger epsilon or fewer columns make it smaller",
    "failed": "the training was interrupted or failed; what it was to cost counts as spent",
}
#: Polling interval for requests without a notification, such as those of a killed worker.
POLL_SECONDS = 30.0

#: Seconds before the first attempt to connect again to a server that went away, and the maximum between two attempts.
RECONNECT_SECONDS, MAX_RECONNECT_SECONDS = 1.0, 60.0

#: The oldest request of the role that was served longest ago.
_CLAIM = """
WITH alive AS MATERIALIZED (SELECT pid, backend_start FROM pg_stat_activity), next AS MATERIALIZED (
  SELECT r.role, r.number, o.rolname FROM boltdp.requests r JOIN pg_roles o ON o.oid = r.role
  WHERE r.state = 'waiting' AND NOT EXISTS (SELECT FROM alive
    WHERE pid = r.worker_pid AND COALESCE(backend_start = r.worker_start, true))
  ORDER BY (SELECT max(s.claimed) FROM boltdp.requests s WHERE s.role = r.role) NULLS FIRST, r.requested
  LIMIT 1 FOR UPDATE OF r SKIP LOCKED)
UPDATE boltdp.requests r SET claimed = clock_timestamp(), worker_pid = pg_backend_pid(),
  worker_start = (SELECT backend_start FROM alive WHERE pid = pg_backend_pid())
FROM next WHERE r.role = next.role AND r.number = next.number
RETURNING r.role::oid AS role_id, next.rolname::text AS role, r.number, r.dataset, r.label, r.columns, r.groups,
  r.epsilon, r.delta, r.inference, r.robust_errors, r.charged_to IS NOT NULL AS charged
"""

_SELECT_ALLOWANCES = """
SELECT a.dataset, a.role::oid AS role_id, g.rolname::text AS role, a.relation::oid AS relation_id,
  n.nspname::text AS namespace, c.relname::text AS relation, boltdp.is_trusted(a.relation) AS trusted, a.label,
  a.columns, a.epsilon, a.delta, a.groups, a.group_values, a.schema, a.min_epsilon, a.max_epsilon_per_request
FROM boltdp.allowances a JOIN pg_class c ON c.oid = a.relation JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_roles g ON g.oid = a.role
WHERE a.dataset = %(dataset)s AND pg_has_role(%(role)s::oid, g.oid, 'USAGE')
ORDER BY g.oid <> %(role)s::oid, g.rolname
"""

_IS_TRUSTED = """
SELECT boltdp.is_trusted(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = %s::oid AND n.nspname = %s AND c.relname = %s
"""

_SELECT_SPENT = """
SELECT epsilon, delta FROM boltdp.requests WHERE dataset = %s AND charged_to = %s::oid
"""

#: The second grid point after the request; if training ended later, the next grid point.
_PUBLICATION_TIME = """
SELECT GREATEST(date_bin(grain, requested, 'epoch') + 2 * grain,
  date_bin(grain, clock_timestamp(), 'epoch') + grain)
FROM boltdp.requests, boltdp.serving WHERE role = %s::oid AND number = %s
"""

#: Changes a request that is served by this session.
_UPDATE = """
UPDATE boltdp.requests SET {}
WHERE role = %s::oid AND number = %s AND state = 'waiting' AND worker_pid = pg_backend_pid()
"""


class WorkerError(BoltdpError):
    """The database is not set up for a worker, or another worker has taken the request."""


class RequestRefused(Exception):  # noqa: N818 - an answer, not an error
    """A request is refused without a charge, for a reason that depends on public facts only."""

    def __init__(self, why: Refusal) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True)
class Request:
    """A request of a database role for a model, as the worker claims it."""

    role_id: int
    role: str  #: its present name
    number: int
    dataset: str
    label: str
    columns: list[str] | None
    groups: str | None
    epsilon: float
    delta: float
    inference: bool  #: whether the models are to have coefficients
    robust_errors: bool
    charged: bool  #: whether a killed worker has charged it

    @property
    def name(self) -> str:
        return f"{self.role}/{self.number}"

    @property
    def budget(self) -> Budget:
        try:
            return Budget(self.epsilon, self.delta)
        except BoltdpError:
            raise RequestRefused("bad budget") from None


@dataclass(frozen=True)
class Allowance:
    """The models of a table that its owner allows a database role to request from the worker."""

    dataset: str
    role_id: int
    role: str
    relation_id: int
    namespace: str
    relation: str
    trusted: bool  #: whether all that runs when the relation is read belongs to trusted roles
    label: str
    columns: list[str]
    epsilon: float
    delta: float
    groups: str | None
    group_values: list[str] | None
    schema: Any
    min_epsilon: float | None  #: of one request
    max_epsilon_per_request: float | None

    @property
    def ledger_role(self) -> str:
        """The name of the role in the ledger, which cannot hold every name of PostgreSQL."""
        try:
            return check_name(self.role, "role")
        except BoltdpError:
            return f"role {self.role_id}"

    def allows_budget(self, budget: Budget) -> bool:
        """Return whether the epsilon of one request is within the limits of the owner."""
        low, high = self.min_epsilon, self.max_epsilon_per_request
        return (low is None or low <= budget.epsilon) and (high is None or budget.epsilon <= high)

    def allows_request(self, request: Request) -> bool:
        """Return whether the label, columns and groups of a request are allowed; its budget is not checked."""
        columns = self.columns if request.columns is None else request.columns
        # Checked before `set`: elements of a multidimensional array are lists, which cannot be hashed.
        allowed = bool(columns) and all(one in self.columns for one in columns)
        allowed = allowed and len(set(columns)) == len(columns)
        return request.label == self.label and allowed and request.groups in (None, self.groups)

    def name_models(self, request: Request, name: str) -> list[str]:
        """Return the names of the models of a request: `name`, or one with each group."""
        return [name] if request.groups is None else [f"{name}:{value}" for value in self.group_values or []]

    def select_schema(self, request: Request, engine: PostgresEngine) -> Schema:
        """Return the schema of the requested columns, from the owner's schema or the declarations of the table."""
        wanted = self.columns if request.columns is None else [one for one in self.columns if one in request.columns]
        columns = engine.columns()
        if self.schema is None:
            return derive_schema({name: columns[name] for name in (*wanted, self.label) if name in columns}, self.label)
        whole = Schema.from_any(self.schema)
        chosen = tuple(column for column in whole.columns if column.source in wanted)
        # The charge for groups assumes that they are disjoint, but a person may have rows in several groups.
        persons_in_groups = whole.person_id is not None and request.groups is not None
        other = whole.label != self.label or {one.source for one in chosen} != set(wanted)
        if other or persons_in_groups:
            raise RequestRefused("not possible")
        names = {column.name for column in chosen}
        return replace(whole, columns=chosen, pairs=tuple(pair for pair in whole.pairs if names.issuperset(pair)))


def choose_settings(settings: Settings, schema: Schema, *, rows: int) -> Settings:
    """Choose the training settings of a request: an algorithm whose number of scans does not depend on the rows.

    The server's statistics show the number of scans to any role. That of objective perturbation depends on the rows:
    for inference, which needs it, rows are fetched.

    >>> from boltdp.schema.schema import Classes, Numeric
    >>> schema = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100),))
    >>> chosen = choose_settings(Settings(epsilon=1.0, delta=1e-6), schema, rows=10_000)
    >>> chosen.algorithm, chosen.standardize_moments
    ('noisy-gd', 'histograms')
    """
    if settings.inference:
        return settings
    chosen = choose_histograms(settings, schema, rows=rows)
    if chosen.standardize_moments == "histograms" and settings.delta:
        loss = "logistic" if len(schema.classes) == 2 else settings.loss
        return replace(chosen, algorithm="noisy-gd", loss=loss, curves=None, interactions=settings.interactions)
    standardize = plan_standardization(settings, schema, rows=rows) is not None
    fitted, budget = settings.choose_loss(schema.target)[0], settings.budget
    algorithm = next(one for one in ALGORITHMS.values() if one.fixed_scans and one.fits(settings, fitted, budget))
    return replace(settings, algorithm=algorithm.name, standardize="private" if standardize else "none")


class _TrustedTable(PostgresEngine):
    """The table of an allowance, which is read only in transactions in which `is_trusted` holds.

    `is_trusted` asks in a session of its own, which sees the present owners, while this one holds a lock that keeps the
    table, and what a view reads, from being altered. Names in a PREPARE are locked, and nothing is planned or run.
    """

    def __init__(self, uri: str, allowance: Allowance, is_trusted: Callable[[Allowance], bool]) -> None:
        self._allowance, self._is_trusted = allowance, is_trusted
        # Schema and name separately: another table could have the name "schema.table".
        super().__init__(uri, table=(allowance.namespace, allowance.relation), where="server")

    def check_trust(self) -> None:
        """Begin the transaction, unless there is one, and raise a DataError if the table must not be read in it."""
        self._session.begin()
        fault = "the table cannot be locked"
        self._session.ask(sql.SQL("PREPARE boltdp_locking AS SELECT FROM {}").format(self._source), fault=fault)
        self._session.ask("DEALLOCATE boltdp_locking", fault=fault)
        if not self._is_trusted(self._allowance):
            raise DataError("the table, or what runs when it is read, belongs to a role that is not trusted")

    def _describe_columns(self) -> dict[str, SourceColumn]:
        self.check_trust()
        return super()._describe_columns()

    def _count_rows(self, query: Composed) -> list[Any]:
        self.check_trust()
        return super()._count_rows(query)

    def prepare(self, schema: Schema, context: Context, *, permuted: bool = True) -> PreparedRows:
        self.check_trust()
        return super().prepare(schema, context, permuted=permuted)


@dataclass(frozen=True)
class _PlannedModels:
    """The planned models of a request: one of all rows, or one per group."""

    engine: PostgresEngine
    groups: PostgresGroups | None
    plans: dict[str, Plan]  #: by the name of the model

    @classmethod
    def plan(
        cls, request: Request, allowance: Allowance, engine: PostgresEngine, budget: Budget, name: str
    ) -> _PlannedModels:
        """Plan the model of a request, or one per allowed group; rows are counted, and nothing is charged."""
        schema = allowance.select_schema(request, engine)
        check_columns(schema, engine.columns())
        values = allowance.group_values or []
        groups = None if request.groups is None else engine.group_by(request.groups, values)
        names = allowance.name_models(request, name)
        asked = Settings(
            epsilon=budget.epsilon, delta=budget.delta, inference=request.inference, robust_errors=request.robust_errors
        )
        counts = [engine.count()] if groups is None else groups.rows
        if all(_is_drowned(schema, rows, asked) for rows in counts):
            raise RequestRefused("drowned")
        plans = [make_plan(schema, rows, choose_settings(asked, schema, rows=rows)) for rows in counts]
        return cls(engine, groups, dict(zip(names, plans, strict=True)))

    def make_charge(self, budget: Budget) -> Charge:
        """Return what the ledger is charged for the models; disjoint groups compose in parallel."""
        first, *_ = certificates = [plan.certificate for plan in self.plans.values()]
        if self.groups is None:
            return first
        return Release(budget, ParallelComposition(tuple(one.spent for one in certificates)), first.adjacency)

    def train(self, context: Context) -> dict[str, Model]:
        """Train the planned models; return them by name. The ledger must be charged before."""
        plans = list(self.plans.values())
        models = (
            [run_plan(self.engine, plans[0], context)]
            if self.groups is None
            else train_groups(self.groups, plans, context)
        )
        return dict(zip(self.plans, models, strict=True))


def _is_drowned(schema: Schema, rows: int, settings: Settings) -> bool:
    """Return whether training with these settings outside of the service would be refused for its noise."""
    return describe_drowning_noise(make_plan(schema, rows, settings).certificate) is not None


class Worker:
    """A session that serves requests one after the other; `say` receives log messages, which quote no row."""

    def __init__(self, uri: str, ledger: Ledger, *, say: Callable[[str], None]) -> None:
        self._uri, self._ledger, self._say = uri, ledger, say
        with closing(Session(uri)) as session:
            missing = session.find_missing_requirement()
        if missing is not None:
            raise WorkerError(f"the passes cannot be run in the server: {missing}")
        ledger.history()  # a missing or damaged ledger is an error now, not a refusal of every request
        try:
            self._connect()
        except psycopg.OperationalError as fault:
            raise WorkerError(f"PostgreSQL cannot be reached: {explain_unreachable(fault)}") from None

    def _connect(self) -> None:
        """Open the session; raise a WorkerError if the database is not set up for requests."""
        self._connection = psycopg.connect(
            self._uri, autocommit=True, prepare_threshold=None, application_name="boltdp worker"
        )
        try:
            self._check_direct()
            channels = self._ask("SELECT channel FROM boltdp.serving")
            for (channel,) in channels:  # of notifications of requests
                self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            reason = None if channels else "no role was named to serve"
        except psycopg.OperationalError:
            self.close()
            raise
        except psycopg.Error as fault:
            reason = fault.diag.message_primary or type(fault).__name__
        if reason is not None:
            self.close()
            raise WorkerError(
                f"the database is not set up for requests: {reason}",
                hint="as the owner of the extension: SELECT boltdp.allow_worker('ROLE')",
            )

    def _check_direct(self) -> None:
        """Raise a WorkerError behind a pooler, whose sessions outlive the worker that is known by one."""
        ((backend,),) = self._connection.execute("SELECT pg_catalog.pg_backend_pid()").fetchall()
        if backend != self._connection.info.backend_pid:
            self.close()
            raise WorkerError(
                "the connection goes through a pool, and a worker is known by its session of the server",
                hint="give the worker a direct connection",
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run the block in a transaction, in which no name is resolved in a schema where others can create objects."""
        with self._connection.transaction():
            self._connection.execute("SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)")
            yield

    def _ask(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._transaction():
            return self._connection.execute(query.encode(), values).fetchall()

    def close(self) -> None:
        self._connection.close()

    def run(self, *, once: bool = False) -> int:
        """Serve waiting and future requests, or with `once` waiting ones only; return the number served.

        Without `once`, a lost connection is opened again, however long that takes, and the request is resumed.
        """
        served, delay = 0, RECONNECT_SECONDS
        while True:
            try:
                while self.serve_next():
                    served, delay = served + 1, RECONNECT_SECONDS
                self._ask("SELECT boltdp.sweep()")
                if once:
                    return served
                for _ in self._connection.notifies(timeout=POLL_SECONDS, stop_after=1):
                    pass
                _interrupts.check()
            except LedgerUnavailableError as fault:
                if once:
                    raise WorkerError(
                        f"the worker cannot continue: {fault}",
                        hint="what waits is served once the ledger is there again",
                    ) from None
                self._say(f"{fault}; what waits is served once it is there again")
                time.sleep(delay)
                _interrupts.check()
                delay = min(2 * delay, MAX_RECONNECT_SECONDS)
            except psycopg.Error as fault:
                # These statements concern requests only, which contain no private values.
                reason = fault.diag.message_primary or type(fault).__name__
                if once or not self._connection.closed:
                    raise WorkerError(
                        f"the worker cannot continue: {reason}",
                        hint="start it again: it resumes the request that it left",
                    ) from None
                self._say(f"the connection was lost: {reason}")
                self._reconnect()

    def _reconnect(self) -> None:
        delay = RECONNECT_SECONDS
        while True:
            time.sleep(delay)
            _interrupts.check()
            with suppress(psycopg.OperationalError):
                self._connect()
                break
            delay = min(2 * delay, MAX_RECONNECT_SECONDS)
        self._say("connected again")

    def serve_next(self) -> bool:
        """Serve the next waiting request that no other worker serves; return False if there is none."""
        with (
            _interrupts.check_and_shield(),
            self._transaction(),
            self._connection.cursor(row_factory=class_row(Request)) as cursor,
        ):
            request = cursor.execute(_CLAIM).fetchone()
        if request is None:
            return False
        try:
            state, reason, models = self._decide_request(request)
        except (KeyboardInterrupt, LedgerUnavailableError):
            self._clear_column(request, "worker_pid")  # leaves it to another worker, or to a later time
            raise
        with _interrupts.shield():
            try:
                self._store_answer(request, state, reason, models)
            except psycopg.errors.UniqueViolation:
                # Another model has this name and is kept.
                state, reason = "failed", REASONS["failed"]
                self._store_answer(request, state, reason, {})
        self._say(f"{request.name}: {state}" + ("" if reason is None else f", {reason}"))
        return True

    def _decide_request(self, request: Request) -> tuple[str, str | None, dict[str, Model]]:
        """Train the models of a request; return its final state, the reason if it is not "done", and the models."""
        if request.charged:
            return "failed", REASONS["failed"], {}
        try:
            models = self._train_request(request)
            return "done", _describe_warnings(models), models
        except RequestRefused as refused:
            return "refused", REASONS[refused.why], {}
        except (psycopg.Error, LedgerUnavailableError):
            raise  # an error of the worker's own session, or a ledger out of reach, which says nothing of budgets
        except Exception as fault:
            # The message of a library may quote a row.
            reason = str(fault) if isinstance(fault, BoltdpError) else type(fault).__name__
            self._say(f"{request.name}: {reason}")
            return "failed", REASONS["failed"], {}

    def _train_request(self, request: Request) -> dict[str, Model]:
        """Check a request, plan its models, charge them and train them; return the models by name."""
        budget = request.budget
        allowances = [one for one in self._find_allowances(request) if one.allows_request(request)]
        if not allowances:
            raise RequestRefused("not allowed")
        allowances = [one for one in allowances if one.allows_budget(budget)]
        if not allowances:
            raise RequestRefused("outside limits")
        with self._refuse_request_on(request, LedgerError, "over budget"):
            self._check_composition(request.dataset)
            allowance = next((one for one in allowances if self._has_budget(one, budget)), None)
        if allowance is None:
            for one in allowances:
                self._say(f"{request.name}: {self._describe_remaining(one)} remaining for the role {one.role!r}")
            raise RequestRefused("over budget")
        name = self._find_free_name(request, allowance)
        with self._refuse_request_on(request, BoltdpError, "not possible"):
            engine = _TrustedTable(self._uri, allowance, self._is_trusted)
        with engine:
            with self._refuse_request_on(request, BoltdpError, "not possible"):
                planned = _PlannedModels.plan(request, allowance, engine, budget, name)
            with self._refuse_request_on(request, LedgerError, "over budget"):
                self._mark_charged(request, allowance, budget)
            return self._train_charged(request, allowance, planned, budget)

    def _is_trusted(self, allowance: Allowance) -> bool:
        """Return whether the relation has its name, and all that runs when it is read belongs to trusted roles."""
        key = allowance.relation_id, allowance.namespace, allowance.relation
        return self._ask(_IS_TRUSTED, key) == [(True,)]

    def _find_free_name(self, request: Request, allowance: Allowance) -> str:
        """Return the name of a request, or if a role that had this name left models, one with a suffix."""
        for attempt in count(1):
            name = request.name if attempt == 1 else f"{request.name}-{attempt}"
            names = allowance.name_models(request, name)
            if not self._ask("SELECT FROM boltdp.models WHERE name = ANY (%s)", [names]):
                return name
        raise AssertionError

    def _train_charged(
        self, request: Request, allowance: Allowance, planned: _PlannedModels, budget: Budget
    ) -> dict[str, Model]:
        context, reserved = replace(Settings(epsilon=budget.epsilon).context(), hide_scans=True), False
        try:
            account = Account(self._ledger, request.dataset, role=allowance.ledger_role)
            with account.reserve(planned.make_charge(budget), drawn=lambda: context.randomness.drawn) as reservation:
                reserved = True
                models = planned.train(context)
                digests = [compute_digest(model.to_dict()) for model in models.values()]
                reservation.commit(digests[0] if planned.groups is None else compute_digest({"models": digests}))
        except BudgetExceeded as fault:
            self._clear_column(request, "charged_to")
            self._say(f"{request.name}: {fault}")
            raise RequestRefused("over budget") from None
        except LedgerUnavailableError as fault:
            if reserved or fault.unknown:  # what was charged stays charged, and is not charged again
                raise LedgerError(str(fault), hint=fault.hint) from None
            self._clear_column(request, "charged_to")
            raise
        except KeyboardInterrupt:
            if not context.randomness.drawn:
                self._clear_column(request, "charged_to")
            raise
        return models

    def _check_composition(self, dataset: str) -> None:
        if self._ledger.spent(dataset).composition == "curves":
            raise LedgerError(
                f"the budget of the dataset {dataset!r} must have the composition 'adaptive' or 'basic': analysts may "
                "ask for more by what they saw of earlier models"
            )

    @contextmanager
    def _refuse_request_on(self, request: Request, kind: type[BoltdpError], why: Refusal) -> Iterator[None]:
        """Turn an error that depends on public facts only into a refusal, and log it."""
        try:
            yield
        except LedgerUnavailableError:
            raise
        except kind as fault:
            self._say(f"{request.name}: {fault}")
            raise RequestRefused(why) from None

    def _find_allowances(self, request: Request) -> list[Allowance]:
        with self._transaction(), self._connection.cursor(row_factory=class_row(Allowance)) as cursor:
            found = cursor.execute(_SELECT_ALLOWANCES, {"role": request.role_id, "dataset": request.dataset}).fetchall()
        if not all(one.trusted for one in found):
            self._say(f"{request.name}: the table, or what runs when it is read, belongs to a role that is not trusted")
        return [one for one in found if one.trusted]

    def _has_budget(self, allowance: Allowance, budget: Budget) -> bool:
        """Return whether the remaining budget of the allowance suffices, by basic composition."""
        limit = Budget(allowance.epsilon, allowance.delta)
        return all(spent.is_within(limit) for spent in self._sum_spent(allowance, budget))

    def _describe_remaining(self, allowance: Allowance) -> str:
        spent = self._sum_spent(allowance)
        epsilon = max(0.0, allowance.epsilon - max(one.epsilon for one in spent))
        delta = max(0.0, allowance.delta - max(one.delta for one in spent))
        return f"epsilon {epsilon:.6g} of {allowance.epsilon:g}, delta {delta:.3g} of {allowance.delta:g}"

    def _sum_spent(self, allowance: Allowance, *more: Budget) -> list[SpentBudget]:
        """Return what the role of an allowance has spent: by the extension, and by the ledger.

        The ledger outlives the extension and knows the role by its name.
        """
        known = [Budget(*one) for one in self._ask(_SELECT_SPENT, (allowance.dataset, allowance.role_id))]
        noted = self._ledger.list_charged_budgets(allowance.dataset, role=allowance.ledger_role)
        return [_sum_budgets([*spent, *more]) for spent in (known, noted)]

    def _mark_charged(self, request: Request, allowance: Allowance, budget: Budget) -> None:
        """Mark the request as charged to the role of the allowance, under a lock."""
        with _interrupts.check_and_shield(), self._transaction():
            self._ask("SELECT FROM boltdp.serving FOR UPDATE")
            if not self._has_budget(allowance, budget):
                raise RequestRefused("over budget")
            self._update_request(request, charged_to=allowance.role_id)

    def _clear_column(self, request: Request, column: Literal["charged_to", "worker_pid"]) -> None:
        with _interrupts.shield():
            self._update_request(request, **{column: None})

    def _update_request(self, request: Request, **values: object) -> None:
        """Set columns of a request that is served by this session."""
        changes = sql.SQL(", ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in values)
        key = request.role_id, request.number
        with self._transaction():
            updated = self._connection.execute(sql.SQL(_UPDATE).format(changes), [*values.values(), *key]).rowcount
        if updated != 1:
            raise WorkerError("the request was taken by another worker")

    def _store_answer(self, request: Request, state: str, reason: str | None, models: dict[str, Model]) -> None:
        """Store the models and the answer in one transaction, to be visible from a grid point on."""
        with self._transaction():
            ((published,),) = self._ask(_PUBLICATION_TIME, [request.role_id, request.number])
            for name, model in models.items():
                row = {**make_model_row(name, model), "granted_to": [request.role_id], "stored": published}
                self._connection.execute(make_insert(row), row)
            self._update_request(request, state=state, reason=reason, models=list(models) or None, published=published)


def _describe_warnings(models: Mapping[str, Model]) -> str | None:
    """Return the warnings of models: that many rows were ignored, or that intervals are refused or in doubt."""
    found = [
        f"{name}: {warning}"
        for name, model in models.items()
        for warning in (describe_unusable_labels(model), describe_intervals(model))
        if warning is not None
    ]
    return "\n".join(found) or None


def _sum_budgets(budgets: Sequence[Budget]) -> SpentBudget:
    epsilons, deltas = [one.epsilon for one in budgets], [one.delta for one in budgets]
    return SpentBudget(len(budgets), math.fsum(epsilons), math.fsum(deltas), composed=None)
