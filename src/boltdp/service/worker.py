"""The worker that trains for roles who may not see the rows: it takes requests, checks, charges, trains and answers.

A request is a row of `boltdp.requests` in the database of the data. Each is served by one worker, whose session stands
in it: one that is gone was killed. Before a row is read, the request is marked as charged to the budget of a role, and
then reserved in the ledger. So a killed worker leaves either a request that was charged nothing, which is served again,
or one whose budget counts as spent, which has failed. A model and the word that it is there are stored together.

What is answered, and how many statements are run, depends on public things alone: what owners allowed, budgets, the
number of rows. Answers can be seen from multiples of a coarse unit of time on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from boltdp import _interrupts
from boltdp._files.sealed import digest
from boltdp.algorithms import ALGORITHMS
from boltdp.context import Context
from boltdp.engines.base import check_columns
from boltdp.engines.postgres import PostgresEngine, PostgresGroups, Session
from boltdp.engines.postgres.session import unreachable
from boltdp.errors import BoltdpError
from boltdp.export.postgres_models import insertion, model_row
from boltdp.ledger import Account, Ledger, LedgerError
from boltdp.ledger.ledger import BudgetExceeded
from boltdp.model import Model
from boltdp.privacy.accounting.charges import Charge, Parallel, Release, Spent
from boltdp.privacy.budget import Budget
from boltdp.schema.infer import declared_schema
from boltdp.schema.schema import Schema
from boltdp.service.groups import train_groups
from boltdp.settings import Settings
from boltdp.workflows.plan import Plan, make_plan
from boltdp.workflows.standardize import plan_standardization
from boltdp.workflows.train import run_plan

Refusal = Literal["not allowed", "bad budget", "over budget", "not possible"]

#: The only reasons that an analyst is given for a missing model: public facts decide them.
REASONS: dict[Refusal | Literal["failed"], str] = {
    "not allowed": "no such table, label, columns or groups are allowed to this role",
    "bad budget": "epsilon must be between 1e-12 and 1e6, and delta in [0, 1)",
    "over budget": "the budget has not that much left",
    "not possible": "no model can be trained on these columns with this budget",
    "failed": "the training was interrupted or failed; what it was to cost counts as spent",
}
#: Seconds after which a worker looks for requests without a notification, such as those of a worker that was killed.
PATROL = 30.0

_CLAIM = """
WITH alive AS MATERIALIZED (SELECT pid, backend_start FROM pg_stat_activity), next AS MATERIALIZED (
  SELECT role, number FROM boltdp.requests WHERE state = 'waiting' AND NOT EXISTS (SELECT FROM alive
    WHERE pid = worker_pid AND COALESCE(backend_start = worker_start, true))
  ORDER BY requested LIMIT 1 FOR UPDATE SKIP LOCKED)
UPDATE boltdp.requests r SET worker_pid = pg_backend_pid(),
  worker_start = (SELECT backend_start FROM alive WHERE pid = pg_backend_pid())
FROM next WHERE r.role = next.role AND r.number = next.number
RETURNING r.role::text, r.number, r.dataset, r.label, r.columns, r.groups, r.epsilon, r.delta,
  r.charged_to IS NOT NULL AS charged
"""

_ALLOWANCES = """
SELECT a.dataset, a.role::text, n.nspname::text AS namespace, c.relname::text AS relation, a.label, a.columns,
  a.epsilon, a.delta, a.groups, a.group_values, a.schema
FROM boltdp.allowances a JOIN pg_class c ON c.oid = a.relation::oid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_roles g ON g.rolname = a.role JOIN pg_roles r ON r.rolname = %s
WHERE a.dataset = %s AND pg_has_role(r.oid, g.oid, 'USAGE') ORDER BY a.role <> r.rolname, a.role
"""

_SPENT = """
SELECT COALESCE(array_agg(epsilon), '{}'), COALESCE(array_agg(delta), '{}') FROM boltdp.requests
WHERE dataset = %s AND charged_to = %s
"""

#: The grid point after the next one; where the training ended later, the next one from then on.
_PUBLISHED = """
SELECT GREATEST(date_bin(grain, requested, 'epoch') + 2 * grain,
  date_bin(grain, clock_timestamp(), 'epoch') + grain)
FROM boltdp.requests, boltdp.serving WHERE role = %s AND number = %s
"""

_ANSWER = """
UPDATE boltdp.requests SET state = %s, reason = %s, models = %s, published = %s
WHERE role = %s AND number = %s AND state = 'waiting' AND worker_pid = pg_backend_pid()
"""


class WorkerError(BoltdpError):
    """The database is not set up for a worker, or the worker's place was taken."""


class Refused(Exception):  # noqa: N818 - an answer, and not a fault
    """A request that is not served, for a reason that public things decide; nothing was charged."""

    def __init__(self, why: Refusal) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True)
class Request:
    """What a role asks for."""

    role: str
    number: int
    dataset: str
    label: str
    columns: list[str] | None
    groups: str | None
    epsilon: float
    delta: float
    charged: bool  #: whether a worker that is gone has charged it

    @property
    def name(self) -> str:
        return f"{self.role}/{self.number}"

    @property
    def budget(self) -> Budget:
        try:
            return Budget(self.epsilon, self.delta)
        except BoltdpError:
            raise Refused("bad budget") from None


@dataclass(frozen=True)
class Allowance:
    """What the owner of a table allows a role."""

    dataset: str
    role: str
    namespace: str
    relation: str
    label: str
    columns: list[str]
    epsilon: float
    delta: float
    groups: str | None
    group_values: list[str] | None
    schema: Any

    def allows(self, request: Request) -> bool:
        """Whether the request stays within it, its budget aside.

        >>> table = {"dataset": "patients", "namespace": "public", "relation": "patients", "schema": None}
        >>> budget, groups = {"epsilon": 1.0, "delta": 0.0}, {"groups": None, "group_values": None}
        >>> allowed = Allowance(role="ann", label="ill", columns=["age", "sex"], **table, **budget, **groups)
        >>> asked = Request("ann", 1, "patients", "ill", ["age"], None, 0.2, 0, False)
        >>> allowed.allows(asked), allowed.allows(replace(asked, columns=["name"]))
        (True, False)
        """
        columns = self.columns if request.columns is None else request.columns
        # An array of the server may have rows of its own, which are lists.
        inside = bool(columns) and all(one in self.columns for one in columns)
        inside = inside and len(set(columns)) == len(columns)
        return request.label == self.label and inside and request.groups in (None, self.groups)

    def schema_for(self, request: Request, engine: PostgresEngine) -> Schema:
        """The columns that are asked for, as the owner's schema or the table itself declares them."""
        wanted = self.columns if request.columns is None else [one for one in self.columns if one in request.columns]
        columns = engine.columns()
        if self.schema is None:
            return declared_schema(
                {name: columns[name] for name in (*wanted, self.label) if name in columns}, self.label
            )
        whole = Schema.of(self.schema)
        chosen = tuple(column for column in whole.columns if column.source in wanted)
        # A person may have rows in several groups, which are charged as if each row were in one.
        persons_in_groups = whole.person_id is not None and request.groups is not None
        if whole.label != self.label or {one.source for one in chosen} != set(wanted) or persons_in_groups:
            raise Refused("not possible")
        return replace(whole, columns=chosen)


def settings_for(budget: Budget, schema: Schema, *, rows: int) -> Settings:
    """How a request is trained: by algorithms that run the same statements whatever the rows are.

    Any role can count what others do in the statistics of the server, so that it must not depend on rows. How often
    objective perturbation scans them does.

    >>> from boltdp.schema.schema import Classes, Numeric
    >>> schema = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100),))
    >>> settings_for(Budget(1.0, 1e-6), schema, rows=10_000).algorithm
    'noisy-gd'
    """
    usual = Settings(epsilon=budget.epsilon, delta=budget.delta)
    pays = plan_standardization(usual, schema, rows=rows) is not None
    loss, _ = usual.choose_loss(schema.target)
    algorithm = next(one for one in ALGORITHMS.values() if one.fixed_scans and one.fits(usual, loss, budget))
    return replace(usual, algorithm=algorithm.name, standardize="private" if pays else "none")


@dataclass(frozen=True)
class _Work:
    """What is to be trained: a model of all rows, or one for each group."""

    engine: PostgresEngine
    groups: PostgresGroups | None
    plans: dict[str, Plan]  #: by the name of the model

    @classmethod
    def planned(cls, request: Request, allowance: Allowance, engine: PostgresEngine, budget: Budget) -> _Work:
        """From the number of rows, of each group if there are any."""
        schema = allowance.schema_for(request, engine)
        check_columns(schema, engine.columns())
        values = allowance.group_values or []
        groups = None if request.groups is None else engine.groups(request.groups, values)
        names = [request.name] if groups is None else [f"{request.name}:{value}" for value in values]
        plans = [
            make_plan(schema, rows, settings_for(budget, schema, rows=rows))
            for rows in ([engine.count()] if groups is None else groups.rows)
        ]
        return cls(engine, groups, dict(zip(names, plans, strict=True)))

    def charge(self, budget: Budget) -> Charge:
        """What it costs: that of groups is as much as that of one."""
        first, *_ = certificates = [plan.certificate for plan in self.plans.values()]
        if self.groups is None:
            return first
        return Release(budget, Parallel(tuple(one.spent for one in certificates)), first.adjacency)

    def train(self, context: Context) -> dict[str, Model]:
        plans = list(self.plans.values())
        models = (
            [run_plan(self.engine, plans[0], context)]
            if self.groups is None
            else train_groups(self.groups, plans, context)
        )
        return dict(zip(self.plans, models, strict=True))


class Worker:
    """A session that serves requests, one after the other; `say` gets what it does, in words without a row."""

    def __init__(self, uri: str, ledger: Ledger, *, say: Callable[[str], None]) -> None:
        self._uri, self._ledger, self._say = uri, ledger, say
        with closing(Session(uri)) as session:
            missing = session.missing()
        if missing is not None:
            raise WorkerError(f"the passes cannot be run in the server: {missing}")
        ledger.history()  # one that is missing, damaged or not ours is an error now, and not a refusal of every request
        try:
            self._connection = psycopg.connect(uri, autocommit=True, application_name="boltdp worker")
        except psycopg.Error as fault:
            raise WorkerError(f"PostgreSQL cannot be reached: {unreachable(fault)}") from None
        try:
            reason = None if self._listen() else "no role was named to serve"
        except psycopg.Error as fault:
            reason = fault.diag.message_primary or type(fault).__name__
        if reason is not None:
            self.close()
            raise WorkerError(
                f"the database is not set up for requests: {reason}",
                hint="as the owner of the extension: SELECT boltdp.allow_worker('ROLE')",
            )

    def _listen(self) -> bool:
        """Hear of new requests, if there is a channel for it."""
        # No name in a statement is looked for where others may have put theirs.
        self._connection.execute("SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false)")
        channels = self._connection.execute("SELECT channel FROM boltdp.serving").fetchall()
        for (channel,) in channels:
            self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        return bool(channels)

    def close(self) -> None:
        self._connection.close()

    def run(self, *, once: bool = False) -> int:
        """Serve what waits, and what comes; `once`: what waits only. How many were served."""
        served = 0
        try:
            while True:
                while self.serve_next():
                    served += 1
                if once:
                    return served
                for _ in self._connection.notifies(timeout=PATROL, stop_after=1):
                    pass
                _interrupts.check()
        except psycopg.Error as fault:
            # These statements have to do with requests only, whose texts are no secret to the worker.
            reason = fault.diag.message_primary or type(fault).__name__
        raise WorkerError(f"the worker cannot go on: {reason}", hint="start it again: what it left is taken up")

    def serve_next(self) -> bool:
        """Serve the request that waits longest, if any does that nobody serves."""
        with _interrupts.check_and_shield(), self._connection.cursor(row_factory=class_row(Request)) as cursor:
            request = cursor.execute(_CLAIM).fetchone()
        if request is None:
            return False
        try:
            state, reason, models = self._serve(request)
        except KeyboardInterrupt:
            self._let_go(request)
            raise
        with _interrupts.shield():
            try:
                self._answer(request, state, reason, models)
            except psycopg.errors.UniqueViolation:
                # Somebody has stored a model of this name: it stays what it is.
                state, reason = "failed", REASONS["failed"]
                self._answer(request, state, reason, {})
        self._say(f"{request.name}: {state}" + ("" if reason is None else f", {reason}"))
        return True

    def _serve(self, request: Request) -> tuple[str, str | None, dict[str, Model]]:
        if request.charged:
            return "failed", REASONS["failed"], {}
        try:
            return "done", None, self._trained(request)
        except Refused as refused:
            return "refused", REASONS[refused.why], {}
        except psycopg.Error:
            raise  # of our own session
        except Exception as fault:
            # That of a library may quote a row.
            reason = str(fault) if isinstance(fault, BoltdpError) else type(fault).__name__
            self._say(f"{request.name}: {reason}")
            return "failed", REASONS["failed"], {}

    def _trained(self, request: Request) -> dict[str, Model]:
        """Check, plan, charge and train: a model by its name, or one for each group."""
        budget = request.budget
        allowances = [one for one in self._allowances(request) if one.allows(request)]
        if not allowances:
            raise Refused("not allowed")
        allowance = next((one for one in allowances if self._has(one, budget)), None)
        if allowance is None:
            raise Refused("over budget")
        with self._refusing(request, BoltdpError, "not possible"):
            # By both its names: whoever may create something could give it the name that one text would be.
            table = allowance.namespace, allowance.relation
            engine = PostgresEngine(self._uri, table=table, where="server")
        with engine:
            with self._refusing(request, BoltdpError, "not possible"):
                work = _Work.planned(request, allowance, engine, budget)
            with self._refusing(request, LedgerError, "over budget"):
                self._check_ledger(request.dataset)
            self._charge(request, allowance, budget)
            return self._train_charged(request, work, budget)

    def _train_charged(self, request: Request, work: _Work, budget: Budget) -> dict[str, Model]:
        """Reserve in the ledger what the role was charged, and train."""
        context = Settings(epsilon=budget.epsilon).context()
        try:
            account = Account(self._ledger, request.dataset)
            with account.charged(work.charge(budget), drawn=lambda: context.randomness.drawn) as reservation:
                models = work.train(context)
                digests = [digest(model.to_dict()) for model in models.values()]
                reservation.commit(digests[0] if work.groups is None else digest({"models": digests}))
        except BudgetExceeded:
            self._uncharge(request)
            raise Refused("over budget") from None
        except KeyboardInterrupt:
            if not context.randomness.drawn:
                self._uncharge(request)
            raise
        return models

    def _check_ledger(self, dataset: str) -> None:
        if self._ledger.spent(dataset).composition != "basic":
            raise LedgerError(
                f"the budget of the dataset {dataset!r} must have the composition 'basic': analysts may ask for more "
                "by what they saw of earlier models"
            )

    @contextmanager
    def _refusing(self, request: Request, kind: type[BoltdpError], why: Refusal) -> Iterator[None]:
        """Answer a fault that public things decide by a refusal, and tell the worker's own log what it was."""
        try:
            yield
        except kind as fault:
            self._say(f"{request.name}: {fault}")
            raise Refused(why) from None

    def _allowances(self, request: Request) -> list[Allowance]:
        with self._connection.cursor(row_factory=class_row(Allowance)) as cursor:
            return cursor.execute(_ALLOWANCES, [request.role, request.dataset]).fetchall()

    def _has(self, allowance: Allowance, budget: Budget) -> bool:
        """Whether the budget of the allowance has so much left, by basic composition."""
        epsilons, deltas = self._connection.execute(_SPENT, [allowance.dataset, allowance.role]).fetchall()[0]
        sums = math.fsum([*epsilons, budget.epsilon]), math.fsum([*deltas, budget.delta])
        return Spent(len(epsilons) + 1, *sums, composed=None).within(Budget(allowance.epsilon, allowance.delta))

    def _charge(self, request: Request, allowance: Allowance, budget: Budget) -> None:
        """Mark the request as charged to the role of the allowance, one worker at a time."""
        with _interrupts.check_and_shield(), self._connection.transaction():
            self._connection.execute("SELECT FROM boltdp.serving FOR UPDATE")
            if not self._has(allowance, budget):
                raise Refused("over budget")
            self._mark(request, "charged_to = %s", allowance.role)

    def _uncharge(self, request: Request) -> None:
        """Nothing was reserved in the ledger."""
        with _interrupts.shield():
            self._mark(request, "charged_to = %s", None)

    def _let_go(self, request: Request) -> None:
        """Interrupted from outside: whoever comes next finds the request as it would after a kill."""
        with _interrupts.shield():
            self._mark(request, "worker_pid = %s", None)

    def _mark(self, request: Request, change: Literal["charged_to = %s", "worker_pid = %s"], value: object) -> None:
        where = "WHERE role = %s AND number = %s AND state = 'waiting' AND worker_pid = pg_backend_pid()"
        query = sql.SQL("UPDATE boltdp.requests SET {} {}").format(sql.SQL(change), sql.SQL(where))
        _one(self._connection.execute(query, [value, request.role, request.number]))

    def _answer(self, request: Request, state: str, reason: str | None, models: dict[str, Model]) -> None:
        """Store the models and the answer, together, to be seen from a grid point on."""
        key = [request.role, request.number]
        with self._connection.transaction():
            ((published,),) = self._connection.execute(_PUBLISHED, key).fetchall()
            for name, model in models.items():
                row = {**model_row(name, model), "granted_to": [request.role], "stored": published}
                self._connection.execute(insertion(row), row)
            _one(self._connection.execute(_ANSWER, [state, reason, list(models) or None, published, *key]))


def _one(done: psycopg.Cursor[Any]) -> None:
    if done.rowcount != 1:
        raise WorkerError("the request was taken by another worker")
