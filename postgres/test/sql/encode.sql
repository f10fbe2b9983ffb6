-- From columns to packed rows. That the bits are those of every other engine is tested from Python.
CREATE FUNCTION pg_temp.fails(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	RETURN 'did not fail';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ': ' || SQLERRM;
END $$;

-- Numbers are clipped, centred and scaled; what is missing is in the middle.
SELECT boltdp.pack_numbers('{5,-1,11,NaN,Infinity,NULL}'::float8[], array_fill(0::float8, '{6}'),
	array_fill(10::float8, '{6}'), array_fill(5::float8, '{6}'), array_fill(0.2::float8, '{6}'));
SELECT boltdp.pack_numbers('{5,-1}'::real[], '{0,0}', '{10,10}', '{5,2}', '{0.2,0.2}');
SELECT boltdp.pack_numbers(NULL::real[], '{0,0}', '{10,10}', '{5,2}', '{0.2,0.2}');
SELECT boltdp.pack_numbers('{1}'::real[], '{0,0}', '{10,10}', '{5,2}', '{0.2,0.2}');
SELECT boltdp.pack_numbers('{{1,2}}'::real[], '{0,0}', '{10,10}', '{5,2}', '{0.2,0.2}');
SELECT boltdp.pack_numbers('{1e-300}'::float8[], '{-1}', '{1}', '{0}', '{1e-30}');
SELECT pg_temp.fails('SELECT boltdp.pack_numbers(''{1}''::real[], NULL, ''{1}'', ''{0}'', ''{1}'')');
SELECT pg_temp.fails('SELECT boltdp.pack_numbers(''{1}''::real[], ''{0}'', ''{1,2}'', ''{0}'', ''{1}'')');
SELECT pg_temp.fails('SELECT boltdp.pack_numbers(''{1}''::real[], ''{0}'', ''{NULL}'', ''{0}'', ''{1}'')');

-- Numbers that are followed by their steps, which are 0 where the number is missing.
SELECT x, boltdp.pack_curves(x::float8[], '{0,0,0}', '{10,10,10}', '{5,5,2}', '{0.2,0.2,0.2}', '{2,0,1}', '{3,7.5,1}',
	'{-1,-2,-3}', '{1,2,3}')
	FROM unnest(ARRAY['{3,5,1}', '{7.4,5,0.9}', '{7.5,5,-Infinity}', '{NaN,5,Infinity}', '{99,NULL,NULL}', '{1,2}', '{{1,2,3}}', NULL]) AS x;
SELECT pg_temp.fails('SELECT boltdp.pack_curves(''{1}'', ''{0}'', ''{1}'', ''{0}'', ''{1}'', ''{-1}'', ''{1}'', ''{0}'', ''{1}'')');
SELECT pg_temp.fails('SELECT boltdp.pack_curves(''{1}'', ''{0}'', ''{1}'', ''{0}'', ''{1}'', ''{2}'', ''{1}'', ''{0}'', ''{1}'')');
SELECT pg_temp.fails('SELECT boltdp.pack_curves(''{1}'', ''{0}'', ''{1}'', ''{0}'', ''{1}'', ''{1,0}'', ''{1}'', ''{0}'', ''{1}'')');
SELECT pg_temp.fails('SELECT boltdp.pack_curves(''{1}'', ''{0}'', ''{1}'', ''{0}'', ''{1}'', ''{1}'', ''{1}'', ''{0,0}'', ''{1}'')');
SELECT pg_temp.fails('SELECT boltdp.pack_curves(''{1}'', ''{0}'', ''{1}'', ''{0}'', ''{1}'', ''{1}'', ''{NULL}'', ''{0}'', ''{1}'')');

-- Categories.
SELECT boltdp.pack_categories('{1,NULL,5}', '{2,1,2}', '{-1,-2,-3,-4,-5}', '{1,2,3,4,5}');
SELECT pg_temp.fails('SELECT boltdp.pack_categories(''{1}'', ''{0}'', ''{}'', ''{}'')');
SELECT pg_temp.fails('SELECT boltdp.pack_categories(''{1}'', ''{2,2}'', ''{0,0}'', ''{1,1}'')');
SELECT pg_temp.fails('SELECT boltdp.pack_categories(''{1,1}'', ''{2147483647,2147483647}'', ''{0}'', ''{1}'')');
SELECT pg_temp.fails('SELECT boltdp.pack_categories(''{1}'', ''{2}'', ''{0}'', ''{1,1}'')');

-- Projection, after the row is shortened to 1.
SELECT boltdp.project('{1,3,4}', '{{1},{0}}');
SELECT boltdp.project('{1,NaN,4}', '{{1},{0}}');
SELECT pg_temp.fails('SELECT boltdp.project(''{1,3,4}'', ''{{1},{0},{2}}'')');
SELECT pg_temp.fails('SELECT boltdp.project(''{{1,3,4}}'', ''{{1},{0}}'')');
SELECT pg_temp.fails('SELECT boltdp.project(''{}'', ''{}'')');
SELECT pg_temp.fails('SELECT boltdp.project(''{1,NULL,4}'', ''{{1},{0}}'')');

-- The permutation.
SELECT array_agg(boltdp.permuted_position(i, 7, -1) ORDER BY i) FROM generate_series(0, 6) AS i;
SELECT pg_temp.fails('SELECT boltdp.permuted_position(7, 7, 1)');
SELECT pg_temp.fails('SELECT boltdp.permuted_position(-1, 7, 1)');
SELECT pg_temp.fails('SELECT boltdp.permuted_position(0, 0, 1)');

-- Blocks: rows in any order, each in its slot.
SELECT boltdp.pack(slot, packed) FROM (VALUES (1, '{3,4}'::real[]), (0, '{1,2}')) AS s (slot, packed);
SELECT array_dims(boltdp.pack(i, ARRAY[i, i])) FROM generate_series(0, 4999) AS i;
SELECT boltdp.pack(0, NULL) IS NULL AS nothing WHERE false;
SELECT pg_temp.fails('SELECT boltdp.pack(slot, ''{1}'') FROM (VALUES (0), (2)) AS s (slot)');
SELECT pg_temp.fails('SELECT boltdp.pack(slot, ''{1}'') FROM (VALUES (0), (0)) AS s (slot)');
SELECT pg_temp.fails('SELECT boltdp.pack(slot, ''{1}'') FROM (VALUES (-1)) AS s (slot)');
SELECT pg_temp.fails('SELECT boltdp.pack(2147483647, ''{1}'')');
SELECT pg_temp.fails('SELECT boltdp.pack(slot, packed) FROM (VALUES (0, ''{1}''::real[]), (1, ''{1,2}'')) AS s (slot, packed)');
SELECT pg_temp.fails('SELECT boltdp.pack(0, NULL)');
SELECT pg_temp.fails('SELECT boltdp.pack(NULL, ''{1}'')');
SELECT pg_temp.fails('SELECT boltdp.pack(0, ''{1,NULL}'')');
SELECT pg_temp.fails('SELECT boltdp.pack(0, ''{}'')');

-- Sums of features and squares, in units of 2^-20: clipped to [-1, 1], shortened to the radius; NaN says nothing.
SELECT boltdp.moments(row, 1) FROM (VALUES ('{1,0.5,0}'::real[]), ('{0,3,0}'), ('{NaN,1,1}'), ('{0,NaN,1}')) AS r (row);
SELECT boltdp.moments(row, 1) IS NULL AS none FROM (VALUES ('{1,0.5,0}'::real[])) AS r (row) WHERE false;
SELECT pg_temp.fails('SELECT boltdp.moments(''{1,0.5}'', 0)');
SELECT pg_temp.fails('SELECT boltdp.moments(NULL, 1)');
SELECT pg_temp.fails('SELECT boltdp.moments(''{1,NULL}'', 1)');
SELECT pg_temp.fails('SELECT boltdp.moments(''{{1,2}}'', 1)');
SELECT pg_temp.fails('SELECT boltdp.moments(row, 1) FROM (VALUES (''{1,2}''::real[]), (''{1,2,3}'')) AS r (row)');
