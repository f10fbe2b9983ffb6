-- The aggregate by itself. A model of 2 features, 4 rows, 2 passes, batches of 1, logistic loss, step 1, before its first row.
-- What it computes is tested against the kernel from Python; here, what it accepts and refuses.
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
CREATE TEMP TABLE rows (label int, x real[]);
INSERT INTO rows VALUES (1, '{0.5,0.25}'), (0, '{-0.5,0.75}'), (1, '{0.125,3}'), (0, '{0,-0.5}');
CREATE TEMP TABLE blocks AS SELECT ARRAY[[1,0.5,0.25],[0,-0.5,0.75],[1,0.125,3],[0,0,-0.5]]::real[] AS b;

-- A row a tuple, blocks, single and double precision, cut in any way: the same bits.
SELECT boltdp.sgd(m, label::real, x) = boltdp.sgd(m, label::real, x::float8[]) AS precisions FROM model, rows;
SELECT boltdp.sgd(m, label::real, x) = (SELECT boltdp.sgd(m, b) FROM model, blocks) AS forms FROM model, rows;
SELECT (SELECT boltdp.sgd(m, b) FROM model, blocks) = (SELECT boltdp.sgd(m, b::float8[]) FROM model, blocks) AS doubles;
SELECT (SELECT boltdp.sgd(m, b) FROM model, blocks)
	= (SELECT boltdp.sgd(m, c) FROM model, (SELECT b[1:1] FROM blocks UNION ALL SELECT b[2:4] FROM blocks) AS s (c)) AS cuts;
SELECT (SELECT boltdp.sgd(m, b) FROM model, blocks) <> m AS moved FROM model;

-- Several models in one scan, end to end.
SELECT boltdp.sgd(m || m, b) = boltdp.sgd(m, b) || boltdp.sgd(m, b) AS together FROM model, blocks;

-- Two trainings in one query, and in one session, do not mix.
SELECT boltdp.sgd(m, b) = boltdp.sgd(m, c) AS same, boltdp.sgd(m, b) = (SELECT boltdp.sgd(m, b) FROM model, blocks) AS own
	FROM model, (SELECT b, b[4:4] || b[3:3] || b[2:2] || b[1:1] AS c FROM blocks) AS s;
SELECT length(boltdp.put_state(1, boltdp.sgd(m, b[1:2]))) AS first, length(boltdp.put_state(2, boltdp.sgd(m, b[3:4]))) AS second
	FROM model, blocks;
SELECT boltdp.put_state(1, boltdp.sgd((SELECT boltdp.get_state(1)), b[3:4])) = (SELECT boltdp.sgd(m, b) FROM model, blocks) AS own
	FROM blocks;
SELECT boltdp.get_state(2) = (SELECT boltdp.sgd(m, b[3:4]) FROM model, blocks) AS other;
SELECT boltdp.drop_state(1), boltdp.drop_state(1) AS again, boltdp.get_state(1) IS NULL AS gone, boltdp.drop_state(2);
SELECT boltdp.get_state(NULL) IS NULL AS no_handle, boltdp.put_state(3, NULL) IS NULL AS no_model, boltdp.get_state(3) IS NULL AS not_kept;

-- A transaction that fails leaves what was kept before it.
SELECT length(boltdp.put_state(1, m)) FROM model;
SELECT pg_temp.fails('SELECT boltdp.put_state(1, boltdp.sgd((SELECT boltdp.get_state(1)), b)) FROM (SELECT b FROM blocks UNION ALL SELECT b[1:1][1:2] FROM blocks) s');
SELECT boltdp.get_state(1) = m AS unchanged FROM model;
SELECT boltdp.drop_state(1);

-- What is sent to the inbox is kept as it is, the last for each handle, and is nowhere else.
COPY boltdp.inbox FROM STDIN;
1	\\xdeadbeef
2	\\x
1	\\xcafe
\.
SELECT boltdp.get_state(1), boltdp.get_state(2), boltdp.get_state(3), (SELECT count(*) FROM boltdp.inbox) AS stored;
INSERT INTO boltdp.inbox SELECT 2, m FROM model;
SELECT boltdp.get_state(2) = m AS whole FROM model;
SELECT boltdp.drop_state(1), boltdp.drop_state(2);

-- Not without a handle or a state, not to be changed, not by another kind of trigger or for other columns.
SELECT pg_temp.fails('INSERT INTO boltdp.inbox VALUES (NULL, ''\xcafe'')');
SELECT pg_temp.fails('INSERT INTO boltdp.inbox (handle) VALUES (1)');
SELECT pg_temp.fails('INSERT INTO boltdp.inbox VALUES (1, ''\x0'')');
SELECT boltdp.get_state(1) IS NULL AS not_kept;
SELECT pg_temp.fails('UPDATE boltdp.inbox SET handle = 2');
SELECT pg_temp.fails('DELETE FROM boltdp.inbox');
SELECT pg_temp.fails('SELECT boltdp.receive()');
CREATE TEMP TABLE letters (handle bigint, state bytea);
CREATE TRIGGER receive BEFORE INSERT ON letters FOR EACH ROW EXECUTE FUNCTION boltdp.receive();
SELECT pg_temp.fails('INSERT INTO letters VALUES (1, ''\xcafe'')');
CREATE TEMP VIEW swapped AS SELECT state, handle FROM letters;
CREATE TRIGGER receive INSTEAD OF INSERT ON swapped FOR EACH ROW EXECUTE FUNCTION boltdp.receive();
SELECT pg_temp.fails('INSERT INTO swapped VALUES (''\xcafe'', 1)');
CREATE TEMP VIEW longer AS SELECT handle, state, 1 AS more FROM letters;
CREATE TRIGGER receive INSTEAD OF INSERT ON longer FOR EACH ROW EXECUTE FUNCTION boltdp.receive();
SELECT pg_temp.fails('INSERT INTO longer VALUES (1, ''\xcafe'', 1)');

-- A state takes the place of the one before: of 10 MB, nothing stays in the memory of the session.
CREATE TEMP TABLE used AS SELECT used_bytes AS before FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext';
INSERT INTO boltdp.inbox SELECT 1, convert_to(repeat('x', 10000), 'UTF8') FROM generate_series(1, 1000);
SELECT boltdp.drop_state(1);
SELECT used_bytes - before < 100000 AS nothing_stays FROM pg_backend_memory_contexts, used WHERE name = 'TopMemoryContext';

-- No rows, no model; groups have one each.
SELECT boltdp.sgd(m, b) IS NULL AS nothing FROM model, blocks WHERE false;
SELECT g, boltdp.sgd(m, b) = (SELECT boltdp.sgd(m, b) FROM model, blocks) AS same FROM model, blocks, generate_series(1, 2) g
	GROUP BY g ORDER BY g;

-- A missing label or feature makes a row neutral, and it still counts. The weights are 32 bytes after the header.
CREATE FUNCTION pg_temp.weights(bytea) RETURNS bytea LANGUAGE sql AS 'SELECT substr($1, 257, 32)';
SELECT pg_temp.weights(boltdp.sgd(m, l, f)) = pg_temp.weights(boltdp.sgd(m, k, g)) AS neutral,
	pg_temp.weights(boltdp.sgd(m, l, f)) = pg_temp.weights(m) AS unmoved
	FROM model, (VALUES (1::real, '{0.5,0.25}'::real[], 1::real, '{0.5,0.25}'::real[]), (NULL, '{1,1}', 'NaN', '{1,1}'),
		(1, NULL, 1, '{NaN,1}'), (1, '{1,NULL}', 7, '{1,1}')) AS s (l, f, k, g) GROUP BY m;

-- NULLs.
SELECT pg_temp.fails('SELECT boltdp.sgd(NULL, b) FROM blocks');
SELECT pg_temp.fails('SELECT boltdp.sgd(m, NULL::real[]) FROM model');
SELECT pg_temp.fails('SELECT boltdp.sgd(m, ARRAY[[1,NULL,2]]::real[]) FROM model');

-- Dimensions.
SELECT pg_temp.fails('SELECT boltdp.sgd(m, ''{1,2,3}''::real[]) FROM model');
SELECT pg_temp.fails('SELECT boltdp.sgd(m, ''{}''::real[]) FROM model');
SELECT pg_temp.fails('SELECT boltdp.sgd(m, ''{{1,2}}''::real[]) FROM model');
SELECT pg_temp.fails('SELECT boltdp.sgd(m, ''{{{1,2,3}}}''::real[]) FROM model');
SELECT pg_temp.fails('SELECT boltdp.sgd(m, 1, ''{1}''::real[]) FROM model');
SELECT pg_temp.fails('SELECT boltdp.sgd(m, 1, ''{{1,2}}''::real[]) FROM model');
SELECT pg_temp.fails('SELECT boltdp.sgd(m, 1, ''{1,2,3}''::float8[]) FROM model');

-- Types.
SELECT pg_temp.fails('SELECT boltdp.sgd(m, ''{1,2,3}''::text[]) FROM model');
SELECT pg_temp.fails('SELECT boltdp.sgd(''model'', 1, x) FROM rows');

-- Corrupt models.
SELECT pg_temp.fails('SELECT boltdp.sgd(''''::bytea, b) FROM blocks');
SELECT pg_temp.fails('SELECT boltdp.sgd(''\xdeadbeef''::bytea, b) FROM blocks');
SELECT pg_temp.fails('SELECT boltdp.sgd(substr(m, 1, 383), b) FROM model, blocks');
SELECT pg_temp.fails('SELECT boltdp.sgd(m || ''\x00'', b) FROM model, blocks');
SELECT pg_temp.fails('SELECT boltdp.sgd(m || substr(m, 1, 264), b) FROM model, blocks');
SELECT byte, pg_temp.fails(format('SELECT boltdp.sgd(set_byte(m, %s, 255), b) FROM model, blocks', byte))
	FROM unnest(ARRAY[0, 8, 16, 24, 33, 40, 56, 64, 72, 80, 103, 144, 152, 160, 168, 176, 184, 192, 200, 208, 240, 263]) AS byte;
SELECT count(DISTINCT left(pg_temp.fails(format('SELECT boltdp.sgd(set_byte(m, %s, 255), b) FROM model, blocks', byte)), 5))
	BETWEEN 1 AND 3 AS never_a_crash FROM generate_series(0, 383) AS byte;

-- More rows than the passes have left.
SELECT pg_temp.fails('SELECT boltdp.sgd(m, b) FROM model, blocks, generate_series(1, 3)');

-- Not as a window function, and never in parallel.
SELECT pg_temp.fails('SELECT boltdp.sgd(m, b) OVER () FROM model, blocks');
SELECT DISTINCT proparallel, aggcombinefn, aggfinalmodify FROM pg_aggregate JOIN pg_proc p ON p.oid = aggfnoid
	WHERE pronamespace = 'boltdp'::regnamespace AND proname = 'sgd';
