/*
 * encode.c: from columns to packed rows in permuted order, with the same arithmetic as everywhere else (rows.c).
 *
 * SQL's own arithmetic would not do: it raises an error when a cast to real underflows, and an error that depends on a
 * row tells something about it. Here nothing about a value can fail: what is missing becomes neutral.
 */
#include "postgres.h"

#include <math.h>

#include "arrays.h"
#include "rows.h"
#include "utils/memutils.h"

/* A new real[] of `count` numbers, all 0. */
static ArrayType *
NewReals(int count)
{
	Size		bytes = ARR_OVERHEAD_NONULLS(1) + sizeof(float4) * count;
	ArrayType  *array = palloc0(bytes);

	SET_VARSIZE(array, bytes);
	array->ndim = 1;
	array->elemtype = FLOAT4OID;
	ARR_DIMS(array)[0] = count;
	ARR_LBOUND(array)[0] = 1;
	return array;
}

/* A declared list, the same for every row: complete, of one dimension and, if `count` isn't negative, that long. */
static NumberArray
GetDeclared(FunctionCallInfo fcinfo, int argument, const char *name, int count)
{
	NumberArray array;

	if (PG_ARGISNULL(argument))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("%s must not be NULL", name)));
	array = OpenArray(PG_GETARG_DATUM(argument));
	if (array.ndim != 1 || (count >= 0 && array.count != count))
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("%s must have one dimension and as many numbers as the others", name)));
	if (HasNulls(&array))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("%s must not contain NULL", name)));
	return array;
}

/* Number i of a float8[] that may be unaligned. */
static float8
DoubleAt(const NumberArray *array, int i)
{
	float8		number;

	memcpy(&number, array->data + i * sizeof(float8), sizeof(number));
	return number;
}

/* (clip(x, low, high) - (low + high)/2) * factor of each number; NULL and NaN, or a list of another length, as 0. */
static Datum
PackNumbers(FunctionCallInfo fcinfo, Size size)
{
	NumberArray low = GetDeclared(fcinfo, 1, "low", -1);
	NumberArray high = GetDeclared(fcinfo, 2, "high", low.count);
	NumberArray factor = GetDeclared(fcinfo, 3, "factor", low.count);
	ArrayType  *result = NewReals(low.count);
	float4	   *out = (float4 *) ARR_DATA_PTR(result);
	NumberArray x;
	const char *next;

	if (PG_ARGISNULL(0))
		PG_RETURN_ARRAYTYPE_P(result);
	x = OpenArray(PG_GETARG_DATUM(0));
	if (x.ndim != 1 || x.count != low.count)
		PG_RETURN_ARRAYTYPE_P(result);
	next = x.data;
	for (int i = 0; i < x.count; i++)
	{
		if (IsNullAt(&x, i))
			continue;
		if (size == sizeof(float4))
		{
			float4		number;

			memcpy(&number, next, size);
			rows_pack_float32(&number, 1, out + i, 1, DoubleAt(&low, i), DoubleAt(&high, i), DoubleAt(&factor, i));
		}
		else
		{
			float8		number;

			memcpy(&number, next, size);
			rows_pack_float64(&number, 1, out + i, 1, DoubleAt(&low, i), DoubleAt(&high, i), DoubleAt(&factor, i));
		}
		next += size;
	}
	PG_RETURN_ARRAYTYPE_P(result);
}

PG_FUNCTION_INFO_V1(boltdp_pack_numbers_float4);
Datum
boltdp_pack_numbers_float4(PG_FUNCTION_ARGS)
{
	return PackNumbers(fcinfo, sizeof(float4));
}

PG_FUNCTION_INFO_V1(boltdp_pack_numbers_float8);
Datum
boltdp_pack_numbers_float8(PG_FUNCTION_ARGS)
{
	return PackNumbers(fcinfo, sizeof(float8));
}

/* One-hot: for each code a run of `count` numbers, all 0 but `value` at the code; NULL and other codes set none. */
PG_FUNCTION_INFO_V1(boltdp_pack_categories);
Datum
boltdp_pack_categories(PG_FUNCTION_ARGS)
{
	NumberArray codes = OpenArray(PG_GETARG_DATUM(0));
	NumberArray counts = GetDeclared(fcinfo, 1, "counts", codes.count);
	float4		value = PG_GETARG_FLOAT4(2);
	ArrayType  *result;
	float4	   *out;
	const char *next = codes.data;
	int64		total = 0;

	for (int i = 0; i < counts.count; i++)
	{
		int32		count;

		memcpy(&count, counts.data + i * sizeof(count), sizeof(count));
		if (count < 1)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("a count must be at least 1, got %d", count)));
		total += count;
	}
	if (total > MaxAllocSize / (int64) sizeof(float4) / 2)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("there are too many categories for one row")));
	result = NewReals((int) total);
	out = (float4 *) ARR_DATA_PTR(result);
	for (int i = 0; i < codes.count; i++)
	{
		int32		code = -1;
		int32		count;

		memcpy(&count, counts.data + i * sizeof(count), sizeof(count));
		if (!IsNullAt(&codes, i))
		{
			memcpy(&code, next, sizeof(code));
			next += sizeof(code);
		}
		rows_pack_categories(&code, 1, out, 1, count, value);
		out += count;
	}
	PG_RETURN_ARRAYTYPE_P(result);
}

/* Multiply the features of a packed row by a matrix, after scaling them into the unit ball. */
PG_FUNCTION_INFO_V1(boltdp_project);
Datum
boltdp_project(PG_FUNCTION_ARGS)
{
	ArrayType  *row = PG_GETARG_ARRAYTYPE_P(0);
	ArrayType  *matrix = PG_GETARG_ARRAYTYPE_P(1);
	ArrayType  *result;
	int			features;

	if (ARR_NDIM(row) != 1 || array_contains_nulls(row))
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("a packed row must have one dimension and no NULL, got %d dimensions", ARR_NDIM(row))));
	features = ARR_DIMS(row)[0] - 1;
	if (ARR_NDIM(matrix) != 2 || array_contains_nulls(matrix) || ARR_DIMS(matrix)[0] != features)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("the matrix must have two dimensions, no NULL and one line for each of the %d features",
						features)));
	result = NewReals(1 + ARR_DIMS(matrix)[1]);
	rows_project((float4 *) ARR_DATA_PTR(row), 1, features, (float8 *) ARR_DATA_PTR(matrix), ARR_DIMS(matrix)[1],
				 (float4 *) ARR_DATA_PTR(result));
	PG_RETURN_ARRAYTYPE_P(result);
}

/* Where row `position` of `total` goes: a permutation that depends on nothing but the seed. */
PG_FUNCTION_INFO_V1(boltdp_permuted_position);
Datum
boltdp_permuted_position(PG_FUNCTION_ARGS)
{
	int64		position = PG_GETARG_INT64(0);
	int64		total = PG_GETARG_INT64(1);
	int64		seed = PG_GETARG_INT64(2);
	int64		result;

	if (total < 1 || total > INT64CONST(1) << 62 || position < 0 || position >= total)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("position must be from 0 to the number of rows less 1, got " INT64_FORMAT " of " INT64_FORMAT,
						position, total)));
	rows_permuted((uint64) position, 1, (uint64) total, (uint64) seed, &result);
	PG_RETURN_INT64(result);
}

/* A block being put together: rows in any order, each in its slot. */
typedef struct Block
{
	int			width;
	int			filled;
	int			slots;			/* the largest slot met, plus 1 */
	int			capacity;
	float4	   *rows;
	bool	   *taken;
} Block;

/* Put a row into its slot: so a block is the same in whatever order its rows come. */
PG_FUNCTION_INFO_V1(boltdp_pack_step);
Datum
boltdp_pack_step(PG_FUNCTION_ARGS)
{
	MemoryContext context;
	Block	   *block;
	NumberArray row;
	int32		slot;

	if (AggCheckCallContext(fcinfo, &context) != AGG_CONTEXT_AGGREGATE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED), errmsg("boltdp.pack must be called as an aggregate")));
	if (PG_ARGISNULL(1) || PG_ARGISNULL(2))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("a slot and its row must not be NULL")));
	slot = PG_GETARG_INT32(1);
	row = OpenArray(PG_GETARG_DATUM(2));
	if (row.count == 0 || HasNulls(&row))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("a packed row must have numbers and no NULL")));
	if (PG_ARGISNULL(0))
	{
		block = MemoryContextAllocZero(context, sizeof(Block));
		block->width = row.count;
		block->capacity = Max(1, BLCKSZ / ((int) sizeof(float4) * block->width));
		block->rows = MemoryContextAllocHuge(context, block->capacity * sizeof(float4) * block->width);
		block->taken = MemoryContextAllocZero(context, block->capacity);
	}
	else
		block = (Block *) PG_GETARG_POINTER(0);
	if (row.count != block->width)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("the rows of a block must have the same width, got %d and %d", block->width, row.count)));
	if (slot < 0 || (int64) slot * block->width > MaxAllocSize / (int64) sizeof(float4) / 2)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a slot must be at least 0 and within the size of a value, got %d", slot)));
	if (slot >= block->capacity)
	{
		int			capacity = Max(2 * block->capacity, slot + 1);

		block->rows = repalloc_huge(block->rows, capacity * sizeof(float4) * block->width);
		block->taken = repalloc(block->taken, capacity);
		memset(block->taken + block->capacity, 0, capacity - block->capacity);
		block->capacity = capacity;
	}
	if (block->taken[slot])
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("a slot must be filled once, got %d again", slot)));
	block->taken[slot] = true;
	block->filled++;
	block->slots = Max(block->slots, slot + 1);
	memcpy(block->rows + (Size) slot * block->width, row.data, sizeof(float4) * block->width);
	PG_RETURN_POINTER(block);
}

/* The block as real[][]; NULL when there were no rows. */
PG_FUNCTION_INFO_V1(boltdp_pack_final);
Datum
boltdp_pack_final(PG_FUNCTION_ARGS)
{
	Block	   *block;
	ArrayType  *result;
	Size		bytes;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	block = (Block *) PG_GETARG_POINTER(0);
	if (block->filled != block->slots)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the slots of a block must be filled without a gap, got %d rows for %d slots", block->filled,
						block->slots)));
	bytes = ARR_OVERHEAD_NONULLS(2) + sizeof(float4) * block->width * (Size) block->slots;
	result = palloc0(bytes);
	SET_VARSIZE(result, bytes);
	result->ndim = 2;
	result->elemtype = FLOAT4OID;
	ARR_DIMS(result)[0] = block->slots;
	ARR_DIMS(result)[1] = block->width;
	ARR_LBOUND(result)[0] = 1;
	ARR_LBOUND(result)[1] = 1;
	memcpy(ARR_DATA_PTR(result), block->rows, sizeof(float4) * block->width * (Size) block->slots);
	PG_RETURN_ARRAYTYPE_P(result);
}
