-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION boltdp" to load this file. \quit

-- What another role has put into the schema, or can put there later, would be taken for a part of boltdp and be run.
DO $check$
BEGIN
	IF EXISTS (SELECT FROM pg_catalog.pg_namespace n
		JOIN pg_catalog.pg_roles o ON o.oid OPERATOR(pg_catalog.=) n.nspowner
		WHERE n.nspname OPERATOR(pg_catalog.=) 'boltdp' AND (
			NOT (o.rolsuper OR o.rolname OPERATOR(pg_catalog.=) CURRENT_USER)
			OR EXISTS (SELECT FROM pg_catalog.aclexplode(n.nspacl) a WHERE a.grantee OPERATOR(pg_catalog.<>) n.nspowner
				AND a.privilege_type OPERATOR(pg_catalog.=) 'CREATE')
			OR EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.refobjid OPERATOR(pg_catalog.=) n.oid
				AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass
				AND d.classid OPERATOR(pg_catalog.<>) 'pg_catalog.pg_extension'::pg_catalog.regclass))) THEN
		RAISE EXCEPTION 'the schema boltdp must be empty, a superuser''s, and no other role''s to create in'
			USING ERRCODE = 'insufficient_privilege', HINT = 'look at what is there, then: DROP SCHEMA boltdp CASCADE';
	END IF;
END$check$;

GRANT USAGE ON SCHEMA boltdp TO PUBLIC;

-- A pass of SGD. `models` is one or more kernel states end to end; the result is them after the rows of the scan, in its
-- order. They are not noised: as sensitive as the rows. PARALLEL UNSAFE and without a combine function, since merging two
-- halves of a pass would change the sensitivity; READ_WRITE, so not a window function either.

CREATE FUNCTION boltdp.sgd_block(internal, bytea, real[]) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_sgd_block' LANGUAGE C IMMUTABLE PARALLEL UNSAFE;
CREATE FUNCTION boltdp.sgd_block(internal, bytea, double precision[]) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_sgd_block' LANGUAGE C IMMUTABLE PARALLEL UNSAFE;
CREATE FUNCTION boltdp.sgd_row(internal, bytea, real, real[]) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_sgd_row' LANGUAGE C IMMUTABLE PARALLEL UNSAFE;
CREATE FUNCTION boltdp.sgd_row(internal, bytea, real, double precision[]) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_sgd_row' LANGUAGE C IMMUTABLE PARALLEL UNSAFE;
CREATE FUNCTION boltdp.sgd_final(internal) RETURNS bytea
	AS 'MODULE_PATHNAME', 'boltdp_sgd_final' LANGUAGE C IMMUTABLE PARALLEL UNSAFE;

-- Blocks of packed rows: two dimensions, the class index (0, 1, ...) and the features of each row.
CREATE AGGREGATE boltdp.sgd(models bytea, block real[]) (
	SFUNC = boltdp.sgd_block, STYPE = internal, FINALFUNC = boltdp.sgd_final, FINALFUNC_MODIFY = READ_WRITE,
	PARALLEL = UNSAFE
);
CREATE AGGREGATE boltdp.sgd(models bytea, block double precision[]) (
	SFUNC = boltdp.sgd_block, STYPE = internal, FINALFUNC = boltdp.sgd_final, FINALFUNC_MODIFY = READ_WRITE,
	PARALLEL = UNSAFE
);

-- One row per tuple. A NULL label, NULL features or a NULL among them make the row neutral: it counts, without a gradient.
CREATE AGGREGATE boltdp.sgd(models bytea, label real, features real[]) (
	SFUNC = boltdp.sgd_row, STYPE = internal, FINALFUNC = boltdp.sgd_final, FINALFUNC_MODIFY = READ_WRITE,
	PARALLEL = UNSAFE
);
CREATE AGGREGATE boltdp.sgd(models bytea, label real, features double precision[]) (
	SFUNC = boltdp.sgd_row, STYPE = internal, FINALFUNC = boltdp.sgd_final, FINALFUNC_MODIFY = READ_WRITE,
	PARALLEL = UNSAFE
);

-- Batches drawn at random: the rows at `positions`, in this order, instead of all. A position is what int8send gives, end to
-- end; -1 ends a batch. Every block is given in order, with the position of its first row. Positions
-- are as secret as the rows: send them to boltdp.inbox, not as a parameter.
CREATE FUNCTION boltdp.sgd_drawn_block(internal, bytea, bytea, bigint, real[]) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_sgd_drawn_block' LANGUAGE C IMMUTABLE PARALLEL UNSAFE;
CREATE FUNCTION boltdp.sgd_drawn_final(internal) RETURNS bytea
	AS 'MODULE_PATHNAME', 'boltdp_sgd_drawn_final' LANGUAGE C IMMUTABLE PARALLEL UNSAFE;
CREATE AGGREGATE boltdp.sgd_drawn(models bytea, positions bytea, start bigint, block real[]) (
	SFUNC = boltdp.sgd_drawn_block, STYPE = internal, FINALFUNC = boltdp.sgd_drawn_final, FINALFUNC_MODIFY = READ_WRITE,
	PARALLEL = UNSAFE
);

-- What is summed over all rows: a derivative of the loss, how many rows each of several models gets wrong, or the features
-- and their squares. `state` is the kernel's before its first row; the result is it after the last. It is as
-- private as the rows, and may have weights that are not noised: send it to boltdp.inbox, not as a parameter. Sums are
-- exact, so that parallel workers, who each sum a part of the rows, give the same bits.
CREATE FUNCTION boltdp.sums_block(internal, bytea, real[]) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_sums_block' LANGUAGE C IMMUTABLE PARALLEL SAFE;
CREATE FUNCTION boltdp.sums_join(internal, internal) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_sums_join' LANGUAGE C IMMUTABLE PARALLEL SAFE;
CREATE FUNCTION boltdp.sums_receive(bytea, internal) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_sums_receive' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION boltdp.sums_final(internal) RETURNS bytea
	AS 'MODULE_PATHNAME', 'boltdp_sums_final' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
CREATE AGGREGATE boltdp.sums(state bytea, block real[]) (
	SFUNC = boltdp.sums_block, STYPE = internal, FINALFUNC = boltdp.sums_final, FINALFUNC_MODIFY = READ_WRITE,
	COMBINEFUNC = boltdp.sums_join, SERIALFUNC = boltdp.sums_final, DESERIALFUNC = boltdp.sums_receive, PARALLEL = SAFE
);

-- States between two passes, in the memory of this session: never a parameter, which a server that logs statements logs.
CREATE FUNCTION boltdp.put_state(handle bigint, models bytea) RETURNS bytea
	AS 'MODULE_PATHNAME', 'boltdp_put_state' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
CREATE FUNCTION boltdp.get_state(handle bigint) RETURNS bytea
	AS 'MODULE_PATHNAME', 'boltdp_get_state' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;
CREATE FUNCTION boltdp.drop_state(handle bigint) RETURNS boolean
	AS 'MODULE_PATHNAME', 'boltdp_drop_state' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

-- How they get there from a client: COPY boltdp.inbox FROM STDIN (FORMAT binary) keeps each state under its handle. No log
-- shows the data of a COPY (in text, errors quote it), and the view stores nothing.
CREATE VIEW boltdp.inbox (handle, state) AS SELECT NULL::bigint, NULL::pg_catalog.bytea WHERE false;
GRANT INSERT ON boltdp.inbox TO PUBLIC;
CREATE FUNCTION boltdp.receive() RETURNS trigger
	AS 'MODULE_PATHNAME', 'boltdp_receive' LANGUAGE C VOLATILE PARALLEL UNSAFE;
CREATE TRIGGER receive INSTEAD OF INSERT ON boltdp.inbox FOR EACH ROW EXECUTE FUNCTION boltdp.receive();

-- From columns to packed rows. `plan` is made of the public schema by boltdp, for these columns, the label first; or for one
-- row of them, ROW(...), if they are more than a function may have arguments. Nothing about a value is an error.

CREATE FUNCTION boltdp.pack_row(plan bytea, VARIADIC columns "any") RETURNS real[]
	AS 'MODULE_PATHNAME', 'boltdp_pack_row' LANGUAGE C IMMUTABLE PARALLEL SAFE;

-- All rows into a temporary table of one's own (start bigint, block real[]), in blocks; the result is how many. `total` is
-- how many there must be, each of which goes to its permuted position; NULL, and they stay in the order in which they
-- come. Without a `seed` one is drawn that nobody knows. At most `memory` bytes of rows wait in memory at once, the others
-- in temporary files.
CREATE FUNCTION boltdp.pack_step(internal, regclass, bytea, integer, bigint, bigint, bigint, VARIADIC "any")
	RETURNS internal AS 'MODULE_PATHNAME', 'boltdp_pack_columns' LANGUAGE C VOLATILE PARALLEL UNSAFE;
CREATE FUNCTION boltdp.pack_final(internal) RETURNS bigint
	AS 'MODULE_PATHNAME', 'boltdp_pack_final' LANGUAGE C VOLATILE PARALLEL UNSAFE;
CREATE AGGREGATE boltdp.pack(target regclass, plan bytea, block_rows integer, total bigint, seed bigint, memory bigint,
	VARIADIC columns "any") (
	SFUNC = boltdp.pack_step, STYPE = internal, FINALFUNC = boltdp.pack_final, FINALFUNC_MODIFY = READ_WRITE,
	PARALLEL = UNSAFE
);
-- The blocks of such a table, which come in order, into another one: the rows from `first` to `last` - 1 permuted.
CREATE FUNCTION boltdp.repack_step(internal, regclass, integer, bigint, bigint, bigint, bigint, bigint, bigint, real[])
	RETURNS internal AS 'MODULE_PATHNAME', 'boltdp_repack_block' LANGUAGE C VOLATILE PARALLEL UNSAFE;
CREATE AGGREGATE boltdp.repack(target regclass, block_rows integer, total bigint, seed bigint, memory bigint,
	"first" bigint, "last" bigint, start bigint, block real[]) (
	SFUNC = boltdp.repack_step, STYPE = internal, FINALFUNC = boltdp.pack_final, FINALFUNC_MODIFY = READ_WRITE,
	PARALLEL = UNSAFE
);

-- Released models, which may be shown, and scoring with them.

CREATE TABLE boltdp.models (
	name text NOT NULL,                       -- with a slash only those of requests
	private boolean NOT NULL,                 -- whether the certificate claims a guarantee
	loss text NOT NULL,
	classes text[] NOT NULL,                  -- none where a number is predicted,
	numbers double precision[],               -- but its bounds, that of a score of 0, and the unit of scores
	weights double precision[] NOT NULL,      -- one vector for a number or two classes, one a class for more
	low double precision[] NOT NULL,          -- bounds of each number of x,
	high double precision[] NOT NULL,
	middle double precision[] NOT NULL,       -- what is taken from it then,
	factor double precision[] NOT NULL,       -- and what the rest is multiplied by
	intercept double precision,               -- what the constant feature is, if there is one
	projection double precision[],            -- the matrix of the random projection, if there is one
	schema json NOT NULL,
	certificate json NOT NULL,
	stored timestamptz NOT NULL DEFAULT pg_catalog.now(),
	cut double precision NOT NULL DEFAULT 0,  -- the second of two classes is predicted where the margin is above it
	parameter double precision NOT NULL DEFAULT 1, -- what shapes the loss, as the kernel has it
	slope_norms double precision[],           -- if scores are corrected for clipped gradients: how long each class's are
	steps integer[],                          -- if numbers have curves: how many steps each number of x has,
	places double precision[],                -- and of all of them, end to end, where they are,
	absent double precision[],                -- what the feature is below
	present double precision[],               -- and from there on
	feature_map bytea,                        -- if columns are in pairs: from cells to features, as the kernel has it; instead
	                                          -- of middle, factor, intercept and steps
	unusable_labels double precision,         -- the noisy number of rows whose label was missing or not declared
	coefficients json,                        -- with standard errors and intervals, if it was trained for inference
	granted_to regrole[]                      -- roles that it is for; NULL: everybody
);
-- No condition of a query finds a name by this index, nor an order: EXPLAIN would tell how many others' it passed over.
CREATE UNIQUE INDEX models_name ON boltdp.models
	(pg_catalog.sha256(pg_catalog.replace(name, E'\\', E'\\\\')::pg_catalog.bytea));
SELECT pg_catalog.pg_extension_config_dump('boltdp.models', '');

-- The coefficients of models that were trained for inference, by the names that statisticians know. A function, also below the
-- view, has the rights of the caller: so nobody sees those of a model that is not for them.
CREATE FUNCTION boltdp.coefficients() RETURNS TABLE (model text, term text, coef double precision, std_err double precision,
	z double precision, p_value double precision, odds_ratio double precision, low double precision, high double precision)
LANGUAGE sql STABLE AS $body$
	SELECT m.name, c.term, c.coef, c.std_err, c.z, c.p_value, c.odds_ratio, c.low, c.high
	FROM boltdp.models m, pg_catalog.json_to_recordset(m.coefficients) AS c(term pg_catalog.text, coef pg_catalog.float8,
		std_err pg_catalog.float8, z pg_catalog.float8, p_value pg_catalog.float8, odds_ratio pg_catalog.float8,
		low pg_catalog.float8, high pg_catalog.float8)
$body$;
CREATE FUNCTION boltdp.coefficients(model text) RETURNS TABLE (term text, coef double precision, std_err double precision,
	z double precision, p_value double precision, odds_ratio double precision, low double precision, high double precision)
LANGUAGE sql STABLE STRICT AS $body$
	SELECT c.term, c.coef, c.std_err, c.z, c.p_value, c.odds_ratio, c.low, c.high FROM boltdp.coefficients() AS c
	WHERE c.model OPERATOR(pg_catalog.=) $1
$body$;
CREATE VIEW boltdp.coefficients AS SELECT * FROM boltdp.coefficients();
GRANT SELECT ON boltdp.coefficients TO PUBLIC;

CREATE FUNCTION boltdp.predict(model text, x real[]) RETURNS text
	AS 'MODULE_PATHNAME', 'boltdp_predict' LANGUAGE C STABLE STRICT PARALLEL SAFE;
CREATE FUNCTION boltdp.predict(model text, x double precision[]) RETURNS text
	AS 'MODULE_PATHNAME', 'boltdp_predict' LANGUAGE C STABLE STRICT PARALLEL SAFE;
CREATE FUNCTION boltdp.predict_number(model text, x real[]) RETURNS double precision
	AS 'MODULE_PATHNAME', 'boltdp_predict_number' LANGUAGE C STABLE STRICT PARALLEL SAFE;
CREATE FUNCTION boltdp.predict_number(model text, x double precision[]) RETURNS double precision
	AS 'MODULE_PATHNAME', 'boltdp_predict_number' LANGUAGE C STABLE STRICT PARALLEL SAFE;
CREATE FUNCTION boltdp.predict_proba(model text, x real[]) RETURNS double precision[]
	AS 'MODULE_PATHNAME', 'boltdp_predict_proba' LANGUAGE C STABLE STRICT PARALLEL SAFE;
CREATE FUNCTION boltdp.predict_proba(model text, x double precision[]) RETURNS double precision[]
	AS 'MODULE_PATHNAME', 'boltdp_predict_proba' LANGUAGE C STABLE STRICT PARALLEL SAFE;

-- Models for those who may not see the rows. An analyst asks by boltdp.request; `boltdp postgres worker`, with a role of its
-- own, trains what owners of tables have allowed. Rights are those of the caller, and row-level security separates the rows;
-- what is run as the owner of the extension is two views, a trigger, boltdp.name_dataset and boltdp.sweep.
-- Roles and tables are kept by their OIDs: one that is renamed keeps what it has, and another one that then has its name
-- gets nothing of it.

-- How requests are answered; one row, made by boltdp.allow_worker.
CREATE TABLE boltdp.serving (
	single boolean PRIMARY KEY DEFAULT true CHECK (single),
	channel text NOT NULL,                    -- of NOTIFY: any role may listen to one whose name it knows
	grain interval NOT NULL CHECK (grain OPERATOR(pg_catalog.>=) interval '1 second') -- answers appear at its multiples only
);
SELECT pg_catalog.pg_extension_config_dump('boltdp.serving', '');

-- What tables are called in requests and in the ledger, for as long as they exist: what was spent must not be forgotten by
-- renaming a table, nor be charged to another one.
CREATE TABLE boltdp.datasets (
	relation regclass PRIMARY KEY,
	name text NOT NULL UNIQUE,
	UNIQUE (relation, name)
);
SELECT pg_catalog.pg_extension_config_dump('boltdp.datasets', '');

-- What owners of tables allow, written by boltdp.allow_training.
CREATE TABLE boltdp.allowances (
	relation regclass,
	role regrole,
	dataset text NOT NULL,
	label text NOT NULL,
	columns text[] NOT NULL,
	epsilon double precision NOT NULL,        -- that all models of the role may spend together
	delta double precision NOT NULL,
	groups text,                              -- a public column, by which there may be a model for each group
	group_values text[],
	schema json,                              -- as in a schema file; without it, what the table declares
	min_epsilon double precision,             -- of one request; NULL: any
	max_epsilon_per_request double precision,
	PRIMARY KEY (relation, role),
	FOREIGN KEY (relation, dataset) REFERENCES boltdp.datasets (relation, name) ON DELETE CASCADE
);
SELECT pg_catalog.pg_extension_config_dump('boltdp.allowances', '');

CREATE TABLE boltdp.requests (
	role regrole DEFAULT pg_catalog.to_regrole(pg_catalog.quote_ident(CURRENT_USER)),
	number integer,                           -- of the role's own: the numbers tell nothing of others
	dataset text NOT NULL,
	label text NOT NULL,
	columns text[],                           -- NULL: all that are allowed
	groups text,
	epsilon double precision NOT NULL,
	delta double precision NOT NULL,
	inference boolean NOT NULL DEFAULT false, -- whether the models are to have coefficients,
	robust_errors boolean NOT NULL DEFAULT false, -- with standard errors that hold where the model does not
	requested timestamptz NOT NULL,
	state text NOT NULL DEFAULT 'waiting',
	reason text,
	models text[],
	published timestamptz,                    -- from when on the answer may be seen
	charged_to regrole,                       -- the role of the allowance whose budget this has spent
	claimed timestamptz,                      -- when a worker last took it: roles take turns
	worker_pid integer,                       -- the session that serves it; one that is gone has been killed
	worker_start timestamptz,
	PRIMARY KEY (role, number)
);
CREATE INDEX ON boltdp.requests (requested) WHERE state OPERATOR(pg_catalog.=) 'waiting';
SELECT pg_catalog.pg_extension_config_dump('boltdp.requests', '');

-- The planner shows its estimates to everybody who may read a part of a table, and statistics would make them tell the rest.
DO $check$
DECLARE
	one record;
BEGIN
	FOR one IN SELECT a.attrelid::pg_catalog.regclass AS relation, a.attname, a.attnum, c.relkind
		FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) a.attrelid
		WHERE a.attnum OPERATOR(pg_catalog.>) 0::pg_catalog.int2 AND a.attrelid OPERATOR(pg_catalog.=) ANY (ARRAY[
			'boltdp.models', 'boltdp.models_name', 'boltdp.datasets', 'boltdp.allowances', 'boltdp.requests'
		]::pg_catalog.regclass[]) LOOP
		IF one.relkind OPERATOR(pg_catalog.=) 'i' THEN
			EXECUTE pg_catalog.format('ALTER INDEX %s ALTER COLUMN %s SET STATISTICS 0', one.relation, one.attnum);
		ELSE
			EXECUTE pg_catalog.format('ALTER TABLE %s ALTER COLUMN %I SET STATISTICS 0', one.relation, one.attname);
		END IF;
	END LOOP;
END$check$;

-- Who is trusted, as boltdp.allow_worker and boltdp.allow_owner have granted: rights to these tables, and nothing else.
CREATE VIEW boltdp.trusted AS
	SELECT a.grantee::pg_catalog.regrole AS role,
		pg_catalog.bool_or(c.relname OPERATOR(pg_catalog.=) 'requests') AS worker,
		pg_catalog.bool_or(c.relname OPERATOR(pg_catalog.=) 'allowances') AS owner
	FROM pg_catalog.pg_class c, LATERAL pg_catalog.aclexplode(c.relacl) AS a
	WHERE a.grantee OPERATOR(pg_catalog.<>) c.relowner AND (
		(c.oid OPERATOR(pg_catalog.=) 'boltdp.requests'::regclass AND a.privilege_type OPERATOR(pg_catalog.=) 'UPDATE') OR
		(c.oid OPERATOR(pg_catalog.=) 'boltdp.allowances'::regclass AND a.privilege_type OPERATOR(pg_catalog.=) 'INSERT'))
	GROUP BY a.grantee;
GRANT SELECT ON boltdp.trusted TO PUBLIC;

CREATE FUNCTION boltdp.is_worker() RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE
	SET search_path = pg_catalog, pg_temp AS 'SELECT has_table_privilege(''boltdp.requests''::regclass, ''UPDATE'')';

-- Whether all that runs when a relation is read is of trusted roles and superusers: the worker runs it with its own rights.
-- That is the relation, its partitions, what a view reads, policies, constraints and indexes (whose expressions the planner
-- may compute), and the functions, operators and domains that these name, with the constraints of domains.
CREATE FUNCTION boltdp.is_trusted(relation regclass) RETURNS boolean LANGUAGE sql STABLE
	SET search_path = pg_catalog, pg_temp AS $body$
	WITH RECURSIVE run(class, object) AS (
		SELECT 'pg_class'::regclass::oid, $1::oid
		UNION
		SELECT found.class, found.object FROM run, LATERAL (
			SELECT 'pg_class'::regclass::oid AS class, i.inhrelid AS object, i.inhparent AS belongs_to FROM pg_inherits i
			UNION ALL SELECT 'pg_class'::regclass, x.indexrelid, x.indrelid FROM pg_index x
			UNION ALL SELECT 'pg_policy'::regclass, p.oid, p.polrelid FROM pg_policy p
			UNION ALL SELECT 'pg_constraint'::regclass, k.oid, k.conrelid FROM pg_constraint k WHERE k.contype = 'c'
			UNION ALL SELECT 'pg_constraint'::regclass, k.oid, NULL FROM pg_constraint k
				WHERE run.class = 'pg_type'::regclass AND k.contypid = run.object
			UNION ALL SELECT 'pg_type'::regclass, t.typbasetype, NULL FROM pg_type t
				WHERE run.class = 'pg_type'::regclass AND t.oid = run.object AND t.typbasetype <> 0
			UNION ALL SELECT 'pg_rewrite'::regclass, w.oid, w.ev_class FROM pg_rewrite w WHERE w.ev_type = '1'
				AND (SELECT v.relkind FROM pg_class v WHERE v.oid = w.ev_class) = 'v'
			UNION ALL SELECT d.refclassid, d.refobjid, NULL FROM pg_depend d WHERE d.deptype = 'n'
				AND d.classid = run.class AND d.objid = run.object
		) AS found WHERE found.belongs_to IS NULL OR run.class = 'pg_class'::regclass AND found.belongs_to = run.object
	), owned(class, object, owner) AS (
		SELECT 'pg_class'::regclass::oid, c.oid, c.relowner FROM pg_class c
		UNION ALL SELECT 'pg_proc'::regclass, f.oid, f.proowner FROM pg_proc f
		UNION ALL SELECT 'pg_operator'::regclass, o.oid, o.oprowner FROM pg_operator o
		UNION ALL SELECT 'pg_type'::regclass, t.oid, t.typowner FROM pg_type t WHERE t.typtype = 'd'
	)
	SELECT COALESCE(bool_and(has_table_privilege(o.owner, 'boltdp.allowances'::regclass, 'INSERT')), false)
	FROM run r JOIN owned o ON o.class = r.class AND o.object = r.object
$body$;

-- A model with `granted_to` is for these roles and their members, from when it is `stored` on; others are for everybody.
-- By columns: the number of the transaction that stored it would tell when that was. The condition costs next to nothing, so
-- that those of a query come after it, and has no subquery: EXPLAIN would tell how many rows they leave of others' models.
CREATE FUNCTION boltdp.may_read(granted_to regrole[], stored timestamptz) RETURNS boolean LANGUAGE plpgsql STABLE
	PARALLEL SAFE COST 0.0001 AS $body$
DECLARE
	one pg_catalog.regrole;
BEGIN
	IF $1 IS NULL THEN
		RETURN true;
	END IF;
	FOREACH one IN ARRAY $1 LOOP
		IF $2 OPERATOR(pg_catalog.<=) pg_catalog.now() AND pg_catalog.pg_has_role(one, 'USAGE') THEN
			RETURN true;
		END IF;
	END LOOP;
	RETURN boltdp.is_worker();
END$body$;
GRANT SELECT (name, private, loss, classes, numbers, weights, low, high, middle, factor, intercept, projection, schema, certificate,
	stored, cut, parameter, slope_norms, steps, places, absent, present, feature_map, unusable_labels, coefficients, granted_to)
	ON boltdp.models TO PUBLIC;
ALTER TABLE boltdp.models ENABLE ROW LEVEL SECURITY;
CREATE POLICY readers ON boltdp.models FOR SELECT USING (boltdp.may_read(granted_to, stored));
-- Names with a slash are for the worker: nobody else may take the one that somebody's next model will have.
CREATE POLICY inserting ON boltdp.models FOR INSERT
	WITH CHECK (pg_catalog.strpos(name, '/') OPERATOR(pg_catalog.=) 0 OR boltdp.is_worker());
CREATE POLICY updating ON boltdp.models FOR UPDATE USING (pg_catalog.strpos(name, '/') OPERATOR(pg_catalog.=) 0);
CREATE POLICY deleting ON boltdp.models FOR DELETE USING (pg_catalog.strpos(name, '/') OPERATOR(pg_catalog.=) 0);

-- Owners see and change what they allow of their own tables; only roles named by boltdp.allow_owner have any right to the table.
ALTER TABLE boltdp.allowances ENABLE ROW LEVEL SECURITY;
CREATE POLICY owners ON boltdp.allowances USING (pg_catalog.pg_has_role(
	(SELECT c.relowner FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) relation::pg_catalog.oid), 'USAGE'));
CREATE POLICY workers ON boltdp.allowances FOR SELECT USING (boltdp.is_worker());

-- Whoever asks sees no more of this than boltdp.answers has.
ALTER TABLE boltdp.requests ENABLE ROW LEVEL SECURITY;
CREATE POLICY asking ON boltdp.requests FOR INSERT
	WITH CHECK (role OPERATOR(pg_catalog.=) pg_catalog.to_regrole(pg_catalog.quote_ident(CURRENT_USER)));
CREATE POLICY workers ON boltdp.requests FOR SELECT USING (boltdp.is_worker());
CREATE POLICY serving ON boltdp.requests FOR UPDATE USING (boltdp.is_worker());
GRANT INSERT (dataset, label, columns, groups, epsilon, delta, inference, robust_errors) ON boltdp.requests TO PUBLIC;

-- Numbers a request and wakes the worker. It runs as the owner, since who asks must not see the channel.
CREATE FUNCTION boltdp.take_request() RETURNS trigger LANGUAGE plpgsql VOLATILE
	SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
	heard text;
BEGIN
	IF NEW.number IS NOT NULL THEN
		RETURN NEW; -- of a dump: nobody who asks may give one
	END IF;
	IF length(NEW.dataset) > 200 OR length(NEW.label) > 63 OR length(NEW.groups) > 63 OR cardinality(NEW.columns) > 1600
		OR EXISTS (SELECT FROM unnest(NEW.columns) AS one WHERE one IS NULL OR length(one) > 63) THEN
		RAISE EXCEPTION 'a request must name a table and columns' USING ERRCODE = 'invalid_parameter_value';
	END IF;
	IF (SELECT count(*) FROM boltdp.requests r
		WHERE r.role = NEW.role AND (r.published IS NULL OR r.published > now())) >= 100 THEN
		RAISE EXCEPTION 'a role must not have more than 100 requests waiting' USING ERRCODE = 'program_limit_exceeded';
	END IF;
	NEW.number := 1 + COALESCE((SELECT max(r.number) FROM boltdp.requests r WHERE r.role = NEW.role), 0);
	NEW.requested := clock_timestamp();
	SELECT s.channel INTO heard FROM boltdp.serving s;
	IF FOUND THEN
		PERFORM pg_notify(heard, '');
	END IF;
	RETURN NEW;
END$body$;
REVOKE ALL ON FUNCTION boltdp.take_request() FROM PUBLIC;
CREATE TRIGGER take BEFORE INSERT ON boltdp.requests FOR EACH ROW EXECUTE FUNCTION boltdp.take_request();

-- For analysts: ask, look, and see what one may ask for. In both views OFFSET keeps the conditions of a query away from rows of
-- others: plans, and how many rows they pass over, are the same whatever others asked for.

CREATE VIEW boltdp.answers WITH (security_barrier) AS
	SELECT r.number AS request, r.dataset, r.epsilon, r.delta,
		CASE WHEN r.shown THEN r.state ELSE 'waiting' END AS state, CASE WHEN r.shown THEN r.reason END AS reason,
		CASE WHEN r.shown THEN r.models END AS models, CASE WHEN r.shown THEN r.published END AS published
	FROM (SELECT q.*, COALESCE(q.published OPERATOR(pg_catalog.<=) pg_catalog.now(), false) AS shown FROM boltdp.requests q
		WHERE q.role OPERATOR(pg_catalog.=) pg_catalog.to_regrole(pg_catalog.quote_ident(CURRENT_USER)) OFFSET 0) AS r;
GRANT SELECT ON boltdp.answers TO PUBLIC;

CREATE FUNCTION boltdp.request(dataset text, label text, epsilon double precision, delta double precision DEFAULT 0,
	columns text[] DEFAULT NULL, groups text DEFAULT NULL, inference boolean DEFAULT false,
	robust_errors boolean DEFAULT false) RETURNS integer LANGUAGE plpgsql VOLATILE
	SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
	FOR attempt IN 1 .. 10 LOOP
		BEGIN
			INSERT INTO boltdp.requests (dataset, label, columns, groups, epsilon, delta, inference, robust_errors)
				VALUES ($1, $2, $5, $6, $3, $4, $7, $8);
			-- No session of the role can be given a larger number before this transaction ends.
			RETURN (SELECT max(a.request) FROM boltdp.answers a);
		EXCEPTION WHEN unique_violation THEN
			NULL; -- another session of the role was given this number
		END;
	END LOOP;
	RAISE EXCEPTION 'another session of this role is asking' USING ERRCODE = 'serialization_failure';
END$body$;

CREATE FUNCTION boltdp.status(request integer) RETURNS SETOF boltdp.answers LANGUAGE sql STABLE
	SET search_path = pg_catalog, pg_temp AS 'SELECT * FROM boltdp.answers a WHERE a.request = $1';

CREATE VIEW boltdp.allowed WITH (security_barrier) AS
	SELECT a.dataset, a.label, a.columns, a.groups, a.group_values, a.epsilon, a.delta, a.min_epsilon,
		a.max_epsilon_per_request
	FROM (SELECT * FROM boltdp.allowances x WHERE pg_catalog.pg_has_role(x.role, 'USAGE') OFFSET 0) AS a;
GRANT SELECT ON boltdp.allowed TO PUBLIC;

-- What a table is called: as it was when it was first asked. The name of one that was dropped goes to the next one.
CREATE FUNCTION boltdp.name_dataset(relation regclass) RETURNS text LANGUAGE plpgsql VOLATILE
	SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
	called text := (SELECT d.name FROM boltdp.datasets d WHERE d.relation = $1);
	other regclass;
BEGIN
	IF called IS NULL THEN
		PERFORM boltdp.sweep();
		SELECT CASE WHEN n.nspname = 'public' THEN '' ELSE quote_ident(n.nspname) || '.' END || quote_ident(c.relname)
			INTO called FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1;
		SELECT d.relation INTO other FROM boltdp.datasets d WHERE d.name = called;
		IF FOUND THEN
			RAISE EXCEPTION 'requests and the ledger call another table "%", since it had that name: %', called, other
				USING ERRCODE = 'duplicate_object', HINT = 'rename the new table';
		END IF;
		INSERT INTO boltdp.datasets VALUES ($1, called);
	END IF;
	RETURN called;
END$body$;
REVOKE ALL ON FUNCTION boltdp.name_dataset(regclass) FROM PUBLIC;

-- Forget roles and tables that were dropped; what they have spent is in the ledger, and models stay.
CREATE FUNCTION boltdp.sweep() RETURNS void LANGUAGE plpgsql VOLATILE
	SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
	roles oid[] := ARRAY(SELECT r.oid FROM pg_roles r);
BEGIN
	DELETE FROM boltdp.datasets d WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = d.relation);
	DELETE FROM boltdp.allowances a WHERE a.role <> ALL (roles);
	DELETE FROM boltdp.requests r WHERE r.role <> ALL (roles) AND COALESCE(r.charged_to <> ALL (roles), true)
		AND (r.state <> 'waiting' OR r.worker_pid IS NULL);
	UPDATE boltdp.models m SET granted_to = ARRAY(SELECT g FROM unnest(m.granted_to) AS g WHERE g = ANY (roles))
		WHERE NOT m.granted_to::oid[] <@ roles;
END$body$;
REVOKE ALL ON FUNCTION boltdp.sweep() FROM PUBLIC;

-- For owners of tables: let a role have models of a table, within a budget; the table's name in requests is returned.
CREATE FUNCTION boltdp.allow_training(relation regclass, to_role name, label text, columns text[],
	epsilon double precision, delta double precision DEFAULT 0, groups text DEFAULT NULL,
	group_values text[] DEFAULT NULL, schema json DEFAULT NULL, min_epsilon double precision DEFAULT NULL,
	max_epsilon_per_request double precision DEFAULT NULL) RETURNS text LANGUAGE plpgsql VOLATILE
	SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
	called text;
	given regrole := to_regrole(quote_ident($2));
	missing text;
BEGIN
	IF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = $1 AND c.relkind IN ('r', 'p', 'v', 'm')
		AND pg_has_role(c.relowner, 'USAGE')) THEN
		RAISE EXCEPTION 'only the owner of a table may allow training' USING ERRCODE = 'insufficient_privilege';
	END IF;
	IF NOT boltdp.is_trusted($1) THEN
		RAISE EXCEPTION 'all that is run when the table is read must belong to roles that boltdp.trusted lists as owners'
			USING ERRCODE = 'insufficient_privilege',
			HINT = 'the table, its partitions, what a view reads, functions of policies, constraints and indexes';
	END IF;
	IF given IS NULL THEN
		RAISE EXCEPTION 'to_role must be a role, got "%"', $2 USING ERRCODE = 'undefined_object';
	END IF;
	IF NOT COALESCE(cardinality($4) > 0 AND NOT $3 = ANY ($4), false) THEN
		RAISE EXCEPTION 'columns must be the features, at least one and not the label'
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
	SELECT n INTO missing FROM unnest(ARRAY[$3] || $4 || CASE WHEN $7 IS NULL THEN '{}' ELSE ARRAY[$7] END) AS n
		WHERE NOT EXISTS (SELECT FROM pg_attribute t
			WHERE t.attrelid = $1 AND t.attname = n AND t.attnum > 0 AND NOT t.attisdropped) LIMIT 1;
	IF FOUND THEN
		RAISE EXCEPTION 'the table must have the column "%"', missing USING ERRCODE = 'undefined_column';
	END IF;
	IF NOT COALESCE($5 BETWEEN 1e-12 AND 1e6 AND ($6 = 0 OR $6 >= 1e-100 AND $6 < 1), false) THEN
		RAISE EXCEPTION 'epsilon must be between 1e-12 and 1e6 and delta in [0, 1), got % and %', $5, $6
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
	IF NOT (COALESCE($10, 1e-12) BETWEEN 1e-12 AND LEAST($5, COALESCE($11, $5)) AND COALESCE($11, $5) <= 1e6) THEN
		RAISE EXCEPTION 'min_epsilon must be above 0, and at most epsilon and max_epsilon_per_request, got % and %',
			$10, $11 USING ERRCODE = 'invalid_parameter_value';
	END IF;
	IF $7 = $3 THEN
		RAISE EXCEPTION 'groups must be a public column, and not the label' USING ERRCODE = 'invalid_parameter_value';
	END IF;
	IF ($7 IS NULL) <> ($8 IS NULL) OR cardinality($8) NOT BETWEEN 1 AND 500 OR array_position($8, NULL) IS NOT NULL
		OR cardinality($8) > (SELECT count(DISTINCT g) FROM unnest($8) AS g) THEN
		RAISE EXCEPTION 'group_values must be given with groups, and list each public group once, up to 500'
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
	called := boltdp.name_dataset($1);
	INSERT INTO boltdp.allowances AS a VALUES ($1, given, called, $3, $4, $5, $6, $7, $8, $9, $10, $11)
		ON CONFLICT ON CONSTRAINT allowances_pkey DO UPDATE SET label = $3, columns = $4, epsilon = $5, delta = $6,
			groups = $7, group_values = $8, schema = $9, min_epsilon = $10, max_epsilon_per_request = $11;
	RETURN called;
END$body$;

-- Models that were released stay; requests that wait are refused.
CREATE FUNCTION boltdp.revoke_training(relation regclass, from_role name) RETURNS boolean LANGUAGE plpgsql VOLATILE
	SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
	DELETE FROM boltdp.allowances a WHERE a.relation = $1 AND a.role = to_regrole(quote_ident($2));
	RETURN FOUND;
END$body$;

-- For the administrator. The worker runs what tables, views and their policies contain with its own rights: so only roles that
-- are trusted may offer tables to it. What is revoked is refused from the next request on.
CREATE FUNCTION boltdp.allow_worker(role name, grain interval DEFAULT '10 minutes') RETURNS void LANGUAGE plpgsql VOLATILE
	SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
	EXECUTE format('GRANT SELECT, UPDATE ON boltdp.requests, boltdp.serving TO %I', $1);
	EXECUTE format('GRANT SELECT ON boltdp.allowances TO %I', $1);
	EXECUTE format('GRANT INSERT ON boltdp.models TO %I', $1);
	EXECUTE format('GRANT EXECUTE ON FUNCTION boltdp.sweep() TO %I', $1);
	INSERT INTO boltdp.serving AS s VALUES (true, 'boltdp_' || replace(gen_random_uuid()::text, '-', ''), $2)
		ON CONFLICT ON CONSTRAINT serving_pkey DO UPDATE SET grain = $2;
END$body$;
REVOKE ALL ON FUNCTION boltdp.allow_worker(name, interval) FROM PUBLIC;

CREATE FUNCTION boltdp.revoke_worker(role name) RETURNS void LANGUAGE plpgsql VOLATILE
	SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
	EXECUTE format('REVOKE SELECT, UPDATE ON boltdp.requests, boltdp.serving FROM %I', $1);
	EXECUTE format('REVOKE INSERT ON boltdp.models FROM %I', $1);
	EXECUTE format('REVOKE EXECUTE ON FUNCTION boltdp.sweep() FROM %I', $1);
	IF NOT EXISTS (SELECT FROM boltdp.trusted t WHERE t.role = to_regrole(quote_ident($1))) THEN
		EXECUTE format('REVOKE SELECT ON boltdp.allowances FROM %I', $1);
	END IF;
END$body$;
REVOKE ALL ON FUNCTION boltdp.revoke_worker(name) FROM PUBLIC;

CREATE FUNCTION boltdp.allow_owner(role name) RETURNS void LANGUAGE plpgsql VOLATILE
	SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
	EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON boltdp.allowances TO %I', $1);
	EXECUTE format('GRANT EXECUTE ON FUNCTION boltdp.name_dataset(regclass) TO %I', $1);
END$body$;
REVOKE ALL ON FUNCTION boltdp.allow_owner(name) FROM PUBLIC;

CREATE FUNCTION boltdp.revoke_owner(role name) RETURNS void LANGUAGE plpgsql VOLATILE
	SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
	EXECUTE format('REVOKE INSERT, UPDATE, DELETE ON boltdp.allowances FROM %I', $1);
	EXECUTE format('REVOKE EXECUTE ON FUNCTION boltdp.name_dataset(regclass) FROM %I', $1);
	IF NOT EXISTS (SELECT FROM boltdp.trusted t WHERE t.role = to_regrole(quote_ident($1))) THEN
		EXECUTE format('REVOKE SELECT ON boltdp.allowances FROM %I', $1);
	END IF;
END$body$;
REVOKE ALL ON FUNCTION boltdp.revoke_owner(name) FROM PUBLIC;
