/*
 * objective.c: a derivative of the loss, summed over all rows, as an aggregate around the kernel.
 *
 * It takes a kernel state before its first row and returns it after the last. Blocks are refused as in train.c. The state
 * has un-noised weights: it must not be a parameter of a statement, which a server that logs statements logs.
 */
#include "postgres.h"

#include "arrays.h"
#include "objective.h"
#include "states.h"

typedef struct Summation
{
	void	   *state;
	size_t		bytes;
	uint64		dims;
	float4	   *rows;			/* for blocks whose numbers are not aligned */
	size_t		capacity;		/* rows that fit there */
} Summation;

/* The aggregate's summation: made of the state when the first block comes. */
static Summation *
GetSummation(FunctionCallInfo fcinfo)
{
	MemoryContext context;
	MemoryContext old;
	Summation  *sum;
	bytea	   *given;

	/* Only this function makes such a pointer, so where there is one, all has been checked. */
	if (!PG_ARGISNULL(0))
		return (Summation *) PG_GETARG_POINTER(0);
	if (AggCheckCallContext(fcinfo, &context) != AGG_CONTEXT_AGGREGATE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED), errmsg("boltdp.derivative must be called as an aggregate")));
	if (PG_ARGISNULL(1))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("the state must not be NULL")));
	old = MemoryContextSwitchTo(context);
	given = PG_GETARG_BYTEA_PP(1);
	sum = palloc0(sizeof(Summation));
	sum->bytes = VARSIZE_ANY_EXHDR(given);
	sum->state = AllocateAligned(sum->bytes);
	memcpy(sum->state, VARDATA_ANY(given), sum->bytes);
	CheckCode(objective_check(sum->state, sum->bytes));
	sum->dims = ((struct objective_state *) sum->state)->dims;
	MemoryContextSwitchTo(old);
	return sum;
}

/* Room for so many rows, aligned. */
static float4 *
AlignedRows(FunctionCallInfo fcinfo, Summation *sum, size_t rows)
{
	MemoryContext context;

	if (rows > sum->capacity)
	{
		AggCheckCallContext(fcinfo, &context);
		sum->rows = MemoryContextAlloc(context, rows * (1 + sum->dims) * sizeof(float4));
		sum->capacity = rows;
	}
	return sum->rows;
}

PG_FUNCTION_INFO_V1(boltdp_derivative_block);
Datum
boltdp_derivative_block(PG_FUNCTION_ARGS)
{
	Summation  *sum = GetSummation(fcinfo);
	NumberArray block = OpenBlock(fcinfo, 2, sum->dims);
	const char *rows = block.data;

	if ((uintptr_t) rows % sizeof(float4) != 0)
		rows = memcpy(AlignedRows(fcinfo, sum, block.dims[0]), rows, block.count * sizeof(float4));
	CheckCode(objective_add(sum->state, sum->bytes, (const float4 *) rows, block.dims[0], SGD_FASTEST));
	PG_RETURN_POINTER(sum);
}

/* The state after the rows; NULL when there were none. */
PG_FUNCTION_INFO_V1(boltdp_derivative_final);
Datum
boltdp_derivative_final(PG_FUNCTION_ARGS)
{
	Summation  *sum;
	bytea	   *result;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	sum = (Summation *) PG_GETARG_POINTER(0);
	result = palloc(VARHDRSZ + sum->bytes);
	SET_VARSIZE(result, VARHDRSZ + sum->bytes);
	memcpy(VARDATA(result), sum->state, sum->bytes);
	PG_RETURN_BYTEA_P(result);
}
