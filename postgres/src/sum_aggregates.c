/*
 * sum_aggregates.c: what is summed over all rows, as aggregates around the kernel: a derivative of the loss, the errors of models,
 * the moments of the features.
 *
 * Each takes a kernel state before its first row and returns it after the last. Sums are exact, so that rows may come in
 * any order and be shared among any number of processes, whose parts are joined. Blocks are refused as in sgd_aggregate.c. The
 * state may have weights that are not noised: it must not be a parameter of a statement, which a server that logs
 * statements logs.
 */
#include "postgres.h"

#include <stddef.h>

#include "arrays.h"
#include "misclassification.h"
#include "feature_sums.h"
#include "loss_derivatives.h"
#include "packing.h"
#include "kernel_states.h"

/* What there is to sum, as the kernel knows it. */
typedef struct Kind
{
	const char *name;			/* of the aggregate */
	size_t		cells_at;		/* where a state says how many cells a row has */
	int			(*check) (const void *state, size_t bytes);
	int			(*add) (void *state, size_t bytes, const float *rows, size_t n_rows, int build);
	int			(*join) (void *state, size_t bytes, const void *other);
} Kind;

static const Kind derivative = {
	"derivative", offsetof(struct derivatives_state, cells), derivatives_check, derivatives_add, derivatives_join
};
static const Kind errors = {
	"errors", offsetof(struct misclassification_state, cells), misclassification_check, misclassification_add, misclassification_join
};
static const Kind moments = {
	"moments", offsetof(struct feature_sums_state, cells), feature_sums_check, feature_sums_add, feature_sums_join
};

typedef struct Summation
{
	const Kind *kind;
	void	   *state;
	size_t		bytes;
	uint64		cells;
	float4	   *rows;			/* for blocks whose numbers are not aligned */
	size_t		capacity;		/* rows that fit there */
} Summation;

/* The memory of the aggregate that calls. */
static MemoryContext
AggregateContext(FunctionCallInfo fcinfo, const Kind *kind)
{
	MemoryContext context;

	if (AggCheckCallContext(fcinfo, &context) != AGG_CONTEXT_AGGREGATE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED), errmsg("boltdp.%s must be called as an aggregate", kind->name)));
	return context;
}

/* A summation that goes on from a state, a copy of it, in a memory context. */
static Summation *
OpenSummation(const Kind *kind, const void *state, size_t bytes, MemoryContext context)
{
	MemoryContext old = MemoryContextSwitchTo(context);
	Summation  *sum = palloc0(sizeof(Summation));

	sum->kind = kind;
	sum->bytes = bytes;
	sum->state = AllocateAligned(bytes);
	memcpy(sum->state, state, bytes);
	CheckCode(kind->check(sum->state, bytes));
	memcpy(&sum->cells, (char *) sum->state + kind->cells_at, sizeof(sum->cells));
	MemoryContextSwitchTo(old);
	return sum;
}

/* The aggregate's summation: made of the state when the first block comes. */
static Summation *
GetSummation(FunctionCallInfo fcinfo, const Kind *kind)
{
	MemoryContext context;
	bytea	   *given;

	/* Only this function makes such a pointer, so where there is one, all has been checked. */
	if (!PG_ARGISNULL(0))
		return (Summation *) PG_GETARG_POINTER(0);
	context = AggregateContext(fcinfo, kind);
	if (PG_ARGISNULL(1))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("the state must not be NULL")));
	given = PG_GETARG_BYTEA_PP(1);
	return OpenSummation(kind, VARDATA_ANY(given), VARSIZE_ANY_EXHDR(given), context);
}

/* Return room for this many rows, aligned. */
static float4 *
AlignedRows(FunctionCallInfo fcinfo, Summation *sum, size_t rows)
{
	MemoryContext context;

	if (rows > sum->capacity)
	{
		AggCheckCallContext(fcinfo, &context);
		sum->rows = MemoryContextAlloc(context, rows * (1 + sum->cells) * sizeof(float4));
		sum->capacity = rows;
	}
	return sum->rows;
}

/* One tuple is a block of packed rows. */
static Datum
AddBlock(FunctionCallInfo fcinfo, const Kind *kind)
{
	Summation  *sum = GetSummation(fcinfo, kind);
	NumberArray block = OpenBlock(fcinfo, 2, sum->cells);
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

/* The sum of two parts of the rows: exact, so that it does not matter how they were cut. */
static Datum
JoinSums(FunctionCallInfo fcinfo, const Kind *kind)
{
	MemoryContext context = AggregateContext(fcinfo, kind);
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
		PG_RETURN_POINTER(OpenSummation(kind, other->state, other->bytes, context));
	sum = (Summation *) PG_GETARG_POINTER(0);
	if (other->bytes != sum->bytes)
		CheckCode(SGD_BAD_RECIPE);
	CheckCode(kind->join(sum->state, sum->bytes, other->state));
	PG_RETURN_POINTER(sum);
}

/* A part of the sum as it is sent from one process to another; the functions are strict. */
static Datum
ReceiveSum(FunctionCallInfo fcinfo, const Kind *kind)
{
	bytea	   *sent = PG_GETARG_BYTEA_PP(0);

	AggregateContext(fcinfo, kind);
	PG_RETURN_POINTER(OpenSummation(kind, VARDATA_ANY(sent), VARSIZE_ANY_EXHDR(sent), CurrentMemoryContext));
}

/* The functions of an aggregate: a block, a part that another process summed, its way here, and the result. */
#define AGGREGATE(KIND) \
	PG_FUNCTION_INFO_V1(boltdp_##KIND##_block); \
	Datum \
	boltdp_##KIND##_block(PG_FUNCTION_ARGS) \
	{ \
		return AddBlock(fcinfo, &KIND); \
	} \
	PG_FUNCTION_INFO_V1(boltdp_##KIND##_join); \
	Datum \
	boltdp_##KIND##_join(PG_FUNCTION_ARGS) \
	{ \
		return JoinSums(fcinfo, &KIND); \
	} \
	PG_FUNCTION_INFO_V1(boltdp_##KIND##_send); \
	Datum \
	boltdp_##KIND##_send(PG_FUNCTION_ARGS) \
	{ \
		AggregateContext(fcinfo, &KIND); \
		return SummedState(fcinfo); \
	} \
	PG_FUNCTION_INFO_V1(boltdp_##KIND##_receive); \
	Datum \
	boltdp_##KIND##_receive(PG_FUNCTION_ARGS) \
	{ \
		return ReceiveSum(fcinfo, &KIND); \
	} \
	PG_FUNCTION_INFO_V1(boltdp_##KIND##_final); \
	Datum \
	boltdp_##KIND##_final(PG_FUNCTION_ARGS) \
	{ \
		return SummedState(fcinfo); \
	}

AGGREGATE(derivative)
AGGREGATE(errors)
AGGREGATE(moments)

/* Those rows of a block that sums of a share take, 2^32 of it all; NULL if there are none. Strict. */
PG_FUNCTION_INFO_V1(boltdp_sample_block);
Datum
boltdp_sample_block(PG_FUNCTION_ARGS)
{
	NumberArray block = OpenArray(PG_GETARG_DATUM(0));
	int64		share = PG_GETARG_INT64(1);
	const char *rows = block.data;
	size_t		size = block.count * sizeof(float4);
	size_t		taken;
	ArrayType  *result;

	if (block.ndim != 2 || HasNulls(&block))
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("a block of rows must have two dimensions and no NULL")));
	if (share < 0 || share > INT64CONST(1) << 32)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("the share must be from 0 to 2^32")));
	if ((uintptr_t) rows % sizeof(float4) != 0)
		rows = memcpy(palloc(size), rows, size);
	result = NewBlock(block.dims[0], block.dims[1]);
	taken = packing_sample((const float4 *) rows, block.dims[0], block.dims[1], (uint64) share, (float4 *) ARR_DATA_PTR(result));
	if (taken == 0)
		PG_RETURN_NULL();
	SET_VARSIZE(result, VARSIZE(result) - size + taken * block.dims[1] * sizeof(float4));
	ARR_DIMS(result)[0] = (int) taken;
	PG_RETURN_ARRAYTYPE_P(result);
}
