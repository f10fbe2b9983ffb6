/* arrays.h: reading PostgreSQL arrays of numbers in place. */
#ifndef BOLTDP_ARRAYS_H
#define BOLTDP_ARRAYS_H

#include "postgres.h"

#include <math.h>

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/array.h"

/* An array of fixed-width numbers: where its parts are. */
typedef struct NumberArray
{
	int			ndim;
	int			dims[2];		/* of the first two dimensions; 0 where there is none */
	int			count;			/* elements, NULLs included */
	Oid			type;
	const bits8 *present;		/* a bit an element, 0 for NULL; or NULL when all are present */
	const char *data;			/* the elements that are present; may be unaligned */
} NumberArray;

/*
 * Look into an array without copying it. Only a toasted one is unpacked; a short one has a one-byte length, so
 * nothing in it need be aligned, and its header is read byte by byte.
 */
static inline NumberArray
OpenArray(Datum datum)
{
	struct varlena *value = PG_DETOAST_DATUM_PACKED(datum);
	const char *body = VARDATA_ANY(value);	/* what follows the length word of an ArrayType */
	NumberArray array = {0};
	int32		header[3];		/* ndim, dataoffset, elemtype */

	memcpy(header, body, sizeof(header));
	array.ndim = header[0];
	array.type = (Oid) header[2];
	if (array.ndim > 0)
	{
		int			dims[MAXDIM];

		memcpy(dims, body + sizeof(header), array.ndim * sizeof(int));
		array.count = array.ndim == 1 ? dims[0] : ArrayGetNItems(array.ndim, dims);
		array.dims[0] = dims[0];
		array.dims[1] = array.ndim > 1 ? dims[1] : 0;
	}
	/* Offsets are from the start of the ArrayType, which has a length word of four bytes. */
	if (header[1] != 0)
	{
		array.present = (const bits8 *) (body + sizeof(header) + 2 * array.ndim * sizeof(int));
		array.data = body + header[1] - VARHDRSZ;
	}
	else
		array.data = body + ARR_OVERHEAD_NONULLS(array.ndim) - VARHDRSZ;
	return array;
}

/* Whether element i is NULL. */
static inline bool
IsNullAt(const NumberArray *array, int i)
{
	return array->present != NULL && (array->present[i / 8] & (1 << (i % 8))) == 0;
}

/* How many elements are NULL: none, perhaps, of an array with a bitmap, which may be of ones. */
static inline int
CountNulls(const NumberArray *array)
{
	int			nulls = 0;

	for (int i = 0; array->present != NULL && i < array->count; i++)
		nulls += IsNullAt(array, i);
	return nulls;
}

/* The numbers of an array of real or double precision in double, NULL as NaN. */
static inline void
ReadNumbers(const NumberArray *array, float8 *numbers)
{
	int			present = array->count - CountNulls(array);

	if (array->type == FLOAT8OID)
		memcpy(numbers, array->data, present * sizeof(float8));
	else
		for (int i = 0; i < present; i++)
		{
			float4		single;

			memcpy(&single, array->data + i * sizeof(single), sizeof(single));
			numbers[i] = single;
		}
	/* From the end, each to its place. */
	for (int i = array->count - 1; array->present != NULL && i >= 0; i--)
		numbers[i] = IsNullAt(array, i) ? NAN : numbers[--present];
}

#endif
