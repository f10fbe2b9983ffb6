/*
 * sums.c: what is summed over all rows, as aggregates around the kernel: a derivative of the loss, the errors of models.
 *
 * Each takes a kernel state before its first row and returns it after the last. Blocks are refused as in train.c. The
 * state has weights that are not noised: it must not be a parameter of a statement, which a server that logs statements
 * logs.
 */
#include "postgres.h"

#include <stddef.h>

#include "arrays.h"
#include "errors.h"
#include "objective.h"
#include "states.h"

/* What there is to sum, as the kernel knows it. */
typedef struct Kind
{
	const char *name;			/* of the aggregate */
	size_t		dims_at;		/* where a state says how many features a row has */
	int			(*check) (const void *state, size_t bytes);
	int			(*add) (void *state, size_t bytes, const float *rows, size_t n_rows, int build);
} Kind;

static const Kind derivative = {
	"derivative", offsetof(struct objective_state, dims), objective_check, objective_add
};
static const Kind errors = {
	"errors", offsetof(struct errors_state, dims), errors_check, errors_add
};

typedef struct Summation
{
	const Kind *kind;
	void	   *state;
	size_t		bytes;
	uint64		dims;
	float4	   *rows;			/* for blocks whose numbers are not aligned */
	size_t		capacity;		/* rows that fit there */
} Summation;

/* The aggregate's summation: made of the state when the first block comes. */
static Summation *
GetSummation(FunctionCallInfo fcinfo, const Kind *kind)
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
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED), errmsg("boltdp.%s must be called as an aggregate", kind->name)));
	if (PG_ARGISNULL(1))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("the state must not be NULL")));
	old = MemoryContextSwitchTo(context);
	given = PG_GETARG_BYTEA_PP(1);
	sum = palloc0(sizeof(Summation));
	sum->kind = kind;
	sum->bytes = VARSIZE_ANY_EXHDR(given);
	sum->state = AllocateAligned(sum->bytes);
	memcpy(sum->state, VARDATA_ANY(given), sum->bytes);
	CheckCode(kind->check(sum->state, sum->bytes));
	memcpy(&sum->dims, (char *) sum->state + kind->dims_at, sizeof(sum->dims));
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

/* One tuple is a block of packed rows. */
static Datum
AddBlock(FunctionCallInfo fcinfo, const Kind *kind)
{
	Summation  *sum = GetSummation(fcinfo, kind);
	NumberArray block = OpenBlock(fcinfo, 2, sum->dims);
	const char *rows = block.data;

	if ((uintptr_t) rows % sizeof(float4) != 0)
		rows = memcpy(AlignedRows(fcinfo, sum, block.dims[0]), rows, block.count * sizeof(float4));
	CheckCode(sum->kind->add(sum->state, sum->bytes, (const float4 *) rows, block.dims[0], SGD_FASTEST));
	PG_RETURN_POINTER(sum);
}

/* The state after the rows; NULL when there were none. */
static Datum
SummedState(FunctionCallInfo fcinfo)
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

PG_FUNCTION_INFO_V1(boltdp_derivative_block);
Datum
boltdp_derivative_block(PG_FUNCTION_ARGS)
{
	return AddBlock(fcinfo, &derivative);
}

PG_FUNCTION_INFO_V1(boltdp_derivative_final);
Datum
boltdp_derivative_final(PG_FUNCTION_ARGS)
{
	return SummedState(fcinfo);
}

PG_FUNCTION_INFO_V1(boltdp_errors_block);
Datum
boltdp_errors_block(PG_FUNCTION_ARGS)
{
	return AddBlock(fcinfo, &errors);
}

PG_FUNCTION_INFO_V1(boltdp_errors_final);
Datum
boltdp_errors_final(PG_FUNCTION_ARGS)
{
	return SummedState(fcinfo);
}
