-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION boltdp UPDATE TO '0.2.0'" to load this file. \quit

-- Rows are packed and summed in another way.
DROP AGGREGATE boltdp.derivative(bytea, real[]);
DROP FUNCTION boltdp.derivative_block(internal, bytea, real[]);
DROP FUNCTION boltdp.derivative_final(internal);
DROP AGGREGATE boltdp.moments(real[], double precision);
DROP FUNCTION boltdp.moments_step(internal, real[], double precision);
DROP FUNCTION boltdp.moments_final(internal);
DROP AGGREGATE boltdp.pack(integer, real[]);
DROP FUNCTION boltdp.pack_step(internal, integer, real[]);
DROP FUNCTION boltdp.pack_final(internal);
DROP FUNCTION boltdp.pack_numbers(real[], double precision[], double precision[], double precision[], double precision[]);
DROP FUNCTION boltdp.pack_numbers(double precision[], double precision[], double precision[], double precision[],
	double precision[]);
DROP FUNCTION boltdp.pack_categories(integer[], integer[], real[], real[]);
DROP FUNCTION boltdp.project(real[], double precision[]);

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

-- What is kept is given to parallel workers by the session that keeps it.
ALTER FUNCTION boltdp.kept(bigint) PARALLEL RESTRICTED;

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

-- The margin above which the second of two classes is predicted: that of a threshold on its probability, or 0.
ALTER TABLE boltdp.models ADD COLUMN cut double precision NOT NULL DEFAULT 0;
-- What shapes the loss, as the kernel has it.
ALTER TABLE boltdp.models ADD COLUMN parameter double precision NOT NULL DEFAULT 1;

-- Models whose numbers have curves: how many steps each number of x has; and of all of them, end to end, where they are and
-- what the feature is below and from there on.
ALTER TABLE boltdp.models ADD COLUMN steps integer[], ADD COLUMN places double precision[],
	ADD COLUMN absent double precision[], ADD COLUMN present double precision[];
-- Features are double precision.
ALTER TABLE boltdp.models ALTER intercept TYPE double precision;
