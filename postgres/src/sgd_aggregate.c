/*
 * sgd_aggregate.c: a pass of SGD as an aggregate around the kernel.
 *
 * What the aggregates refuse: NULL or corrupt models, blocks of the wrong width, more rows than the passes have left,
 * to be merged (no combine function), to be a window function. What they don't do: allocate for a row, keep anything
 * outside the aggregate's memory, put a number of a row or a model into a message.
 */
#include "postgres.h"

#include "arrays.h"
#include "sgd.h"
#include "aggregate_helpers.h"
#include "sgd_aggregate.h"
#include "utils/float.h"

PG_MODULE_MAGIC;

/* Rows that come one a tuple are gathered to this many bytes before the kernel is called. */
#define GATHER_BYTES 16384

/* As are blocks of fewer bytes. */
#define GATHERED_BYTES 2048

Training *
OpenTraining(bytea *states, int element)
{
	const char *from = VARDATA_ANY(states);
	size_t		left = VARSIZE_ANY_EXHDR(states);
	Training   *training = palloc0(sizeof(Training));
	size_t		most = left / sizeof(struct sgd_state);

	if (most == 0)
		CheckCode(SGD_CORRUPT);
	training->models = palloc(most * sizeof(void *));
	training->bytes = palloc(most * sizeof(size_t));
	while (left > 0)
	{
		struct sgd_state header;
		void	   *model;

		if (left < sizeof(header))
			CheckCode(SGD_CORRUPT);
		memcpy(&header, from, sizeof(header));
		if (header.bytes < sizeof(header) || header.bytes > left)
			CheckCode(SGD_CORRUPT);
		model = AllocateAligned(header.bytes);
		memcpy(model, from, header.bytes);
		CheckCode(sgd_check(model, header.bytes));
		training->models[training->n_models] = model;
		training->bytes[training->n_models] = header.bytes;
		training->n_models++;
		training->cells = sgd_cells(model);
		from += header.bytes;
		left -= header.bytes;
	}
	training->element = element;
	training->row_bytes = (1 + training->cells) * (element == SGD_FLOAT32 ? sizeof(float4) : sizeof(float8));
	training->capacity = Max(1, GATHER_BYTES / training->row_bytes);
	training->rows = AllocateAligned(training->capacity * training->row_bytes);
	/* No rows: only checks that the models fit together. */
	FeedRows(training, training->rows, 0);
	return training;
}

/* The aggregate's training: made of the models when the first row of the group comes, whose array is an argument. */
static Training *
GetTraining(FunctionCallInfo fcinfo, int rows)
{
	MemoryContext old;
	Training   *training;
	bool		is_double;

	/* Only this function makes such a pointer, so where there is one, all has been checked. */
	if (!PG_ARGISNULL(0))
		return (Training *) PG_GETARG_POINTER(0);
	old = MemoryContextSwitchTo(AggregateContext(fcinfo, "sgd"));
	is_double = get_fn_expr_argtype(fcinfo->flinfo, rows) == FLOAT8ARRAYOID;
	training = OpenTraining(DatumGetByteaPP(RequiredArgument(fcinfo, 1, "the models")),
							is_double ? SGD_FLOAT64 : SGD_FLOAT32);
	MemoryContextSwitchTo(old);
	return training;
}

void
FeedRows(Training *training, const char *rows, size_t n_rows)
{
	CheckCode(sgd_run(training->models, training->bytes, training->n_models, rows, n_rows, NULL, n_rows,
					  training->element, SGD_FASTEST));
}

/* Feed the rows gathered so far. */
static void
Flush(Training *training)
{
	if (training->used == 0)
		return;
	FeedRows(training, training->rows, training->used);
	training->used = 0;
}

/* The place for the next row that is gathered; how rows are cut never changes a bit of the result. */
static char *
NextRow(Training *training)
{
	if (training->used == training->capacity)
		Flush(training);
	return training->rows + training->used++ * training->row_bytes;
}

/*
 * Fetch memory in advance. An address where nothing is does no harm. Always inline, as are those that call it: GCC takes a
 * function that does nothing else for one without an effect, and drops the call.
 */
static pg_attribute_always_inline void
Prefetch(const char *address, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += CACHE_LINE)
		__builtin_prefetch(address + i);
}

/* Of a page to come: enough to keep the kernel busy while the processor's own prefetching gets going. */
#define PREFETCH_BYTES 512

/* A page is filled from its end: the next tuples, with their headers, are just before this one. */
static pg_attribute_always_inline void
PrefetchRow(const Training *training, const char *row)
{
	Prefetch(row - 4 * training->row_bytes - CACHE_LINE, training->row_bytes + CACHE_LINE);
}

/* One tuple is a block of packed rows: the class index and the features of each. */
PG_FUNCTION_INFO_V1(boltdp_sgd_block);
Datum
boltdp_sgd_block(PG_FUNCTION_ARGS)
{
	Training   *training = GetTraining(fcinfo, 2);
	NumberArray block = OpenBlock(fcinfo, 2, training->cells);

	if (block.dims[0] * training->row_bytes >= GATHERED_BYTES &&
		(uintptr_t) block.data % (training->element == SGD_FLOAT32 ? sizeof(float4) : sizeof(float8)) == 0)
	{
		Flush(training);
		/* A page holds one block, and the next page most often follows it in memory. */
		Prefetch(block.data + BLCKSZ, PREFETCH_BYTES);
		FeedRows(training, block.data, block.dims[0]);
	}
	else
	{
		PrefetchRow(training, block.data);
		for (int i = 0; i < block.dims[0]; i++)
			memcpy(NextRow(training), block.data + i * training->row_bytes, training->row_bytes);
	}
	PG_RETURN_POINTER(training);
}

/* One tuple is one row. A missing label or feature makes it neutral: it counts, and has no gradient. */
PG_FUNCTION_INFO_V1(boltdp_sgd_row);
Datum
boltdp_sgd_row(PG_FUNCTION_ARGS)
{
	Training   *training = GetTraining(fcinfo, 3);
	NumberArray features = {0};
	bool		complete = !PG_ARGISNULL(2) && !PG_ARGISNULL(3);
	float8		label;
	char	   *row;

	if (!PG_ARGISNULL(3))
	{
		features = OpenArray(PG_GETARG_DATUM(3));
		if (features.ndim != 1 || features.dims[0] != training->cells)
			ereport(ERROR,
					(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
					 errmsg("features must have one dimension and " UINT64_FORMAT " numbers, got %d and %d",
							training->cells, features.ndim, features.dims[0])));
		if (CountNulls(&features) > 0)
			complete = false;
	}
	row = NextRow(training);
	label = complete ? PG_GETARG_FLOAT4(2) : get_float8_nan();
	if (training->element == SGD_FLOAT32)
		*(float4 *) row = (float4) label;
	else
		*(float8 *) row = label;
	if (complete)
	{
		size_t		size = training->row_bytes / (1 + training->cells);

		PrefetchRow(training, features.data);
		memcpy(row + size, features.data, training->row_bytes - size);
	}
	PG_RETURN_POINTER(training);
}

bytea *
CopyModels(const Training *training)
{
	bytea	   *result;
	size_t		total = VARHDRSZ;
	char	   *to;

	for (size_t i = 0; i < training->n_models; i++)
		total += training->bytes[i];
	result = palloc(total);
	SET_VARSIZE(result, total);
	to = VARDATA(result);
	for (size_t i = 0; i < training->n_models; i++)
	{
		memcpy(to, training->models[i], training->bytes[i]);
		to += training->bytes[i];
	}
	return result;
}

/* The models after the rows, end to end; NULL when there were none. */
PG_FUNCTION_INFO_V1(boltdp_sgd_final);
Datum
boltdp_sgd_final(PG_FUNCTION_ARGS)
{
	Training   *training;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	training = (Training *) PG_GETARG_POINTER(0);
	Flush(training);
	PG_RETURN_BYTEA_P(CopyModels(training));
}
