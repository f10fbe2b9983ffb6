-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION boltdp" to load this file. \quit

GRANT USAGE ON SCHEMA boltdp TO PUBLIC;

-- A pass of SGD. `models` is one or more kernel states end to end; the result is them after the rows of the scan, in its
-- order. They are not noised: as private as the rows. PARALLEL UNSAFE and without a combine function, since merging two
-- halves of a pass would change the sensitivity; READ_WRITE, so not a window function either.

CREATE FUNCTION boltdp.sgd_block(internal, bytea, real[]) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_sgd_block_float4' LANGUAGE C IMMUTABLE PARALLEL UNSAFE;
CREATE FUNCTION boltdp.sgd_block(internal, bytea, double precision[]) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_sgd_block_float8' LANGUAGE C IMMUTABLE PARALLEL UNSAFE;
CREATE FUNCTION boltdp.sgd_row(internal, bytea, real, real[]) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_sgd_row_float4' LANGUAGE C IMMUTABLE PARALLEL UNSAFE;
CREATE FUNCTION boltdp.sgd_row(internal, bytea, real, double precision[]) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_sgd_row_float8' LANGUAGE C IMMUTABLE PARALLEL UNSAFE;
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
-- end; -1 is a marker, which ends a batch. Every block is given in order, with the position of its first row. Positions
-- are as secret as the rows: send them to boltdp.inbox, not as a parameter.
CREATE FUNCTION boltdp.sgd_drawn_block(internal, bytea, bytea, bigint, real[]) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_sgd_drawn_block' LANGUAGE C IMMUTABLE PARALLEL UNSAFE;
CREATE FUNCTION boltdp.sgd_drawn_final(internal) RETURNS bytea
	AS 'MODULE_PATHNAME', 'boltdp_sgd_drawn_final' LANGUAGE C IMMUTABLE PARALLEL UNSAFE;
CREATE AGGREGATE boltdp.sgd_drawn(models bytea, positions bytea, start bigint, block real[]) (
	SFUNC = boltdp.sgd_drawn_block, STYPE = internal, FINALFUNC = boltdp.sgd_drawn_final, FINALFUNC_MODIFY = READ_WRITE,
	PARALLEL = UNSAFE
);

-- What is summed over all rows. `state` is the kernel's before its first row; the result is it after the last. It is as
-- private as the rows, and may have weights that are not noised: send it to boltdp.inbox, not as a parameter. Sums are
-- exact, so that parallel workers, who each sum a part of the rows, give the same bits.

-- A derivative of the loss.
CREATE FUNCTION boltdp.derivative_block(internal, bytea, real[]) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_derivative_block' LANGUAGE C IMMUTABLE PARALLEL SAFE;
CREATE FUNCTION boltdp.derivative_join(internal, internal) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_derivative_join' LANGUAGE C IMMUTABLE PARALLEL SAFE;
CREATE FUNCTION boltdp.derivative_send(internal) RETURNS bytea
	AS 'MODULE_PATHNAME', 'boltdp_derivative_send' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION boltdp.derivative_receive(bytea, internal) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_derivative_receive' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION boltdp.derivative_final(internal) RETURNS bytea
	AS 'MODULE_PATHNAME', 'boltdp_derivative_final' LANGUAGE C IMMUTABLE PARALLEL SAFE;
CREATE AGGREGATE boltdp.derivative(state bytea, block real[]) (
	SFUNC = boltdp.derivative_block, STYPE = internal, FINALFUNC = boltdp.derivative_final, FINALFUNC_MODIFY = READ_WRITE,
	COMBINEFUNC = boltdp.derivative_join, SERIALFUNC = boltdp.derivative_send, DESERIALFUNC = boltdp.derivative_receive,
	PARALLEL = SAFE
);

-- How many rows each of several models gets wrong.
CREATE FUNCTION boltdp.errors_block(internal, bytea, real[]) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_errors_block' LANGUAGE C IMMUTABLE PARALLEL SAFE;
CREATE FUNCTION boltdp.errors_join(internal, internal) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_errors_join' LANGUAGE C IMMUTABLE PARALLEL SAFE;
CREATE FUNCTION boltdp.errors_send(internal) RETURNS bytea
	AS 'MODULE_PATHNAME', 'boltdp_errors_send' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION boltdp.errors_receive(bytea, internal) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_errors_receive' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION boltdp.errors_final(internal) RETURNS bytea
	AS 'MODULE_PATHNAME', 'boltdp_errors_final' LANGUAGE C IMMUTABLE PARALLEL SAFE;
CREATE AGGREGATE boltdp.errors(state bytea, block real[]) (
	SFUNC = boltdp.errors_block, STYPE = internal, FINALFUNC = boltdp.errors_final, FINALFUNC_MODIFY = READ_WRITE,
	COMBINEFUNC = boltdp.errors_join, SERIALFUNC = boltdp.errors_send, DESERIALFUNC = boltdp.errors_receive,
	PARALLEL = SAFE
);

-- Those rows of a block of which sums of a share take derivatives, 2^32 of it all; NULL if there are none.
CREATE FUNCTION boltdp.sampled(block real[], share bigint) RETURNS real[]
	AS 'MODULE_PATHNAME', 'boltdp_sampled' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

-- The features and their squares.
CREATE FUNCTION boltdp.moments_block(internal, bytea, real[]) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_moments_block' LANGUAGE C IMMUTABLE PARALLEL SAFE;
CREATE FUNCTION boltdp.moments_join(internal, internal) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_moments_join' LANGUAGE C IMMUTABLE PARALLEL SAFE;
CREATE FUNCTION boltdp.moments_send(internal) RETURNS bytea
	AS 'MODULE_PATHNAME', 'boltdp_moments_send' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION boltdp.moments_receive(bytea, internal) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_moments_receive' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION boltdp.moments_final(internal) RETURNS bytea
	AS 'MODULE_PATHNAME', 'boltdp_moments_final' LANGUAGE C IMMUTABLE PARALLEL SAFE;
CREATE AGGREGATE boltdp.moments(state bytea, block real[]) (
	SFUNC = boltdp.moments_block, STYPE = internal, FINALFUNC = boltdp.moments_final, FINALFUNC_MODIFY = READ_WRITE,
	COMBINEFUNC = boltdp.moments_join, SERIALFUNC = boltdp.moments_send, DESERIALFUNC = boltdp.moments_receive,
	PARALLEL = SAFE
);

-- Models between two passes, in the memory of this session: never a parameter, which a server that logs statements logs.
CREATE FUNCTION boltdp.keep(handle bigint, models bytea) RETURNS bytea
	AS 'MODULE_PATHNAME', 'boltdp_keep' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
CREATE FUNCTION boltdp.kept(handle bigint) RETURNS bytea
	AS 'MODULE_PATHNAME', 'boltdp_kept' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;
CREATE FUNCTION boltdp.forget(handle bigint) RETURNS boolean
	AS 'MODULE_PATHNAME', 'boltdp_forget' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

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
CREATE FUNCTION boltdp.permuted_position("position" bigint, total bigint, seed bigint) RETURNS bigint
	AS 'MODULE_PATHNAME', 'boltdp_permuted_position' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

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
	name text PRIMARY KEY,
	private boolean NOT NULL,                 -- whether the certificate claims a guarantee
	loss text NOT NULL,
	classes text[] NOT NULL,
	weights double precision[] NOT NULL,      -- one vector for two classes, one a class for more
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
	steps integer[],                          -- if numbers have curves: how many steps each number of x has,
	places double precision[],                -- and of all of them, end to end, where they are,
	absent double precision[],                -- what the feature is below
	present double precision[]                -- and from there on
);
GRANT SELECT ON boltdp.models TO PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('boltdp.models', '');

CREATE FUNCTION boltdp.predict(model text, x real[]) RETURNS text
	AS 'MODULE_PATHNAME', 'boltdp_predict_float4' LANGUAGE C STABLE STRICT PARALLEL SAFE;
CREATE FUNCTION boltdp.predict(model text, x double precision[]) RETURNS text
	AS 'MODULE_PATHNAME', 'boltdp_predict_float8' LANGUAGE C STABLE STRICT PARALLEL SAFE;
CREATE FUNCTION boltdp.predict_proba(model text, x real[]) RETURNS double precision[]
	AS 'MODULE_PATHNAME', 'boltdp_predict_proba_float4' LANGUAGE C STABLE STRICT PARALLEL SAFE;
CREATE FUNCTION boltdp.predict_proba(model text, x double precision[]) RETURNS double precision[]
	AS 'MODULE_PATHNAME', 'boltdp_predict_proba_float8' LANGUAGE C STABLE STRICT PARALLEL SAFE;
