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

/* (clip(x, low, high) - middle) * factor of each number; NULL and NaN, or a list of another length, as 0. */
static Datum
PackNumbers(FunctionCallInfo fcinfo, Size size)
{
	NumberArray low = GetDeclared(fcinfo, 1, "low", -1);
	NumberArray high = GetDeclared(fcinfo, 2, "high", low.count);
	NumberArray middle = GetDeclared(fcinfo, 3, "middle", low.count);
	NumberArray factor = GetDeclared(fcinfo, 4, "factor", low.count);
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
		float8		zero,
					unit;

		if (IsNullAt(&x, i))
			continue;
		zero = DoubleAt(&middle, i);
		unit = DoubleAt(&factor, i);
		if (size == sizeof(float4))
		{
			float4		number;

			memcpy(&number, next, size);
			rows_pack_float32(&number, 1, 1, out + i, 1, DoubleAt(&low, i), DoubleAt(&high, i), &zero, &unit);
		}
		else
		{
			float8		number;

			memcpy(&number, next, size);
			rows_pack_float64(&number, 1, 1, out + i, 1, DoubleAt(&low, i), DoubleAt(&high, i), &zero, &unit);
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

/* Number i of a real[] that may be unaligned. */
static float4
RealAt(const NumberArray *array, int i)
{
	float4		number;

	memcpy(&number, array->data + i * sizeof(float4), sizeof(number));
	return number;
}

/* As pack_numbers, each number followed by its steps: `present` from the place on, `absent` below; 0 where it's missing. */
PG_FUNCTION_INFO_V1(boltdp_pack_curves);
Datum
boltdp_pack_curves(PG_FUNCTION_ARGS)
{
	NumberArray low = GetDeclared(fcinfo, 1, "low", -1);
	NumberArray high = GetDeclared(fcinfo, 2, "high", low.count);
	NumberArray middle = GetDeclared(fcinfo, 3, "middle", low.count);
	NumberArray factor = GetDeclared(fcinfo, 4, "factor", low.count);
	NumberArray steps = GetDeclared(fcinfo, 5, "steps", low.count);
	NumberArray places = GetDeclared(fcinfo, 6, "places", -1);
	NumberArray absent = GetDeclared(fcinfo, 7, "absent", places.count);
	NumberArray present = GetDeclared(fcinfo, 8, "present", places.count);
	NumberArray x;
	ArrayType  *result;
	float4	   *out;
	const char *next;
	int64		total = 0;
	int			at = 0;

	for (int i = 0; i < steps.count; i++)
	{
		int32		count;

		memcpy(&count, steps.data + i * sizeof(count), sizeof(count));
		if (count < 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("a number must have at least 0 steps, got %d", count)));
		total += count;
	}
	if (total != places.count)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("places must be as many as the steps, got %d for " INT64_FORMAT, places.count, total)));
	result = NewReals(low.count + places.count);
	out = (float4 *) ARR_DATA_PTR(result);
	if (PG_ARGISNULL(0))
		PG_RETURN_ARRAYTYPE_P(result);
	x = OpenArray(PG_GETARG_DATUM(0));
	if (x.ndim != 1 || x.count != low.count)
		PG_RETURN_ARRAYTYPE_P(result);
	next = x.data;
	for (int i = 0; i < x.count; i++)
	{
		float8		number = NAN;
		float8		zero = DoubleAt(&middle, i);
		float8		unit = DoubleAt(&factor, i);
		int32		count;

		memcpy(&count, steps.data + i * sizeof(count), sizeof(count));
		if (!IsNullAt(&x, i))
		{
			memcpy(&number, next, sizeof(number));
			next += sizeof(number);
		}
		rows_pack_float64(&number, 1, 1, out++, 1, DoubleAt(&low, i), DoubleAt(&high, i), &zero, &unit);
		for (int end = at + count; at < end; at++)
		{
			float8		place = DoubleAt(&places, at);
			float4		below = RealAt(&absent, at);
			float4		above = RealAt(&present, at);

			rows_pack_steps_float64(&number, 1, out++, 1, 1, &place, &below, &above);
		}
	}
	PG_RETURN_ARRAYTYPE_P(result);
}

/* For each code a run of `count` numbers: `absent`, but `present` at the code; NULL and other codes are none of them. */
PG_FUNCTION_INFO_V1(boltdp_pack_categories);
Datum
boltdp_pack_categories(PG_FUNCTION_ARGS)
{
	NumberArray codes = OpenArray(PG_GETARG_DATUM(0));
	NumberArray counts = GetDeclared(fcinfo, 1, "counts", codes.count);
	NumberArray absent;
	NumberArray present;
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
	absent = GetDeclared(fcinfo, 2, "absent", (int) total);
	present = GetDeclared(fcinfo, 3, "present", (int) total);
	result = NewReals((int) total);
	out = (float4 *) ARR_DATA_PTR(result);
	memcpy(out, absent.data, total * sizeof(float4));
	total = 0;
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
		if (code >= 0 && code < count)
			memcpy(out + total + code, present.data + (total + code) * sizeof(float4), sizeof(float4));
		total += count;
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

/* Sums of features and of their squares: rows.h says of what, and why they are exact. */
typedef struct Moments
{
	int			dims;
	int64		sums[FLEXIBLE_ARRAY_MEMBER];	/* 2 * dims */
} Moments;

/* Add a packed row. */
PG_FUNCTION_INFO_V1(boltdp_moments_step);
Datum
boltdp_moments_step(PG_FUNCTION_ARGS)
{
	MemoryContext context;
	Moments    *moments;
	ArrayType  *row;
	float8		radius;
	int			dims;

	if (AggCheckCallContext(fcinfo, &context) != AGG_CONTEXT_AGGREGATE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED), errmsg("boltdp.moments must be called as an aggregate")));
	if (PG_ARGISNULL(1) || PG_ARGISNULL(2))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("a row and the radius must not be NULL")));
	row = PG_GETARG_ARRAYTYPE_P(1);
	radius = PG_GETARG_FLOAT8(2);
	if (!(radius > 0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("the radius must be > 0, got %g", radius)));
	if (ARR_NDIM(row) != 1 || array_contains_nulls(row))
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("a packed row must have one dimension and no NULL, got %d dimensions", ARR_NDIM(row))));
	dims = ARR_DIMS(row)[0] - 1;
	if (PG_ARGISNULL(0))
	{
		moments = MemoryContextAllocZero(context, offsetof(Moments, sums) + 2 * dims * sizeof(int64));
		moments->dims = dims;
	}
	else
		moments = (Moments *) PG_GETARG_POINTER(0);
	if (dims != moments->dims)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("packed rows must have the same width, got %d and %d", 1 + moments->dims, 1 + dims)));
	rows_moments((float4 *) ARR_DATA_PTR(row), 1, dims, radius, moments->sums);
	if ((Pointer) row != DatumGetPointer(PG_GETARG_DATUM(1)))
		pfree(row);
	PG_RETURN_POINTER(moments);
}

/* The sums, then those of the squares, as bigint[]; NULL when there were no rows. */
PG_FUNCTION_INFO_V1(boltdp_moments_final);
Datum
boltdp_moments_final(PG_FUNCTION_ARGS)
{
	Moments    *moments;
	Datum	   *sums;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	moments = (Moments *) PG_GETARG_POINTER(0);
	sums = palloc(2 * moments->dims * sizeof(Datum));
	for (int i = 0; i < 2 * moments->dims; i++)
		sums[i] = Int64GetDatum(moments->sums[i]);
	PG_RETURN_ARRAYTYPE_P(construct_array(sums, 2 * moments->dims, INT8OID, sizeof(int64), FLOAT8PASSBYVAL,
										  TYPALIGN_DOUBLE));
}
