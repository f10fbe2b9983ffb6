-- The aggregate over drawn rows. A model of 2 features, 4 rows, 2 passes, batches of 1, logistic loss, step 1, before its first
-- row. What it computes is tested against the kernel from Python; here, what it accepts and refuses.
CREATE FUNCTION pg_temp.fails(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	RETURN 'did not fail';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ': ' || SQLERRM;
END $$;
CREATE TEMP TABLE model AS SELECT decode('626f6c74736764310400000000000000800100000000000000000000000000000200000000000000'
	'0200000000000000010000000000000004000000000000000400000000000000020000000000000001000000000000000000000000000000'
	'000000000000f03f000000000000f03f000000000000f07f000000000000f03f0000000000000000000000000000f07f0000000000000000'
	'000000000000000000000000000000000000000000000000000000000000000000000000000000000100000000000000' || repeat('00', 184), 'hex') AS m;
CREATE TEMP TABLE blocks (start bigint, b real[]);
INSERT INTO blocks VALUES (0, ARRAY[[1,0.5,0.25],[0,-0.5,0.75],[1,0.125,3]]), (3, ARRAY[[0,0,-0.5]]);
CREATE FUNCTION pg_temp.positions(VARIADIC bigint[]) RETURNS bytea LANGUAGE sql AS
	$$ SELECT coalesce(string_agg(int8send(p), '' ORDER BY i), '') FROM unnest($1) WITH ORDINALITY AS u (p, i) $$;
CREATE FUNCTION pg_temp.drawn(VARIADIC bigint[]) RETURNS bytea LANGUAGE sql AS
	$$ SELECT boltdp.sgd_drawn(m, pg_temp.positions(VARIADIC $1), start, b) FROM model, blocks $$;

-- In order, as in a pass; in any order, and more than once, as over the rows so ordered; -1 as a row without a gradient, in a model whose batches have fixed sizes.
SELECT pg_temp.drawn(0, 1, 2, 3) = (SELECT boltdp.sgd(m, b) FROM model, blocks) AS in_order;
SELECT pg_temp.drawn(3, 0, 0, 2, -1)
	= (SELECT boltdp.sgd(m, '{{0,0,-0.5},{1,0.5,0.25},{1,0.5,0.25},{1,0.125,3},{-1,0,0}}'::real[]) FROM model) AS drawn;
SELECT pg_temp.drawn(VARIADIC '{}') = m AS nothing FROM model;

-- Several models in one scan, end to end.
SELECT boltdp.sgd_drawn(m || m, pg_temp.positions(2, 1), start, b) = pg_temp.drawn(2, 1) || pg_temp.drawn(2, 1) AS together
	FROM model, blocks;

-- No blocks, no model; those that have no drawn row may be left out; groups have one model each.
SELECT boltdp.sgd_drawn(m, pg_temp.positions(0), start, b) IS NULL AS nothing FROM model, blocks WHERE false;
SELECT boltdp.sgd_drawn(m, pg_temp.positions(3, 3), start, b) = pg_temp.drawn(3, 3) AS same
	FROM model, blocks WHERE start = 3;
SELECT start, boltdp.sgd_drawn(m, pg_temp.positions(start), start, b) = pg_temp.drawn(start) AS same
	FROM model, blocks GROUP BY start ORDER BY start;

-- Positions without a row: after the last, before the first, between two; no message tells which.
SELECT pg_temp.fails('SELECT pg_temp.drawn(0, 4)');
SELECT pg_temp.fails('SELECT pg_temp.drawn(9223372036854775807)');
SELECT pg_temp.fails('SELECT pg_temp.drawn(-2)');
SELECT pg_temp.fails('SELECT boltdp.sgd_drawn(m, pg_temp.positions(2), start, b) FROM model, blocks WHERE start = 3');
SELECT pg_temp.fails('SELECT boltdp.sgd_drawn(m, pg_temp.positions(3, 4), start * 5, b) FROM model, blocks');
SELECT pg_temp.fails('SELECT boltdp.sgd_drawn(m, ''\x00'', start, b) FROM model, blocks');

-- Blocks out of order, rows twice, starts out of range.
SELECT pg_temp.fails('SELECT boltdp.sgd_drawn(m, '''', start, b) FROM model, (SELECT * FROM blocks ORDER BY start DESC) AS s');
SELECT pg_temp.fails('SELECT boltdp.sgd_drawn(m, '''', start - start / 3, b) FROM model, blocks');
SELECT pg_temp.fails('SELECT boltdp.sgd_drawn(m, '''', start - 1, b) FROM model, blocks');
SELECT pg_temp.fails('SELECT boltdp.sgd_drawn(m, '''', 9223372036854775807, b) FROM model, blocks');

-- NULLs, dimensions, types, corrupt models, more rows than the passes have left.
SELECT pg_temp.fails('SELECT boltdp.sgd_drawn(NULL, '''', start, b) FROM blocks');
SELECT pg_temp.fails('SELECT boltdp.sgd_drawn(m, NULL, start, b) FROM model, blocks');
SELECT pg_temp.fails('SELECT boltdp.sgd_drawn(m, '''', NULL, b) FROM model, blocks');
SELECT pg_temp.fails('SELECT boltdp.sgd_drawn(m, '''', start, NULL) FROM model, blocks');
SELECT pg_temp.fails('SELECT boltdp.sgd_drawn(m, '''', 0, ARRAY[[1,NULL,2]]::real[]) FROM model');
SELECT pg_temp.fails('SELECT boltdp.sgd_drawn(m, '''', 0, ''{1,2,3}''::real[]) FROM model');
SELECT pg_temp.fails('SELECT boltdp.sgd_drawn(m, '''', 0, ''{{1,2}}''::real[]) FROM model');
SELECT pg_temp.fails('SELECT boltdp.sgd_drawn(m, '''', 0, b::float8[]) FROM model, blocks');
SELECT pg_temp.fails('SELECT boltdp.sgd_drawn(''\xdeadbeef'', '''', start, b) FROM blocks');
SELECT count(DISTINCT left(pg_temp.fails(format(
	'SELECT boltdp.sgd_drawn(set_byte(m, %s, 255), pg_temp.positions(3, 1), start, b) FROM model, blocks', byte)), 5))
	BETWEEN 1 AND 3 AS never_a_crash FROM generate_series(0, 383) AS byte;
SELECT pg_temp.fails('SELECT pg_temp.drawn(0, 1, 2, 3, 0, 1, 2, 3, 0)');

-- Not as a window function, and never in parallel.
SELECT pg_temp.fails('SELECT boltdp.sgd_drawn(m, '''', start, b) OVER () FROM model, blocks');
SELECT proparallel, aggcombinefn, aggfinalmodify FROM pg_aggregate JOIN pg_proc p ON p.oid = aggfnoid
	WHERE pronamespace = 'boltdp'::regnamespace AND proname = 'sgd_drawn';
