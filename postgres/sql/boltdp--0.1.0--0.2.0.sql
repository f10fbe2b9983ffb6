-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION boltdp UPDATE TO '0.2.0'" to load this file. \quit

-- How many rows each of several models gets wrong. `state` is the kernel's before its first row, with their weights; the
-- result is it after the last, with the counts. They are not noised: send it to boltdp.inbox, not as a parameter.
CREATE FUNCTION boltdp.errors_block(internal, bytea, real[]) RETURNS internal
	AS 'MODULE_PATHNAME', 'boltdp_errors_block' LANGUAGE C IMMUTABLE PARALLEL UNSAFE;
CREATE FUNCTION boltdp.errors_final(internal) RETURNS bytea
	AS 'MODULE_PATHNAME', 'boltdp_errors_final' LANGUAGE C IMMUTABLE PARALLEL UNSAFE;
CREATE AGGREGATE boltdp.errors(state bytea, block real[]) (
	SFUNC = boltdp.errors_block, STYPE = internal, FINALFUNC = boltdp.errors_final,
	FINALFUNC_MODIFY = READ_WRITE, PARALLEL = UNSAFE
);

-- The margin above which the second of two classes is predicted: that of a threshold on its probability, or 0.
ALTER TABLE boltdp.models ADD COLUMN cut double precision NOT NULL DEFAULT 0;
-- What shapes the loss, as the kernel has it.
ALTER TABLE boltdp.models ADD COLUMN parameter double precision NOT NULL DEFAULT 1;

-- From columns to packed rows: each number is followed by as many steps as it has, `present` from its place on, `absent`
-- below, 0 where it is missing.
CREATE FUNCTION boltdp.pack_curves(x double precision[], low double precision[], high double precision[],
	middle double precision[], factor double precision[], steps integer[], places double precision[], absent real[],
	present real[])
	RETURNS real[] AS 'MODULE_PATHNAME', 'boltdp_pack_curves' LANGUAGE C IMMUTABLE PARALLEL SAFE;

-- Models whose numbers have curves: how many steps each number of x has; and of all of them, end to end, where they are and
-- what the feature is below and from there on.
ALTER TABLE boltdp.models ADD COLUMN steps integer[], ADD COLUMN places double precision[], ADD COLUMN absent real[],
	ADD COLUMN present real[];
