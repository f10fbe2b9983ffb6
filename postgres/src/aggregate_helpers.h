/* aggregate_helpers.h: what the aggregates around the kernel have in common. */
#ifndef BOLTDP_AGGREGATE_HELPERS_H
#define BOLTDP_AGGREGATE_HELPERS_H

#include "postgres.h"

#include "arrays.h"
#include "sgd.h"

/* Kernel vectors that straddle two cache lines are slow to load. */
#define CACHE_LINE 64

/* Refuse what the kernel refuses. A state is the caller's: one that is malformed says nothing of the server's data. */
static inline void
CheckCode(int code)
{
	if (code != SGD_OK)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("%s", sgd_error_text(code))));
}

/* The memory of the aggregate that calls, which is boltdp.NAME. */
static inline MemoryContext
AggregateContext(FunctionCallInfo fcinfo, const char *name)
{
	MemoryContext context;

	if (AggCheckCallContext(fcinfo, &context) != AGG_CONTEXT_AGGREGATE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED), errmsg("boltdp.%s must be called as an aggregate", name)));
	return context;
}

/* An argument that must not be NULL. */
static inline Datum
RequiredArgument(FunctionCallInfo fcinfo, int argument, const char *name)
{
	if (PG_ARGISNULL(argument))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("%s must not be NULL", name)));
	return PG_GETARG_DATUM(argument);
}

/* Zeroed memory that starts a cache line. */
static inline void *
AllocateAligned(size_t bytes)
{
	return (void *) TYPEALIGN(CACHE_LINE, palloc0(bytes + CACHE_LINE));
}

/* A new block of packed rows, all 0. */
static inline ArrayType *
NewBlock(int n_rows, int width)
{
	Size		bytes = ARR_OVERHEAD_NONULLS(2) + sizeof(float4) * width * (Size) n_rows;
	ArrayType  *block = palloc0(bytes);

	SET_VARSIZE(block, bytes);
	block->ndim = 2;
	block->elemtype = FLOAT4OID;
	ARR_DIMS(block)[0] = n_rows;
	ARR_DIMS(block)[1] = width;
	ARR_LBOUND(block)[0] = 1;
	ARR_LBOUND(block)[1] = 1;
	return block;
}

/* A block of packed rows: two dimensions, the class index and the cells of each row, no NULL. */
static inline NumberArray
OpenBlock(FunctionCallInfo fcinfo, int argument, uint64 cells)
{
	NumberArray block = OpenArray(RequiredArgument(fcinfo, argument, "a block of rows"));

	if (block.ndim != 2 || block.dims[1] != 1 + cells)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("a block must have two dimensions and rows of " UINT64_FORMAT " numbers, got %d and %d",
						1 + cells, block.ndim, block.dims[1])));
	if (CountNulls(&block) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("a block of rows must not contain NULL")));
	return block;
}

#endif
