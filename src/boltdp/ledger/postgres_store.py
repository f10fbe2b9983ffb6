"""A ledger in PostgreSQL, beside the data: plain SQL, append-only by the roles of the database.

Its owner creates the schema `boltdp_ledger`. Other roles may read the entries and call two functions: `latch` locks the
ledger, and `append` appends the next entry in the name of the role. Nobody may change or delete an entry: triggers
forbid it to the owner as well, and to a superuser who has not disabled them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from functools import partial
from typing import Any, TypeAlias

from boltdp import _interrupts
from boltdp.errors import require
from boltdp.ledger.entries import BEGINNING, INVISIBLE, MAX_NAME, Entry, LedgerError, LedgerUnavailableError, Line
from boltdp.ledger.store import MakeLine, Store

#: Runs a statement with parameters and returns its rows.
Ask: TypeAlias = Callable[[Any, Sequence[Any]], list[Any]]

SCHEMA = "boltdp_ledger"
#: Milliseconds that a process waits for the locks of others.
LOCK_TIMEOUT = 120_000
STANDBY_HINT = "a standby or a read-only database cannot be written to: name the ledger of the primary by --ledger"
UNKNOWN_HINT = "whether the entry was appended is unknown: `boltdp ledger history` shows it"

#: Seconds between the time of an entry, which `latch` returns, and its append.
MAX_DELAY = 300
#: Maximum size of an entry in bytes, and depth of its JSON: the events of hundreds of models need less.
MAX_RECORD, MAX_DEPTH = 2**22, 50
_INVISIBLE = INVISIBLE.replace("\\", "\\\\")  # for a string literal with escapes

_FIELDS = [field.name for field in fields(Entry)]

_FIXED = "SECURITY DEFINER SET search_path = pg_catalog, pg_temp"

#: Parameters, return type and body of each function.
FUNCTIONS = {
    "refuse": (
        "()",
        "trigger",
        """
BEGIN
  RAISE EXCEPTION 'a ledger is only appended to' USING ERRCODE = 'insufficient_privilege';
END""",
    ),
    "latch": (
        "(OUT who text, OUT moment text)",
        "record",
        """
BEGIN
  PERFORM 1 FROM boltdp_ledger.head FOR UPDATE;
  who := session_user;
  moment := to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
END""",
    ),
    "append": (
        "(record text)",
        "void",
        rf"""
DECLARE
  entry json := record::json;
  kind text := entry->>'kind';
  blocks text[] := ARRAY(SELECT json_array_elements_text(entry->'blocks'));
  last boltdp_ledger.head%ROWTYPE;
  sealed text := 'sha256:' || encode(sha256(convert_to(record, 'UTF8')), 'hex');
  owner oid := (SELECT nspowner FROM pg_namespace WHERE nspname = 'boltdp_ledger');
BEGIN
  SELECT * INTO STRICT last FROM boltdp_ledger.head FOR UPDATE;
  IF entry->>'number' IS DISTINCT FROM (last.number + 1)::text OR entry->>'previous' IS DISTINCT FROM last.digest THEN
    RAISE EXCEPTION 'the entry does not follow the last one';
  END IF;
  -- One that cannot be read would make the ledger useless to everybody.
  IF NOT COALESCE(
    array_to_string(ARRAY(SELECT json_object_keys(entry)), ' ') = '{" ".join(_FIELDS)}'
    AND array_to_string(ARRAY(SELECT json_typeof(value) FROM json_each(entry)), ' ') =
      'number string string string string ' || CASE kind || json_typeof(entry->'role')
        WHEN 'reservestring' THEN 'string' ELSE 'null' END || ' array ' || CASE kind
        WHEN 'budget' THEN 'object string boolean null null array null null'
        WHEN 'reserve' THEN CASE json_typeof(entry->'budget') WHEN 'null' THEN 'null' ELSE 'object' END
          || ' null null string object array null null'
        WHEN 'release' THEN 'null null null null null array number string'
        WHEN 'return' THEN 'null null null null null array number null' END || ' string'
    AND octet_length(record) <= {MAX_RECORD}
    AND entry->>'when' ~ '^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}T[0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}Z$'
    AND (entry->>'when')::timestamptz BETWEEN clock_timestamp() - interval '{MAX_DELAY} s' AND clock_timestamp()
    AND length(COALESCE(entry->>'reserved', '1')) <= 18 AND COALESCE(entry->>'reserved', '1') ~ '^[1-9][0-9]*$'
    AND length(COALESCE(entry->>'released', '-')) <= {MAX_NAME} AND COALESCE(entry->>'released', '-') ~ '^[!-~]+$'
    AND (kind = 'reserve' OR json_array_length(entry->'blocks') + json_array_length(entry->'reasons') = 0), false) THEN
    RAISE EXCEPTION 'an entry must be one that can be read' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF kind IN ('budget', 'reserve') THEN -- the others have none of this, and the server would plan it for them too
    IF NOT COALESCE(
      -- No number is longer than Python reads, or beyond its largest.
      regexp_replace(record, E'"([^"\\\\]|\\\\.)*"', '', 'g')
        !~ '[0-9]{{40}}|[eE][+]?0*([2-9][0-9]{{2}}|[1-9][0-9]{{3}})'
      AND (SELECT bool_and(length(name) BETWEEN 1 AND {MAX_NAME} AND name = btrim(name) AND name !~ E'[{_INVISIBLE}]')
        FROM unnest(blocks || ARRAY[entry->>'dataset', COALESCE(entry->>'role', '-'),
          COALESCE(entry->'event'->>'kind', '-')]) AS name)
      AND cardinality(blocks) = (SELECT count(DISTINCT block) FROM unnest(blocks) AS block)
      AND NOT EXISTS (SELECT FROM json_array_elements(entry->'blocks') AS one WHERE json_typeof(one) <> 'string')
      AND NOT EXISTS (SELECT FROM json_array_elements(entry->'reasons') AS one
        WHERE json_typeof(one) <> 'string' OR one#>>'{{}}' ~ E'[{_INVISIBLE}]')
      AND COALESCE(entry->>'composition', 'basic') IN ('adaptive', 'basic', 'curves')
      AND COALESCE(json_typeof(entry->'event'->'kind'), '-') = CASE kind WHEN 'reserve' THEN 'string' ELSE '-' END
      AND COALESCE(entry->>'adjacency', 'replace-one') IN ('replace-one', 'replace-person')
      AND (cardinality(blocks) = 0 OR entry->>'adjacency' = 'replace-one')
      AND CASE json_typeof(entry->'budget') WHEN 'null' THEN true ELSE
        ARRAY(SELECT key || ' ' || json_typeof(value) FROM json_each(entry->'budget')) =
          ARRAY['epsilon number', 'delta number']
        AND (entry->'budget'->>'epsilon')::float8 BETWEEN 1e-12 AND 1e6
        AND ((entry->'budget'->>'delta')::float8 = 0 OR
          (entry->'budget'->>'delta')::float8 >= 1e-100 AND (entry->'budget'->>'delta')::float8 < 1) END
      AND NOT EXISTS (
        WITH RECURSIVE part(value, depth) AS (
          SELECT entry, 1 UNION ALL SELECT inside.value, depth + 1 FROM part, LATERAL (
            SELECT value FROM json_each(CASE json_typeof(part.value) WHEN 'object' THEN part.value END)
            UNION ALL
            SELECT value FROM json_array_elements(CASE json_typeof(part.value) WHEN 'array' THEN part.value END)
          ) AS inside WHERE depth <= {MAX_DEPTH})
        SELECT FROM part WHERE depth > {MAX_DEPTH} OR json_typeof(value) = 'object'
          AND (SELECT count(*) <> count(DISTINCT key) FROM json_each(value))), false) THEN
      RAISE EXCEPTION 'an entry must be one that can be read' USING ERRCODE = 'invalid_parameter_value';
    END IF;
  END IF;
  IF entry->>'by' IS DISTINCT FROM session_user::text AND NOT pg_has_role(session_user, owner, 'MEMBER') THEN
    RAISE EXCEPTION 'an entry must be in the name of the role that appends it' USING ERRCODE = 'insufficient_privilege';
  END IF;
  IF kind = 'budget' AND NOT pg_has_role(session_user, owner, 'MEMBER') THEN
    RAISE EXCEPTION 'only the owner of the ledger may set a budget' USING ERRCODE = 'insufficient_privilege';
  ELSIF kind IN ('release', 'return') THEN
    PERFORM 1 FROM boltdp_ledger.entries e WHERE e.number = (entry->>'reserved')::bigint
      AND e.record::json->>'kind' = 'reserve' AND e.record::json->>'by' = entry->>'by'
      AND e.record::json->>'dataset' = entry->>'dataset';
    IF NOT FOUND THEN
      RAISE EXCEPTION 'only who reserved a charge may release it or give it back'
        USING ERRCODE = 'insufficient_privilege';
    END IF;
  ELSIF kind = 'reserve' AND NOT EXISTS (SELECT FROM boltdp_ledger.entries e
    WHERE e.record::json->>'kind' = 'budget' AND e.record::json->>'dataset' = entry->>'dataset') THEN
    RAISE EXCEPTION 'a charge must be of a dataset that has a budget' USING ERRCODE = 'invalid_parameter_value';
  ELSIF kind = 'reserve' AND (json_typeof(entry->'budget') = 'null' OR json_array_length(entry->'reasons') > 0)
    AND (SELECT e.record::json->>'not_private' FROM boltdp_ledger.entries e WHERE e.record::json->>'kind' = 'budget'
      AND e.record::json->>'dataset' = entry->>'dataset' ORDER BY e.number DESC LIMIT 1) <> 'true' THEN
    RAISE EXCEPTION 'a charge must claim a budget, unless the dataset allows releases that are not private'
      USING ERRCODE = 'invalid_parameter_value';
  -- Of two relations nothing adds up: one such charge would stop all others for ever.
  ELSIF kind = 'reserve' AND EXISTS (SELECT FROM boltdp_ledger.entries e
    WHERE e.record::json->>'adjacency' <> entry->>'adjacency' AND e.record::json->>'dataset' = entry->>'dataset'
      AND NOT EXISTS (SELECT FROM boltdp_ledger.entries r WHERE (r.record::json->>'reserved')::bigint = e.number
        AND r.record::json->>'kind' = 'return')) THEN
    RAISE EXCEPTION 'a charge must be about the relation of those before it' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  INSERT INTO boltdp_ledger.entries VALUES (last.number + 1, record, sealed);
  UPDATE boltdp_ledger.head SET number = last.number + 1, digest = sealed;
END""",
    ),
}

_TABLES = """
CREATE SCHEMA boltdp_ledger;
CREATE TABLE boltdp_ledger.entries (
  number bigint PRIMARY KEY,
  record text NOT NULL,
  digest text NOT NULL,
  UNIQUE (digest)
);
CREATE UNIQUE INDEX ended ON boltdp_ledger.entries (((record::json->>'reserved')::bigint));
CREATE TABLE boltdp_ledger.head (number bigint NOT NULL, digest text NOT NULL, version integer NOT NULL);
INSERT INTO boltdp_ledger.head VALUES (0, 'boltdp-ledger 1', 1);
"""

_TRIGGERS = """
CREATE TRIGGER kept BEFORE UPDATE OR DELETE OR TRUNCATE ON boltdp_ledger.entries
  FOR EACH STATEMENT EXECUTE FUNCTION boltdp_ledger.refuse();
CREATE TRIGGER kept BEFORE INSERT OR DELETE OR TRUNCATE ON boltdp_ledger.head
  FOR EACH STATEMENT EXECUTE FUNCTION boltdp_ledger.refuse();
"""


def write_creation_script() -> str:
    """Return the SQL that creates an empty ledger, which an administrator may run by hand."""
    functions = "".join(
        f"CREATE FUNCTION {SCHEMA}.{name}{takes} RETURNS {returns} LANGUAGE plpgsql {_FIXED} AS $body${body}$body$;\n"
        f"REVOKE ALL ON FUNCTION {SCHEMA}.{name} FROM PUBLIC;\n"
        for name, (takes, returns, body) in FUNCTIONS.items()
    )
    return _TABLES + functions + _TRIGGERS


_EXISTS = "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname OPERATOR(pg_catalog.=) 'boltdp_ledger'"

#: The owner of the schema, whether that role is trusted, and its functions: an untrusted role that creates a schema of
#: this name could have other roles run its functions.
_OWNER = """
SELECT pg_catalog.pg_get_userbyid(n.nspowner), r.rolsuper OR n.nspowner OPERATOR(pg_catalog.=) d.datdba
  OR r.rolname OPERATOR(pg_catalog.=) SESSION_USER,
  ARRAY(SELECT p.prosrc FROM pg_catalog.pg_proc p
    WHERE p.pronamespace OPERATOR(pg_catalog.=) n.oid AND p.proowner OPERATOR(pg_catalog.=) n.nspowner
    AND p.prosecdef AND p.proconfig OPERATOR(pg_catalog.=) ARRAY['search_path=pg_catalog, pg_temp']
    ORDER BY p.proname),
  (SELECT pg_catalog.count(*) FROM pg_catalog.pg_proc p WHERE p.pronamespace OPERATOR(pg_catalog.=) n.oid)
FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) n.nspowner
JOIN pg_catalog.pg_database d ON d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
WHERE n.nspname OPERATOR(pg_catalog.=) 'boltdp_ledger'
"""

#: The owner's tables without row security, with the number of their enabled triggers.
_RELATIONS = """
SELECT c.relname::pg_catalog.text, (SELECT pg_catalog.count(*) FROM pg_catalog.pg_trigger t
    WHERE t.tgrelid OPERATOR(pg_catalog.=) c.oid AND NOT t.tgisinternal AND t.tgenabled OPERATOR(pg_catalog.=) 'O')
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
WHERE n.nspname OPERATOR(pg_catalog.=) 'boltdp_ledger' AND c.relkind OPERATOR(pg_catalog.=) 'r'
AND c.relowner OPERATOR(pg_catalog.=) n.nspowner AND NOT c.relrowsecurity ORDER BY c.relname
"""

#: Of each transaction, since a pooler may give each another session: names resolve to system objects only, and a
#: committed charge survives a crash.
_SETTINGS = f"""
SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
  pg_catalog.set_config('synchronous_commit', 'on', true), pg_catalog.set_config('lock_timeout', '{LOCK_TIMEOUT}', true)
"""

_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"


class PostgresStore(Store):
    """Opens a connection for every operation, unless one is kept open."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._spare = _Spare()
        # Without a password, since it is shown to users.
        self.address = re.sub(
            r"(?i)(?<=[?&])(ssl)?password=[^&]*&?", "", re.sub(r"(?<=://)([^:@/?]*):.*@", r"\1@", uri)
        ).rstrip("?&")
        self.place = f"in {self.address!r}"

    def exists(self) -> bool:
        with self._transaction(_READ) as ask:
            return bool(ask(_EXISTS, []))

    def create(self) -> None:
        with self._transaction(_WRITE) as ask:
            # Two processes may create it at the same time.
            ask("SELECT pg_catalog.pg_advisory_xact_lock(7161962540101)", [])
            if not ask(_EXISTS, []):
                ask(write_creation_script(), [])

    def allow(self, role: str) -> None:
        from psycopg import sql

        with self._transaction(_WRITE) as ask:
            self._check_trust(ask)
            for statement in (
                "GRANT USAGE ON SCHEMA boltdp_ledger TO {}",
                "GRANT SELECT ON boltdp_ledger.entries, boltdp_ledger.head TO {}",
                "GRANT EXECUTE ON FUNCTION boltdp_ledger.latch(), boltdp_ledger.append(pg_catalog.text) TO {}",
            ):
                ask(sql.SQL(statement).format(sql.Identifier(role)), [])
            # Without the right to grant, PostgreSQL warns and raises no error.
            may = "SELECT pg_catalog.has_function_privilege($1, 'boltdp_ledger.append(text)', 'EXECUTE')"
            if ask(may, [role]) != [(True,)]:
                raise LedgerError(f"permission denied: only the owner of the ledger {self.place} may do that")

    def read(self) -> Sequence[Line]:
        with self._transaction(_READ) as ask:
            self._check_trust(ask)
            return self._read_lines(ask)

    def append(self, make: MakeLine, *, durable: bool = True) -> None:
        with self._transaction(_WRITE) as ask:
            self._check_trust(ask)
            if not durable:
                ask("SET LOCAL synchronous_commit = off", [])
            ((user, time),) = ask("SELECT who, moment FROM boltdp_ledger.latch()", [])
            # A new statement has a new snapshot: it sees all that was committed before the lock was acquired.
            record, _ = make(self._read_lines(ask), user, time)
            ask("SELECT boltdp_ledger.append($1)", [record])

    def list_faults(self) -> list[str]:
        with self._transaction(_READ) as ask:
            self._check_trust(ask)
            found = ask(_RELATIONS, [])
        return [] if found == [("entries", 1), ("head", 1)] else ["its tables or triggers were changed"]

    def _check_trust(self, ask: Ask) -> None:
        """Raise LedgerError for a ledger of an untrusted owner, or with other functions."""
        found = ask(_OWNER, [])
        if not found:
            raise self.make_missing_error()
        owner, trusted, bodies, functions = found[0]
        if not trusted:
            raise LedgerError(
                f"the ledger {self.place} belongs to the role {owner!r}, who is neither the owner of the "
                "database nor a superuser, and could have you run what they like"
            )
        if functions != len(FUNCTIONS) or bodies != [FUNCTIONS[name][2] for name in sorted(FUNCTIONS)]:
            raise LedgerError(f"the ledger {self.place} is damaged: its functions were changed")

    def _read_lines(self, ask: Ask) -> list[Line]:
        heads = ask("SELECT number, digest, version FROM boltdp_ledger.head", [])
        for *_, version in heads:
            self.check_version(version)
        stored = ask("SELECT number, record, digest FROM boltdp_ledger.entries ORDER BY number", [])
        return self.check_lines(stored, [head[:2] for head in heads], beginning=BEGINNING)

    @contextmanager
    def keep_open(self) -> Iterator[None]:
        self._spare.wanted += 1
        try:
            yield
        finally:
            self._spare.wanted -= 1
            if not self._spare.wanted and self._spare.connection is not None:
                self._spare.connection.close()
                self._spare.connection = None

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[Ask]:
        """Yield a function that queries the ledger in one transaction; errors of PostgreSQL become LedgerErrors."""
        require("postgres", "a ledger in PostgreSQL")
        import psycopg

        try:
            with _interrupts.shield(), ExitStack() as end:
                unknown = False
                connection, ask = self._connect()
                end.callback(connection.close)  # after an exception, this rolls back
                ask(begin, [])
                ask(_SETTINGS, [])
                yield ask
                unknown = True
                ask("COMMIT", [])
                if self._spare.wanted and self._spare.connection is None:
                    self._spare.connection = connection
                    end.pop_all()
        except psycopg.Error as fault:
            # No message here can contain data, so that the server may be quoted; but not the URI.
            from boltdp.engines.postgres.session import explain_unreachable

            reason, hint = fault.diag.message_primary or explain_unreachable(fault), getattr(fault, "hint", None)
            if isinstance(fault, psycopg.errors.ReadOnlySqlTransaction | psycopg.errors.FeatureNotSupported):
                hint = STANDBY_HINT
            # A server that answers otherwise has not committed.
            unknown = unknown and (fault.sqlstate is None or fault.sqlstate.startswith("57P"))
        else:
            return
        hint = UNKNOWN_HINT if unknown else hint
        raise LedgerUnavailableError(f"the ledger {self.place} cannot be used: {reason}", hint=hint, unknown=unknown)

    def _connect(self) -> tuple[Any, Ask]:
        """Return a working connection, the spare one or a new one, and the function that queries it."""
        import psycopg

        from boltdp.engines.postgres.session import connect

        spare, self._spare.connection = self._spare.connection, None
        for old in (spare, None):
            connection = old or connect(self.uri, autocommit=True, prepare_threshold=None)
            ask = partial(_run_query, connection)
            try:
                ask("SELECT 1", [])
            except BaseException as fault:
                connection.close()
                if old is None or not isinstance(fault, psycopg.OperationalError):
                    raise
            else:
                break
        return connection, ask


class _Spare(threading.local):
    """The idle connection of a thread, and how many contexts keep it open."""

    wanted = 0
    connection: Any = None


def _run_query(connection: Any, query: Any, values: Sequence[Any]) -> list[Any]:
    import psycopg

    with psycopg.RawCursor(connection) as cursor:
        cursor.execute(query, values)
        return cursor.fetchall() if cursor.description is not None else []
