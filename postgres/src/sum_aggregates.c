/*
 * sum_aggregates.c: what is summed over all rows, as an aggregate around the kernel: a derivative of the loss, the errors
 * of models or the moments of the features.
 *
 * It takes a kernel state before its first row and returns it after the last. Sums are exact, so that rows may come in
 * any order and be shared among any number of processes, whose parts are joined. Blocks are refused as in sgd_aggregate.c. The
 * state may have weights that are not noised: it must not be a parameter of a statement, which a server that logs
 * statements logs.
 */
#include "postgres.h"

#include "arrays.h"
#include "aggregate_helpers.h"
#include "sum_state.h"

typedef struct Summation
{
	struct sum_state *state;
	float4	   *rows;			/* for blocks whose numbers are not aligned */
	size_t		capacity;		/* rows that fit there */
} Summation;

/* A summation that goes on from a copy of a state, in a memory context. */
static Summation *
OpenSummation(const void *state, size_t bytes, MemoryContext context)
{
	MemoryContext old = MemoryContextSwitchTo(context);
	Summation  *sum = palloc0(sizeof(Summation));

	sum->state = AllocateAligned(bytes);
	memcpy(sum->state, state, bytes);
	CheckCode(sum_check(sum->state, bytes));
	MemoryContextSwitchTo(old);
	return sum;
}

/* Return room for this many rows, aligned. */
static float4 *
AlignedRows(FunctionCallInfo fcinfo, Summation *sum, size_t rows)
{
	if (rows > sum->capacity)
	{
		sum->rows = MemoryContextAlloc(AggregateContext(fcinfo, "sums"), rows * (1 + sum->state->cells) * sizeof(float4));
		sum->capacity = rows;
	}
	return sum->rows;
}

/* One tuple is a block of packed rows. The first one makes the summation of the state. */
PG_FUNCTION_INFO_V1(boltdp_sums_block);
Datum
boltdp_sums_block(PG_FUNCTION_ARGS)
{
	Summation  *sum;
	NumberArray block;
	const char *rows;

	/* Only these functions make such a pointer, so where there is one, all has been checked. */
	if (PG_ARGISNULL(0))
	{
		MemoryContext context = AggregateContext(fcinfo, "sums");
		bytea	   *given = DatumGetByteaPP(RequiredArgument(fcinfo, 1, "the state"));

		sum = OpenSummation(VARDATA_ANY(given), VARSIZE_ANY_EXHDR(given), context);
	}
	else
		sum = (Summation *) PG_GETARG_POINTER(0);
	block = OpenBlock(fcinfo, 2, sum->state->cells);
	rows = block.data;
	if ((uintptr_t) rows % sizeof(float4) != 0)
		rows = memcpy(AlignedRows(fcinfo, sum, block.dims[0]), rows, block.count * sizeof(float4));
	CheckCode(sum_add(sum->state, sum->state->bytes, (const float4 *) rows, block.dims[0], SGD_FASTEST));
	PG_RETURN_POINTER(sum);
}

/* The sum of two parts of the rows: exact, so that it does not matter how they were cut. */
PG_FUNCTION_INFO_V1(boltdp_sums_join);
Datum
boltdp_sums_join(PG_FUNCTION_ARGS)
{
	MemoryContext context = AggregateContext(fcinfo, "sums");
	Summation  *sum;
	Summation  *other;

	if (PG_ARGISNULL(1))
	{
		if (PG_ARGISNULL(0))
			PG_RETURN_NULL();
		PG_RETURN_DATUM(PG_GETARG_DATUM(0));
	}
	other = (Summation *) PG_GETARG_POINTER(1);
	if (PG_ARGISNULL(0))
		PG_RETURN_POINTER(OpenSummation(other->state, other->state->bytes, context));
	sum = (Summation *) PG_GETARG_POINTER(0);
	if (other->state->bytes != sum->state->bytes)
		CheckCode(SGD_BAD_RECIPE);
	CheckCode(sum_join(sum->state, sum->state->bytes, other->state));
	PG_RETURN_POINTER(sum);
}

/* The state after the rows, as a result or for another process; strict: it is NULL when there were none. */
PG_FUNCTION_INFO_V1(boltdp_sums_final);
Datum
boltdp_sums_final(PG_FUNCTION_ARGS)
{
	const struct sum_state *state;
	bytea	   *result;

	AggregateContext(fcinfo, "sums");
	state = ((Summation *) PG_GETARG_POINTER(0))->state;
	result = palloc(VARHDRSZ + state->bytes);
	SET_VARSIZE(result, VARHDRSZ + state->bytes);
	memcpy(VARDATA(result), state, state->bytes);
	PG_RETURN_BYTEA_P(result);
}

/* A part of the sum that another process sent. Strict. */
PG_FUNCTION_INFO_V1(boltdp_sums_receive);
Datum
boltdp_sums_receive(PG_FUNCTION_ARGS)
{
	bytea	   *sent = PG_GETARG_BYTEA_PP(0);

	AggregateContext(fcinfo, "sums");
	PG_RETURN_POINTER(OpenSummation(VARDATA_ANY(sent), VARSIZE_ANY_EXHDR(sent), CurrentMemoryContext));
}
