-- Scoring with stored models.
CREATE FUNCTION pg_temp.fails(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	RETURN 'did not fail';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ': ' || SQLERRM;
END $$;
BEGIN;
INSERT INTO boltdp.models (name, private, loss, classes, weights, low, high, middle, factor, intercept, projection, schema, certificate)
	VALUES
	('two', true, 'logistic', '{no,yes}', '{{2,-1}}', '{-1,-1}', '{1,1}', '{0,0}', '{0.5,0.5}', NULL, NULL, '{}', '{}'),
	('three', true, 'multinomial', '{a,b,c}', '{{1,0,0},{0,1,0},{0,0,0.2}}', '{-1,-1}', '{1,1}', '{0,0}', '{0.5,0.5}', 0.5, NULL, '{}', '{}'),
	('huber', true, 'huber', '{no,yes}', '{{2,-1}}', '{-1,-1}', '{1,1}', '{0,0}', '{0.5,0.5}', NULL, NULL, '{}', '{}'),
	('projected', true, 'logistic', '{no,yes}', '{{1}}', '{-1,-1}', '{1,1}', '{0,0}', '{0.5,0.5}', NULL, '{{1},{0}}', '{}', '{}'),
	('damaged', true, 'logistic', '{no,yes}', '{{2,-1,3}}', '{-1,-1}', '{1,1}', '{0,0}', '{0.5,0.5}', NULL, NULL, '{}', '{}'),
	('one class', true, 'logistic', '{no}', '{{2,-1}}', '{-1,-1}', '{1,1}', '{0,0}', '{0.5,0.5}', NULL, NULL, '{}', '{}'),
	('nulls', true, 'logistic', '{no,yes}', '{{2,NULL}}', '{-1,-1}', '{1,1}', '{0,0}', '{0.5,0.5}', NULL, NULL, '{}', '{}'),
	('bounds', true, 'logistic', '{no,yes}', '{{2,-1}}', '{-1,-1}', '{1}', '{0,0}', '{0.5,0.5}', NULL, NULL, '{}', '{}'),
	('cut', true, 'logistic', '{no,yes}', '{{2,-1}}', '{-1,-1}', '{1,1}', '{0,0}', '{0.5,0.5}', NULL, NULL, '{}', '{}'),
	('cut of three', true, 'multinomial', '{a,b,c}', '{{1,0,0},{0,1,0},{0,0,0.2}}', '{-1,-1}', '{1,1}', '{0,0}', '{0.5,0.5}', 0.5, NULL, '{}', '{}'),
	('loss', true, 'square', '{no,yes}', '{{2,-1}}', '{-1,-1}', '{1,1}', '{0,0}', '{0.5,0.5}', NULL, NULL, '{}', '{}');
INSERT INTO boltdp.models (name, private, loss, classes, weights, low, high, middle, factor, intercept, schema, certificate, steps, places, absent, present)
	SELECT name, true, 'logistic', '{no,yes}', '{{0,1,-1,0,0.25}}', '{0,0}', '{10,10}', '{5,5}', '{0.1,0.1}', 0.5, '{}', '{}', steps::int[], places::float8[],
		absent::float8[], '{0.5,0.5}'
	FROM (VALUES ('curved', '{2,0}', '{3,7}', '{0,0}'), ('steps of none', '{2}', '{3,7}', '{0,0}'), ('too many steps', '{2,1}', '{3,7}', '{0,0}'),
		('fewer than none', '{3,-1}', '{3,7}', '{0,0}'), ('absent', '{2,0}', '{3,7}', '{0}'), ('no places', '{2,0}', NULL, '{0,0}')) AS m (name, steps, places, absent);
SET extra_float_digits = -3;
SELECT x, boltdp.predict('curved', x), boltdp.predict_proba('curved', x)
	FROM (VALUES ('{2.9,1}'::real[]), ('{3,NULL}'), ('{7,1}'), ('{NULL,1}'), ('{Infinity,1}')) AS s (x);
SELECT name, pg_temp.fails(format('SELECT boltdp.predict(%L, ''{1,0}''::real[])', name))
	FROM unnest(ARRAY['steps of none', 'too many steps', 'fewer than none', 'absent', 'no places']) AS name;
SELECT name, x, boltdp.predict(name, x), boltdp.predict_proba(name, x)
	FROM unnest(ARRAY['two', 'three', 'projected']) AS name, (VALUES ('{1,0}'::real[]), ('{0,1}'), ('{-9,NULL}')) AS s (x);
SELECT boltdp.predict('two', '{1,0}'::float8[]), boltdp.predict('huber', '{1,0}'::float8[]);
UPDATE boltdp.models SET cut = c FROM (VALUES ('two', 0.9), ('huber', 1.5), ('three', 0), ('cut', 'NaN'), ('cut of three', 0.1)) AS s (n, c) WHERE n = name;
SELECT boltdp.predict('two', '{1,0}'::float8[]), boltdp.predict('two', '{1,0.9}'::float8[]), boltdp.predict('huber', '{1,0}'::float8[]);
SELECT boltdp.predict(NULL, '{1,0}'::real[]) IS NULL AS no_model, boltdp.predict('two', NULL::real[]) IS NULL AS no_x;
SELECT pg_temp.fails('SELECT boltdp.predict_proba(''huber'', ''{1,0}''::real[])');
SELECT pg_temp.fails('SELECT boltdp.predict(''two'', ''{1}''::real[])');
SELECT pg_temp.fails('SELECT boltdp.predict(''two'', ''{{1,0}}''::real[])');
SELECT pg_temp.fails('SELECT boltdp.predict(''nobody''''s'', ''{1,0}''::real[])');
SELECT name, pg_temp.fails(format('SELECT boltdp.predict(%L, ''{1,0}''::real[])', name))
	FROM unnest(ARRAY['damaged', 'one class', 'nulls', 'bounds', 'loss', 'cut', 'cut of three']) AS name;
-- Coefficients of one model, and of all that may be read.
UPDATE boltdp.models SET coefficients = '[{"term": "age", "coef": 0.5, "std_err": 0.25, "z": 2, "p_value": 0.0455, "odds_ratio": 1.6487, "low": 0.01, "high": 0.99,
	"noise_share": 0.1}, {"term": "intercept", "coef": -1, "std_err": 0.5, "z": -2, "p_value": 0.0455, "odds_ratio": null, "low": -1.98, "high": -0.02}]'
	WHERE name = 'two';
SELECT * FROM boltdp.coefficients('two');
SELECT * FROM boltdp.coefficients ORDER BY model, term;
SELECT (SELECT count(*) FROM boltdp.coefficients('three')) AS without, (SELECT count(*) FROM boltdp.coefficients(NULL)) AS no_name;
ROLLBACK;
