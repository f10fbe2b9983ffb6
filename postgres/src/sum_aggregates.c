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

/* A copy of a state, in a memory context. */
static struct sum_state *
OpenSums(const void *state, size_t bytes, MemoryContext context)
{
	MemoryContext old = MemoryContextSwitchTo(context);
	struct sum_state *sums = AllocateAligned(bytes);

	memcpy(sums, state, bytes);
	CheckCode(sum_check(sums, bytes));
	MemoryContextSwitchTo(old);
	return sums;
}

/* One tuple is a block of packed rows. The first one is added to a copy of the state. */
PG_FUNCTION_INFO_V1(boltdp_sums_block);
Datum
boltdp_sums_block(PG_FUNCTION_ARGS)
{
	struct sum_state *sums;
	NumberArray block;
	const char *rows;

	/* Only these functions make such a pointer, so where there is one, all has been checked. */
	if (PG_ARGISNULL(0))
	{
		MemoryContext context = AggregateContext(fcinfo, "sums");
		bytea	   *given = DatumGetByteaPP(RequiredArgument(fcinfo, 1, "the state"));

		sums = OpenSums(VARDATA_ANY(given), VARSIZE_ANY_EXHDR(given), context);
	}
	else
		sums = (struct sum_state *) PG_GETARG_POINTER(0);
	block = OpenBlock(fcinfo, 2, sums->cells);
	rows = block.data;
	/* Only small blocks are not aligned. Their copy is in the memory of this call. */
	if ((uintptr_t) rows % sizeof(float4) != 0)
		rows = memcpy(palloc(block.count * sizeof(float4)), rows, block.count * sizeof(float4));
	CheckCode(sum_add(sums, sums->bytes, (const float4 *) rows, block.dims[0], SGD_FASTEST));
	PG_RETURN_POINTER(sums);
}

/* The sum of two parts of the rows: exact, so that it does not matter how they were cut. */
PG_FUNCTION_INFO_V1(boltdp_sums_join);
Datum
boltdp_sums_join(PG_FUNCTION_ARGS)
{
	MemoryContext context = AggregateContext(fcinfo, "sums");
	struct sum_state *sums;
	const struct sum_state *other;

	if (PG_ARGISNULL(1))
	{
		if (PG_ARGISNULL(0))
			PG_RETURN_NULL();
		PG_RETURN_DATUM(PG_GETARG_DATUM(0));
	}
	other = (const struct sum_state *) PG_GETARG_POINTER(1);
	if (PG_ARGISNULL(0))
		PG_RETURN_POINTER(OpenSums(other, other->bytes, context));
	sums = (struct sum_state *) PG_GETARG_POINTER(0);
	if (other->bytes != sums->bytes)
		CheckCode(SGD_BAD_RECIPE);
	CheckCode(sum_join(sums, sums->bytes, other));
	PG_RETURN_POINTER(sums);
}

/* The state after the rows, as a result or for another process; strict: it is NULL when there were none. */
PG_FUNCTION_INFO_V1(boltdp_sums_final);
Datum
boltdp_sums_final(PG_FUNCTION_ARGS)
{
	const struct sum_state *sums;
	bytea	   *result;

	AggregateContext(fcinfo, "sums");
	sums = (const struct sum_state *) PG_GETARG_POINTER(0);
	result = palloc(VARHDRSZ + sums->bytes);
	SET_VARSIZE(result, VARHDRSZ + sums->bytes);
	memcpy(VARDATA(result), sums, sums->bytes);
	PG_RETURN_BYTEA_P(result);
}

/* A part of the sum that another process sent. Strict. */
PG_FUNCTION_INFO_V1(boltdp_sums_receive);
Datum
boltdp_sums_receive(PG_FUNCTION_ARGS)
{
	bytea	   *sent = PG_GETARG_BYTEA_PP(0);

	AggregateContext(fcinfo, "sums");
	PG_RETURN_POINTER(OpenSums(VARDATA_ANY(sent), VARSIZE_ANY_EXHDR(sent), CurrentMemoryContext));
}
