/* predict.c: scoring with a released model of boltdp.models. */
#include "postgres.h"

#include <math.h>

#include "arrays.h"
#include "columns_to_cells.h"
#include "executor/spi.h"
#include "losses.h"
#include "row_projection.h"
#include "sgd.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

/*
 * What of a snapshot shows that rows may have changed: a transaction that ends is before xmax then, or no longer among
 * those that run, and one's own commands are counted.
 */
typedef struct Moment			/* without padding: moments are compared byte by byte */
{
	TransactionId xmin;
	TransactionId xmax;
	uint32		running;
	int32		running_inside;
	CommandId	command;
} Moment;

/* A model, read once a query. */
typedef struct Model
{
	MemoryContext context;
	Moment		read;			/* when: in PL/pgSQL the same call may be made again, when the model is another one */
	char	   *name;
	int			name_length;
	uint64		loss;			/* enum loss */
	float8		parameter;		/* that shapes it */
	int			n_classes;
	Datum	   *classes;		/* texts */
	float8	   *target;			/* of a number: its bounds, what a score of 0 predicts, and the unit of scores; or NULL */
	int			vectors;		/* 1 for a number or two classes, else one a class */
	int			dims;			/* features the weights have */
	float8	   *weights;
	float8		cut;			/* the second of two classes is predicted where the margin is above it */
	float8	   *slope_norms;	/* of gradients with a slope of 1, in clip norms, of each class or all; or NULL */
	int			n_slope_norms;
	int			inputs;			/* numbers the caller gives, each with its bounds, middle and factor */
	float8	   *low;
	float8	   *high;
	float8	   *middle;			/* of the bounds */
	float8	   *half;			/* of their width */
	float8	   *center;			/* what is taken from the cell, from -1 to 1, that they make of a number, */
	float8	   *factor;			/* and what the rest is multiplied by */
	int32	   *steps;			/* how many steps each number has; or NULL if none has any */
	float8	   *places;			/* of all steps, end to end: the smallest numbers that reach them */
	float8	   *absent;			/* what the feature is below its place */
	float8	   *present;		/* and from there on */
	int			n_steps;		/* of all numbers */
	struct feature_map *map;	/* if columns are in pairs: from cells to all features; or NULL */
	float4	   *cells;			/* scratch: a packed row that the map reads, its label first */
	bool		has_intercept;
	float8		intercept;
	float8	   *projection;		/* encoded features x dims; or NULL */
	int			encoded;		/* features before the projection, the intercept included */
	float8	   *numbers;		/* scratch: those the caller gives */
	float8	   *features;		/* scratch: what they are encoded to, without steps */
	float8	   *row;			/* scratch: all features, before the projection */
	float4	   *packed;			/* scratch: the same as a packed row, if there is a projection */
	float4	   *projected;		/* and after it */
	float8	   *x;				/* scratch: the features that the weights have */
	float8	   *scores;			/* scratch: one a vector */
} Model;

/* What is read of a model's row, in this order: those before the intercept are never NULL. */
static const struct
{
	const char *name;
	Oid			type;
}			CELLS[] = {
	{"loss", TEXTOID}, {"classes", TEXTARRAYOID}, {"weights", FLOAT8ARRAYOID}, {"low", FLOAT8ARRAYOID},
	{"high", FLOAT8ARRAYOID}, {"middle", FLOAT8ARRAYOID}, {"factor", FLOAT8ARRAYOID}, {"cut", FLOAT8OID},
	{"parameter", FLOAT8OID}, {"intercept", FLOAT8OID}, {"projection", FLOAT8ARRAYOID}, {"steps", INT4ARRAYOID},
	{"places", FLOAT8ARRAYOID}, {"absent", FLOAT8ARRAYOID}, {"present", FLOAT8ARRAYOID}, {"numbers", FLOAT8ARRAYOID},
	{"slope_norms", FLOAT8ARRAYOID}, {"feature_map", BYTEAOID}
};

#define CUT 7
#define PARAMETER 8
#define INTERCEPT 9
#define PROJECTION 10
#define STEPS 11
#define NUMBERS 15
#define SLOPE_NORMS 16
#define FEATURE_MAP 17

/* Places of a target that is a number. */
enum {TARGET_LOW, TARGET_HIGH, TARGET_CENTER, TARGET_SCALE, TARGET_PARTS};

/* Refuse a model whose parts don't fit together: its owner may have edited the table. */
static void
CheckFits(bool fits)
{
	if (!fits)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("the stored model is damaged: its parts do not fit")));
}

/* The numbers of a complete array, copied into the current memory context. */
static void *
CopyNumbers(Datum datum, int ndim, int *dims)
{
	ArrayType  *array = DatumGetArrayTypePCopy(datum);

	if (ARR_NDIM(array) != ndim || array_contains_nulls(array))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("the stored model is damaged: an array is not complete")));
	memcpy(dims, ARR_DIMS(array), ndim * sizeof(int));
	return ARR_DATA_PTR(array);
}

/* The same of an array that must have this many numbers. */
static void *
CopyVector(Datum datum, int count)
{
	int			found;
	void	   *numbers = CopyNumbers(datum, 1, &found);

	CheckFits(found == count);
	return numbers;
}

/* The steps of a model whose numbers have curves: they must fit its numbers and one another. */
static void
ReadSteps(Model *model, const Datum *cells)
{
	int64		total = 0;

	model->steps = CopyVector(cells[0], model->inputs);
	model->places = CopyNumbers(cells[1], 1, &model->n_steps);
	model->absent = CopyVector(cells[2], model->n_steps);
	model->present = CopyVector(cells[3], model->n_steps);
	for (int i = 0; i < model->inputs; i++)
	{
		CheckFits(model->steps[i] >= 0);
		total += model->steps[i];
	}
	CheckFits(total == model->n_steps);
}

/* The map of a model with pairs of columns: it must be sound, and fit the numbers and the weights. */
static void
ReadMap(Model *model, Datum cell)
{
	bytea	   *stored = DatumGetByteaPP(cell);
	Size		bytes = VARSIZE_ANY_EXHDR(stored);
	struct feature_map *map = palloc(bytes);	/* aligned, as the bytes of a row are not */
	uint64		inputs = 0;

	memcpy(map, VARDATA_ANY(stored), bytes);
	CheckFits(feature_map_check(map, bytes) == SGD_OK && feature_map_is_finite(map));
	for (uint64 s = 0; s < map->segments; s++)
		if (map->parts[s].kind == SEGMENT_NUMBERS || map->parts[s].kind == SEGMENT_CATEGORY)
			inputs += map->parts[s].count;
	CheckFits(inputs == (uint64) model->inputs && map->dims == (uint64) model->dims);
	model->map = map;
	model->cells = palloc0((1 + map->cells) * sizeof(float4));
}

/* From how a number of the data is centred and scaled to how the cell is that training made of it. */
static void
SetCells(Model *model)
{
	Size		bytes = (model->inputs + 1) * sizeof(float8);
	float8	   *between = model->middle;

	model->middle = palloc(bytes);
	model->half = palloc(bytes);
	model->center = palloc(bytes);
	for (int i = 0; i < model->inputs; i++)
	{
		CheckFits(model->low[i] < model->high[i]);
		model->middle[i] = (model->low[i] + model->high[i]) / 2.0;
		model->half[i] = (model->high[i] - model->low[i]) / 2.0;
		model->center[i] = (between[i] - model->middle[i]) / model->half[i];
		model->factor[i] *= model->half[i];
	}
}

/* Make a model of the row that SPI found, in the current memory context. */
static Model *
BuildModel(const char *name, HeapTuple tuple, TupleDesc columns)
{
	Model	   *model = palloc0(sizeof(Model));
	Datum		cells[lengthof(CELLS)];
	bool		nulls[lengthof(CELLS)];
	int			dims[2];

	for (int i = 0; i < lengthof(CELLS); i++)
	{
		int			column = SPI_fnumber(columns, CELLS[i].name);

		CheckFits(column > 0 && SPI_gettypeid(columns, column) == CELLS[i].type);
		cells[i] = SPI_getbinval(tuple, columns, column, &nulls[i]);
		CheckFits(!nulls[i] || i >= INTERCEPT);
	}
	model->name = pstrdup(name);
	model->name_length = strlen(name);
	model->loss = find_loss(TextDatumGetCString(cells[0]));
	CheckFits(model->loss < LOSS_COUNT);
	model->parameter = DatumGetFloat8(cells[PARAMETER]);
	CheckFits(model->parameter > 0 && isfinite(model->parameter));
	deconstruct_array(DatumGetArrayTypePCopy(cells[1]), TEXTOID, -1, false, TYPALIGN_INT, &model->classes, NULL,
					  &model->n_classes);
	model->weights = CopyNumbers(cells[2], 2, dims);
	model->vectors = dims[0];
	model->dims = dims[1];
	if (loss_facts(model->loss).has_label)
	{
		CheckFits(model->n_classes == 0 && model->vectors == 1 && !nulls[NUMBERS]);
		model->target = CopyVector(cells[NUMBERS], TARGET_PARTS);
		for (int i = 0; i < TARGET_PARTS; i++)
			CheckFits(isfinite(model->target[i]));
	}
	else
		CheckFits(model->n_classes >= 2 && model->vectors == (model->n_classes == 2 ? 1 : model->n_classes));
	model->cut = DatumGetFloat8(cells[CUT]);
	CheckFits(isfinite(model->cut) && (model->vectors == 1 || model->cut == 0));
	if (!nulls[SLOPE_NORMS])
	{
		model->slope_norms = CopyNumbers(cells[SLOPE_NORMS], 1, &model->n_slope_norms);
		CheckFits(loss_facts(model->loss).has_odds && (model->n_slope_norms == 1 || model->n_slope_norms == model->n_classes));
		for (int i = 0; i < model->n_slope_norms; i++)
			CheckFits(model->slope_norms[i] > 0 && isfinite(model->slope_norms[i]));
	}
	model->low = CopyNumbers(cells[3], 1, &model->inputs);
	model->high = CopyVector(cells[4], model->inputs);
	model->middle = CopyVector(cells[5], model->inputs);
	model->factor = CopyVector(cells[6], model->inputs);
	SetCells(model);
	for (int i = STEPS + 1; i < NUMBERS; i++)
		CheckFits(nulls[i] == nulls[STEPS]);
	if (!nulls[STEPS])
		ReadSteps(model, cells + STEPS);
	model->has_intercept = !nulls[INTERCEPT];
	model->intercept = nulls[INTERCEPT] ? 0 : DatumGetFloat8(cells[INTERCEPT]);
	model->encoded = model->inputs + model->n_steps + model->has_intercept;
	model->numbers = palloc((model->inputs + 1) * sizeof(float8));
	model->features = palloc((model->inputs + 1) * sizeof(float8));
	model->row = palloc0((model->encoded + 1) * sizeof(float8));
	model->x = model->row;
	if (!nulls[FEATURE_MAP])
	{
		CheckFits(nulls[PROJECTION]);
		ReadMap(model, cells[FEATURE_MAP]);
		model->features = palloc((1 + model->dims) * sizeof(float8));
		model->x = model->features + 1;
	}
	else if (!nulls[PROJECTION])
	{
		model->projection = CopyNumbers(cells[PROJECTION], 2, dims);
		CheckFits(dims[0] == model->encoded && dims[1] == model->dims);
		model->packed = palloc0((1 + model->encoded) * sizeof(float4));
		model->projected = palloc0((1 + model->dims) * sizeof(float4));
		model->x = palloc(model->dims * sizeof(float8));
	}
	else
		CheckFits(model->encoded == model->dims);
	model->scores = palloc(model->vectors * sizeof(float8));
	return model;
}

static Moment
Now(void)
{
	Snapshot	snapshot = GetActiveSnapshot();

	return (Moment) {snapshot->xmin, snapshot->xmax, snapshot->xcnt, snapshot->subxcnt, snapshot->curcid};
}

/* The model of this name, kept for the rest of the query. */
static Model *
GetModel(FunctionCallInfo fcinfo)
{
	text	   *given = PG_GETARG_TEXT_PP(0);
	Model	   *model = fcinfo->flinfo->fn_extra;
	Moment		now = Now();
	Oid			types[1] = {TEXTOID};
	Datum		values[1] = {PG_GETARG_DATUM(0)};
	char	   *name;
	MemoryContext context;
	MemoryContext old;

	if (model != NULL && model->name_length == VARSIZE_ANY_EXHDR(given) &&
		memcmp(model->name, VARDATA_ANY(given), model->name_length) == 0 && memcmp(&model->read, &now, sizeof(now)) == 0)
		return model;
	if (model != NULL)
	{
		fcinfo->flinfo->fn_extra = NULL;
		MemoryContextDelete(model->context);
	}
	name = text_to_cstring(given);
	SPI_connect();
	if (SPI_execute_with_args("SELECT * FROM boltdp.models WHERE name OPERATOR(pg_catalog.=) $1",
							  1, types, values, NULL, true, 1) != SPI_OK_SELECT || SPI_processed != 1)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("boltdp.models must have a model named \"%s\"", name)));
	context = AllocSetContextCreate(fcinfo->flinfo->fn_mcxt, "boltdp model", ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(context);
	model = BuildModel(name, SPI_tuptable->vals[0], SPI_tuptable->tupdesc);
	model->context = context;
	model->read = Now();
	MemoryContextSwitchTo(old);
	SPI_finish();
	fcinfo->flinfo->fn_extra = model;
	return model;
}

/* Encode numbers as training did: a cell of each (columns_to_cells.h), centred and scaled; a missing one is 0. */
static void
EncodeNumbers(const Model *model, const float8 *restrict numbers, float8 *restrict features)
{
	for (int i = 0; i < model->inputs; i++)
	{
		float4		cell = encoding_number_cell(numbers[i], model->low[i], model->high[i], model->middle[i], model->half[i]);
		float8		feature = (cell - model->center[i]) * model->factor[i];

		features[i] = feature == feature ? feature : 0.0;
	}
}

/* Put the steps of each number behind it: `present` from the place on, `absent` below, 0 where it is missing. */
static void
EncodeSteps(const Model *model, const float8 *numbers, const float8 *features, float8 *out)
{
	int			at = 0;

	for (int i = 0; i < model->inputs; i++)
	{
		*out++ = features[i];
		for (int end = at + model->steps[i]; at < end; at++)
			*out++ = isnan(numbers[i]) ? 0 : numbers[i] >= model->places[at] ? model->present[at] : model->absent[at];
	}
}

/* Which category is above 0 among these numbers: their count if none is, and -1 if one of them is missing. */
static float4
FindCategory(const float8 *numbers, int count)
{
	int			found = count;

	for (int i = count - 1; i >= 0; i--)
	{
		if (isnan(numbers[i]))
			return -1;
		found = numbers[i] > 0 ? i : found;
	}
	return found;
}

/* Read the features of a model with pairs of columns as training does: from the cells of a packed row. */
static void
ReadFeatures(Model *model)
{
	const struct feature_map *map = model->map;
	float4	   *cell = model->cells + 1;
	int			i = 0;

	for (uint64 s = 0; s < map->segments; s++)
	{
		int			count = map->parts[s].count;

		if (map->parts[s].kind == SEGMENT_NUMBERS)
			for (int end = i + count; i < end; i++)
				*cell++ = encoding_number_cell(model->numbers[i], model->low[i], model->high[i], model->middle[i], model->half[i]);
		else if (map->parts[s].kind == SEGMENT_CATEGORY)
		{
			*cell++ = FindCategory(model->numbers + i, count);
			i += count;
		}
	}
	feature_map_features(map, model->cells, 1, model->features);
}

/* Encode numbers and steps as training did, and project them if it has to be. */
static void
MakeFeatures(Model *model)
{
	if (model->steps == NULL)
		EncodeNumbers(model, model->numbers, model->row);
	else
	{
		EncodeNumbers(model, model->numbers, model->features);
		EncodeSteps(model, model->numbers, model->features, model->row);
	}
	if (model->has_intercept)
		model->row[model->encoded - 1] = model->intercept;
	if (model->projection != NULL)
	{
		for (int i = 0; i < model->encoded; i++)
			model->packed[1 + i] = (float4) model->row[i];
		project_features(model->packed, 1, model->encoded, model->projection, model->dims, model->projected);
		for (int i = 0; i < model->dims; i++)
			model->x[i] = model->projected[1 + i];
	}
}

/* <a, x>: four sums, so that none waits for the last addition. */
static float8
Product(const float8 *a, const float8 *x, int n)
{
	float8		sums[4] = {0};
	int			i = 0;

	for (; i + 4 <= n; i += 4)
		for (int k = 0; k < 4; k++)
			sums[k] += a[i + k] * x[i + k];
	for (; i < n; i++)
		sums[i % 4] += a[i] * x[i];
	return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/* Logistic.correct_clipping of a score, with how many clip norms the gradients of both classes are long. */
static float8
CorrectScore(float8 score, float8 first, float8 second)
{
	float8		tilt = tanh(0.5 * score);
	float8		down = 0.5 * Min(first, 2);
	float8		up = 0.5 * Min(second, 2);

	return score - log1p(Max(down - 1 + down * tilt, 0)) + log1p(Max(up - 1 - up * tilt, 0));
}

/* Multinomial.correct_clipping: the scores of all classes at once, of a row with this norm. */
static void
CorrectScores(const Model *model, float8 norm)
{
	float8	   *scores = model->scores;
	float8	   *odds = palloc(model->vectors * sizeof(float8));
	float8		largest = scores[0];
	float8		sum = 0;
	float8		square = 1;

	for (int k = 1; k < model->vectors; k++)
		largest = Max(largest, scores[k]);
	for (int k = 0; k < model->vectors; k++)
		sum += odds[k] = loss_odds(model->loss, model->parameter, scores[k], largest);
	for (int k = 0; k < model->vectors; k++)
	{
		odds[k] /= sum;
		square += odds[k] * odds[k];
	}
	for (int k = 0; k < model->vectors; k++)
	{
		float8		slope = sqrt(Max(square - 2 * odds[k], 0));

		scores[k] += log(Max(slope * norm * model->slope_norms[k % model->n_slope_norms], 1));
	}
	pfree(odds);
}

/* Encode the caller's numbers as training did, and score them: <w, x> of each weight vector, corrected if it has to be. */
static void
Score(Model *model, Datum datum)
{
	NumberArray x = OpenArray(datum);
	float8		square;
	float8		scale;

	if (x.ndim != 1 || x.count != model->inputs)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("x must have one dimension and %d numbers, got %d and %d", model->inputs, x.ndim, x.count)));
	ReadNumbers(&x, model->numbers);
	if (model->map != NULL)
		ReadFeatures(model);
	else
		MakeFeatures(model);
	square = Product(model->x, model->x, model->dims);
	scale = square > 1 ? 1 / sqrt(square) : 1;
	for (int k = 0; k < model->vectors; k++)
		model->scores[k] = Product(model->weights + (Size) k * model->dims, model->x, model->dims) * scale;
	if (model->slope_norms != NULL && loss_facts(model->loss).is_joint)
		CorrectScores(model, Min(sqrt(square), 1));
	else if (model->slope_norms != NULL)
		for (int k = 0; k < model->vectors; k++)
			model->scores[k] = CorrectScore(model->scores[k], Min(sqrt(square), 1) * model->slope_norms[0],
											Min(sqrt(square), 1) * model->slope_norms[model->n_slope_norms - 1]);
}

/* The number that the scores predict, between its bounds. */
static float8
PredictNumber(const Model *model)
{
	const float8 *target = model->target;
	float8		number = target[TARGET_CENTER] + target[TARGET_SCALE] * loss_label(model->loss, model->scores[0]);

	return Max(target[TARGET_LOW], Min(target[TARGET_HIGH], number));
}

PG_FUNCTION_INFO_V1(boltdp_predict_number);
Datum
boltdp_predict_number(PG_FUNCTION_ARGS)
{
	Model	   *model = GetModel(fcinfo);

	if (model->target == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("model \"%s\" predicts a class: call boltdp.predict", model->name)));
	Score(model, PG_GETARG_DATUM(1));
	PG_RETURN_FLOAT8(PredictNumber(model));
}

/* The class that wins, or the number, as text. */
PG_FUNCTION_INFO_V1(boltdp_predict);
Datum
boltdp_predict(PG_FUNCTION_ARGS)
{
	Model	   *model = GetModel(fcinfo);
	int			best = 0;

	Score(model, PG_GETARG_DATUM(1));
	if (model->target != NULL)
		PG_RETURN_TEXT_P(cstring_to_text(
										 DatumGetCString(DirectFunctionCall1(float8out, Float8GetDatum(PredictNumber(model))))));
	if (model->vectors == 1)
		best = model->scores[0] > model->cut;
	else
		for (int k = 1; k < model->vectors; k++)
			if (model->scores[k] > model->scores[best])
				best = k;
	PG_RETURN_TEXT_P(DatumGetTextPCopy(model->classes[best]));
}

/* The probability of each class. */
PG_FUNCTION_INFO_V1(boltdp_predict_proba);
Datum
boltdp_predict_proba(PG_FUNCTION_ARGS)
{
	Model	   *model = GetModel(fcinfo);
	Datum	   *result = palloc(model->n_classes * sizeof(Datum));
	float8	   *scores = model->scores;
	float8		largest;
	float8		sum = 0;

	if (!loss_facts(model->loss).has_odds)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("model \"%s\" gives no probabilities: its loss is %s", model->name, loss_facts(model->loss).name)));
	Score(model, PG_GETARG_DATUM(1));
	largest = scores[0];
	for (int k = 1; k < model->vectors; k++)
		largest = Max(largest, scores[k]);
	for (int k = 0; k < model->vectors; k++)
	{
		scores[k] = loss_odds(model->loss, model->parameter, scores[k], largest);
		sum += scores[k];
	}
	if (model->vectors == 1)
	{
		result[0] = Float8GetDatum(1 - scores[0]);
		result[1] = Float8GetDatum(scores[0]);
	}
	else
		for (int k = 0; k < model->vectors; k++)
			result[k] = Float8GetDatum(sum > 0 ? scores[k] / sum : 1.0 / model->vectors);
	PG_RETURN_ARRAYTYPE_P(construct_array(result, model->n_classes, FLOAT8OID, sizeof(float8), FLOAT8PASSBYVAL,
										  TYPALIGN_DOUBLE));
}
