-- From columns to packed rows. That the bits are those of every other engine is tested from Python.
CREATE FUNCTION pg_temp.fails(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	RETURN 'did not fail';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ': ' || SQLERRM;
END $$;

-- A plan: the classes 0 and 1; a number from 0 to 10; the categories 'a', 'bé' and ''; and a vector of 2
-- numbers from -1 to 1.
CREATE TEMP TABLE given AS SELECT decode('626f6c74706c6e32040000000000000000000000000000000100000000000000020000000000000000000000000000000000000000000000'
	'0100000000000000010000000000000002000000000000000000000000000000000000000000244001000000000000000000000000000000'
	'03000000000000000000000000000000010000000000000061000000000000000100000000000000030000000000000062c3a90000000000'
	'020000000000000000000000000000000300000000000000000000000000f0bf000000000000f03f02000000000000000000000000000000', 'hex') AS plan;

-- A number is clipped and scaled; what is missing is NaN, or -1.
CREATE TYPE mood AS ENUM ('bé', 'a', 'other');
CREATE DOMAIN years AS numeric CHECK (VALUE IS NULL OR VALUE = VALUE);
CREATE TEMP TABLE rows (label int, age float8, sex text, scan real[]);
INSERT INTO rows VALUES (0, 5, 'a', '{1,0}'), (1, 3, 'bé', '{NULL,0.5}'), (2, 7, 'A', '{1,2,3}'), (NULL, NULL, NULL, NULL),
	(1, 'NaN', '', '{{1,0}}'), (0, 'Infinity', 'a ', '{-5,NaN}'), (0, -1e300, 'a', '{}');
SELECT boltdp.pack_row(plan, label, age, sex, scan) FROM given, rows;
SELECT boltdp.pack_row(plan, ROW(label, age, sex, scan)) FROM given, rows LIMIT 2;
-- Of every type.
SELECT boltdp.pack_row(plan, 1::int2, 4::int2, 'a'::varchar, '{1,0}'::float8[]), boltdp.pack_row(plan, true, true, 'bé'::char(9), '{1,0}'::int[]),
	boltdp.pack_row(plan, 1::int8, 4::int8, 'bé'::mood, '{1,-1}'::int8[]), boltdp.pack_row(plan, 0, 4.5::years, 'other'::mood, '{0.5,1e400}'::numeric[]),
	boltdp.pack_row(plan, 0, 1e400, 'a'::mood, '{1,NULL}'::int2[]), boltdp.pack_row(plan, 0, 4::real, 'a'::text, '{NULL,0}'::float8[]) FROM given;
SELECT boltdp.pack_row(plan, 0, -1e400::numeric, 'a'::text, NULL::real[]), boltdp.pack_row(plan, 0, 1e-400, 'a'::text, NULL::real[]) FROM given;
-- What it refuses: other columns, other types, another plan.
SELECT pg_temp.fails('SELECT boltdp.pack_row(NULL, 1, 2, ''a''::text, ''{1,2}''::real[])');
SELECT pg_temp.fails('SELECT boltdp.pack_row(plan, 1, 2, ''a''::text) FROM given');
SELECT pg_temp.fails('SELECT boltdp.pack_row(plan, 1, 2, ''a''::text, 3) FROM given');
SELECT pg_temp.fails('SELECT boltdp.pack_row(plan, ''1'', 2, ''a''::text, ''{1,2}''::real[]) FROM given');
SELECT pg_temp.fails('SELECT boltdp.pack_row(plan, 1.5, 2, ''a''::text, ''{1,2}''::real[]) FROM given');
SELECT pg_temp.fails('SELECT boltdp.pack_row(plan, 1, now(), ''a''::text, ''{1,2}''::real[]) FROM given');
SELECT pg_temp.fails('SELECT boltdp.pack_row(plan, 1, 2, 3, ''{1,2}''::real[]) FROM given');
SELECT pg_temp.fails('SELECT boltdp.pack_row(plan, 1, 2, ''a''::text, ''{1,2}''::text[]) FROM given');
SELECT pg_temp.fails('SELECT boltdp.pack_row(plan, 1, 2, ''a''::text, ''{t,f}''::bool[]) FROM given');
SELECT pg_temp.fails('SELECT boltdp.pack_row(plan, VARIADIC ARRAY[1,2,3,4]) FROM given');
SELECT pg_temp.fails('SELECT boltdp.pack_row(plan, ROW(1, 2)) FROM given');
SELECT pg_temp.fails('SELECT boltdp.pack_row(plan, 1, 2, ''a''::text, ''{1,2}''::real[]) FROM (SELECT substr(plan, 1, length(plan) - 8) FROM given) AS s (plan)');
SELECT pg_temp.fails('SELECT boltdp.pack_row(plan || ''\x0000000000000000'', 1, 2, ''a''::text, ''{1,2}''::real[]) FROM given');
SELECT DISTINCT pg_temp.fails(format('SELECT boltdp.pack_row(%L::bytea, 1, 2, ''a''::text, ''{1,2}''::real[])', substr(plan, 1, i)))
	FROM given, generate_series(0, length(plan) - 1) AS i;
-- A plan that is another one for another row.
SELECT boltdp.pack_row(p, 1, 2, 'a'::text, '{1,0}'::real[]) FROM (SELECT plan FROM given
	UNION ALL SELECT set_byte(plan, 56, 5) FROM given) AS s (p);

-- Blocks in a table, as the rows come, and each in its place: in memory, or in files for each range of places.
CREATE TEMP TABLE packed (start bigint, block real[]);
SELECT boltdp.pack('packed', plan, 3, NULL, NULL, 1, label, age, sex, scan) FROM given, rows;
SELECT * FROM packed;
CREATE TEMP TABLE placed (start bigint, block real[]);
SELECT boltdp.pack('placed', plan, 2, 7, -1, 1000000, label, age, sex, scan) FROM given, rows;
SELECT * FROM placed;
CREATE TEMP TABLE ranges (start bigint, block real[]);
SELECT boltdp.pack('ranges', plan, 2, 7, -1, 1, label, age, sex, scan) FROM given, rows;
SELECT count(*) AS differences FROM placed FULL JOIN ranges USING (start) WHERE placed.block IS DISTINCT FROM ranges.block;
SELECT boltdp.pack('packed', plan, 3, NULL, NULL, 1, label, age, sex, scan) IS NULL AS none FROM given, rows WHERE false;
-- Permuted again, all of it or a part.
CREATE TEMP TABLE again (start bigint, block real[]);
SELECT boltdp.repack('again', 3, 7, -1, 1, 0, 7, start, block) FROM packed;
SELECT (SELECT array_agg(b) FROM again, unnest(block) AS b) = (SELECT array_agg(b) FROM placed, unnest(block) AS b) AS same;
TRUNCATE again;
SELECT boltdp.repack('again', 1, 7, NULL, 1000000, 2, 5, start, block) FROM packed;
SELECT start, block[1][3] AS sex FROM again WHERE start < 2 OR start > 4;

-- What is refused: other tables than a temporary one of one's own, rows that are not as many as they were said to be.
CREATE TABLE kept (start bigint, block real[]);
SELECT pg_temp.fails('SELECT boltdp.pack(''kept'', plan, 3, NULL, NULL, 1, label, age, sex, scan) FROM given, rows');
SELECT pg_temp.fails('SELECT boltdp.pack(''rows'', plan, 3, NULL, NULL, 1, label, age, sex, scan) FROM given, rows');
SELECT pg_temp.fails('SELECT boltdp.pack(''pg_class'', plan, 3, NULL, NULL, 1, label, age, sex, scan) FROM given, rows');
CREATE TEMP TABLE indexed (start bigint, block real[]);
CREATE INDEX ON indexed (start);
SELECT pg_temp.fails('SELECT boltdp.pack(''indexed'', plan, 3, NULL, NULL, 1, label, age, sex, scan) FROM given, rows');
CREATE TEMP TABLE checked (start bigint CHECK (start < 0), block real[]);
SELECT pg_temp.fails('SELECT boltdp.pack(''checked'', plan, 3, NULL, NULL, 1, label, age, sex, scan) FROM given, rows');
SELECT pg_temp.fails('SELECT boltdp.pack(''again'', plan, 3, 6, 1, 1, label, age, sex, scan) FROM given, rows');
SELECT pg_temp.fails('SELECT boltdp.pack(''again'', plan, 3, 8, 1, 1, label, age, sex, scan) FROM given, rows');
SELECT pg_temp.fails('SELECT boltdp.pack(''again'', plan, 3, 0, 1, 1, label, age, sex, scan) FROM given, rows');
SELECT pg_temp.fails('SELECT boltdp.pack(''again'', plan, 0, 7, 1, 1, label, age, sex, scan) FROM given, rows');
SELECT pg_temp.fails('SELECT boltdp.pack(NULL, plan, 3, 7, 1, 1, label, age, sex, scan) FROM given, rows');
SELECT pg_temp.fails('SELECT boltdp.pack(''again'', plan, NULL, 7, 1, 1, label, age, sex, scan) FROM given, rows');
SELECT pg_temp.fails('SELECT boltdp.pack(''again'', plan, 3, 7, 1, NULL, label, age, sex, scan) FROM given, rows');
SELECT pg_temp.fails('SELECT boltdp.repack(''again'', 3, 7, 1, 1, 0, 7, start + 1, block) FROM packed');
SELECT pg_temp.fails('SELECT boltdp.repack(''again'', 3, 7, 1, 1, 0, 8, start, block) FROM packed');
SELECT pg_temp.fails('SELECT boltdp.repack(''again'', 3, NULL, 1, 1, 0, 7, start, block) FROM packed');
SELECT pg_temp.fails('SELECT boltdp.repack(''again'', 3, 7, 1, 1, 0, 7, start, ''{1,2}'') FROM packed');
SELECT pg_temp.fails('SELECT boltdp.repack(''again'', 3, 7, 1, 1, 0, 7, start, NULL) FROM packed');
DROP TABLE kept;
DROP DOMAIN years;
DROP TYPE mood;
