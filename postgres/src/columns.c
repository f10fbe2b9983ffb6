/*
 * columns.c: from the columns of a row to its packed row, with the kernel's encoding (columns_to_cells.h).
 *
 * SQL's own arithmetic would not do: it raises an error when a cast to real underflows, and an error that depends on a
 * row tells something about it. Here nothing about a value can fail, and no message has one: what is missing becomes a
 * cell that says so.
 */
#include "postgres.h"

#include <math.h>

#include "access/detoast.h"
#include "access/htup_details.h"
#include "arrays.h"
#include "catalog/pg_enum.h"
#include "columns.h"
#include "columns_to_cells.h"
#include "mb/pg_wchar.h"
#include "aggregate_helpers.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

/* What the values of a column are. */
typedef struct ColumnType
{
	Oid			type;			/* of the argument, or what its domain is based on; of an array its elements */
	bool		is_enum;
} ColumnType;

struct Columns
{
	struct encoding_plan plan;
	ColumnType *types;			/* of its columns */
	int			first;			/* the first argument that is a column */
	TupleDesc	fields;			/* of the only argument, if that is a row */
	Datum	   *values;			/* of this call */
	bool	   *nulls;
	float8	   *numbers;		/* scratch: of a vector */
	float8	   *features;		/* scratch of the projection */
	float4	   *packed;			/* projected rows */
};

/* ---- the types of the columns ------------------------------------------------------------------------------- */

/* Turn declared texts into what values of this type are found by: oids of an enum, or texts in the database's encoding. */
static void
ConvertTexts(struct encoding_lookup *lookup, const ColumnType *column)
{
	uint64		count = lookup->count;

	lookup->count = 0;
	for (uint64 i = 0; i < count; i++)
	{
		struct encoding_entry entry = lookup->entries[i];

		/* No value has a zero byte. */
		if (memchr(entry.text, 0, entry.length) != NULL)
			continue;
		entry.text = pg_any_to_server(pnstrdup(entry.text, entry.length), entry.length, PG_UTF8);
		entry.length = strlen(entry.text);
		if (column->is_enum)
		{
			/* A longer name than any value's would be cut. */
			Oid			value = entry.length < NAMEDATALEN ?
				GetSysCacheOid2(ENUMTYPOIDNAME, Anum_pg_enum_oid, ObjectIdGetDatum(column->type),
								CStringGetDatum(entry.text)) : InvalidOid;

			if (!OidIsValid(value))
				continue;
			entry = (struct encoding_entry) {.key = value, .code = entry.code};
		}
		lookup->entries[lookup->count++] = entry;
	}
	if (column->is_enum)
		lookup->match = MATCH_INTEGER;
}

/* How values of a type are matched, -1 if they are not. */
static int
MatchOf(const ColumnType *column)
{
	switch (column->type)
	{
		case BOOLOID:
		case INT2OID:
		case INT4OID:
		case INT8OID:
			return MATCH_INTEGER;
		case FLOAT4OID:
		case FLOAT8OID:
		case NUMERICOID:
			return MATCH_FLOAT;
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
			return MATCH_TEXT;
		default:
			return column->is_enum ? MATCH_TEXT : -1;
	}
}

/* Whether a column of the plan can be encoded from values of this type. */
static bool
Suits(const struct encoding_column *column, const ColumnType *given)
{
	int			match = MatchOf(given);

	if (encoding_is_matched(column))
		return match == column->lookup.match;
	return (match == MATCH_INTEGER || match == MATCH_FLOAT) &&
		(given->type != BOOLOID || column->kind == COLUMN_NUMBER);
}

static ColumnType
ResolveType(struct encoding_column *column, Oid given)
{
	Oid			type = OidIsValid(given) ? getBaseType(given) : InvalidOid;
	ColumnType	resolved = {column->kind == COLUMN_VECTOR && OidIsValid(type) ? get_element_type(type) : type};

	resolved.is_enum = OidIsValid(resolved.type) && type_is_enum(resolved.type);
	if (!Suits(column, &resolved))
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("a column must have the type that the plan is for, got %s", format_type_be(given))));
	if (encoding_is_matched(column) && column->lookup.match == MATCH_TEXT)
		ConvertTexts(&column->lookup, &resolved);
	return resolved;
}

/* Find the columns of this call: as they were given, or as the fields of one. */
static void
GetRow(Columns *columns, FunctionCallInfo fcinfo)
{
	const NullableDatum *arguments = fcinfo->args + columns->first;
	HeapTupleHeader row;
	HeapTupleData tuple;

	if (columns->fields == NULL)
	{
		for (uint64 i = 0; i < columns->plan.n_columns; i++)
		{
			columns->values[i] = arguments[i].value;
			columns->nulls[i] = arguments[i].isnull;
		}
		return;
	}
	if (arguments->isnull)
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("a row must not be NULL")));
	row = DatumGetHeapTupleHeader(arguments->value);
	tuple = (HeapTupleData) {.t_len = HeapTupleHeaderGetDatumLength(row), .t_data = row};
	if (HeapTupleHeaderGetTypeId(row) != columns->fields->tdtypeid ||
		HeapTupleHeaderGetTypMod(row) != columns->fields->tdtypmod)
		ereport(ERROR, (errcode(ERRCODE_DATATYPE_MISMATCH), errmsg("all rows must have the same type")));
	heap_deform_tuple(&tuple, columns->fields, columns->values, columns->nulls);
}

Columns *
OpenColumns(FunctionCallInfo fcinfo, int plan, int first)
{
	Columns    *columns = palloc0(sizeof(Columns));
	bytea	   *given;
	char	   *words;
	uint64		n_columns;
	uint64		longest = 1;
	int			arguments = PG_NARGS() - first;

	if (PG_ARGISNULL(plan))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("the plan must not be NULL")));
	if (get_fn_expr_variadic(fcinfo->flinfo))
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED), errmsg("the columns must not be given as an array")));
	given = PG_GETARG_BYTEA_PP(plan);
	words = AllocateAligned(VARSIZE_ANY_EXHDR(given));
	memcpy(words, VARDATA_ANY(given), VARSIZE_ANY_EXHDR(given));
	if (encoding_open(&columns->plan, words, VARSIZE_ANY_EXHDR(given), palloc0) != SGD_OK ||
		columns->plan.n_columns < 2 || columns->plan.n_columns > MaxTupleAttributeNumber)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("the plan is corrupt")));
	n_columns = columns->plan.n_columns;
	columns->first = first;
	columns->values = palloc(n_columns * sizeof(Datum));
	columns->nulls = palloc(n_columns * sizeof(bool));
	if (arguments == 1 && !PG_ARGISNULL(first) && type_is_rowtype(get_fn_expr_argtype(fcinfo->flinfo, first)))
	{
		HeapTupleHeader row = PG_GETARG_HEAPTUPLEHEADER(first);

		columns->fields = lookup_rowtype_tupdesc_copy(HeapTupleHeaderGetTypeId(row), HeapTupleHeaderGetTypMod(row));
		arguments = columns->fields->natts;
	}
	if (arguments != n_columns)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the columns must be the %d of the plan, got %d", (int) n_columns, arguments)));
	columns->types = palloc(n_columns * sizeof(ColumnType));
	for (int i = 0; i < n_columns; i++)
	{
		struct encoding_column *column = columns->plan.columns + i;

		columns->types[i] = ResolveType(column, columns->fields == NULL ?
										get_fn_expr_argtype(fcinfo->flinfo, first + i)
										: TupleDescAttr(columns->fields, i)->atttypid);
		longest = Max(longest, column->length);
	}
	encoding_fill(&columns->plan, palloc0);
	columns->numbers = palloc(longest * sizeof(float8));
	columns->features = palloc(encoding_scratch(&columns->plan) * sizeof(float8));
	columns->packed = palloc(PROJECTED_ROWS * (1 + columns->plan.projected) * sizeof(float4));
	return columns;
}

int
EncodedWidth(const Columns *columns)
{
	return (int) columns->plan.width;
}

int
PackedWidth(const Columns *columns)
{
	return columns->plan.map == NULL ? EncodedWidth(columns) : 1 + (int) columns->plan.projected;
}

int
RowsAtOnce(const Columns *columns)
{
	return columns->plan.map == NULL ? 1 : PROJECTED_ROWS;
}

/* ---- values ------------------------------------------------------------------------------------------------- */

/* The plain cast of a numeric that is out of range is an error, and the message quotes it. */
static float8
NumericToDouble(Datum value)
{
	float8		number = DatumGetFloat8(DirectFunctionCall1(numeric_float8_no_overflow, value));

	if (number >= 1e308)
		return get_float8_infinity();
	if (number <= -1e308)
		return -get_float8_infinity();
	return fabs(number) < 1e-307 ? 0 : number;
}

static inline float8
NumberOf(Oid type, Datum value)
{
	switch (type)
	{
		case FLOAT4OID:
			return DatumGetFloat4(value);
		case FLOAT8OID:
			return DatumGetFloat8(value);
		case INT4OID:
			return DatumGetInt32(value);
		case INT8OID:
			return (float8) DatumGetInt64(value);
		case INT2OID:
			return DatumGetInt16(value);
		case BOOLOID:
			return DatumGetBool(value);
		default:
			return NumericToDouble(value);
	}
}

/* The code of what a value matches, -1 if it matches nothing. */
static int32
CodeOf(const struct encoding_lookup *lookup, const ColumnType *column, Datum value)
{
	struct varlena *given;
	int			length;

	if (column->is_enum)
		return encoding_find(lookup, DatumGetObjectId(value));
	if (column->type == INT8OID)
		return encoding_find(lookup, (uint64) DatumGetInt64(value));
	if (lookup->match == MATCH_INTEGER)
		return encoding_find(lookup, (uint64) (int64) NumberOf(column->type, value));
	if (lookup->match == MATCH_FLOAT)
		return encoding_find(lookup, encoding_float_key(NumberOf(column->type, value)));
	given = (struct varlena *) DatumGetPointer(value);
	/* What is too long to match is not fetched from where it is: anybody can see how often the server does that. */
	if (VARATT_IS_EXTERNAL(given) && column->type != BPCHAROID &&
		toast_raw_datum_size(value) > (Size) lookup->longest + VARHDRSZ)
		return -1;
	given = PG_DETOAST_DATUM_PACKED(value);
	length = VARSIZE_ANY_EXHDR(given);
	if (column->type == BPCHAROID)
		length = bpchartruelen(VARDATA_ANY(given), length);
	return encoding_find_text(lookup, VARDATA_ANY(given), length);
}

/* The numbers of an array of `type`, NULL as NaN; false if it has not one dimension of this length. */
static bool
NumbersOf(Oid type, Datum value, int length, float8 *numbers)
{
	NumberArray array = OpenArray(value);
	Datum	   *elements;
	bool	   *nulls;
	int16		size;
	bool		by_value;
	char		alignment;

	if (array.ndim != 1 || array.count != length)
		return false;
	if (type == FLOAT8OID || type == FLOAT4OID)
		ReadNumbers(&array, numbers);
	else
	{
		get_typlenbyvalalign(type, &size, &by_value, &alignment);
		deconstruct_array(DatumGetArrayTypeP(value), type, size, by_value, alignment, &elements, &nulls, &length);
		for (int i = 0; i < length; i++)
			numbers[i] = nulls[i] ? NAN : NumberOf(type, elements[i]);
		pfree(elements);
		pfree(nulls);
	}
	return true;
}

/* ---- encoding ----------------------------------------------------------------------------------------------- */

void
EncodeColumns(Columns *columns, FunctionCallInfo fcinfo, float4 *out)
{
	GetRow(columns, fcinfo);
	for (uint64 i = 0; i < columns->plan.n_columns; i++)
	{
		const struct encoding_column *column = columns->plan.columns + i;
		const ColumnType *given = columns->types + i;
		Datum		value = columns->values[i];
		bool		is_null = columns->nulls[i];
		float4	   *cells = out + column->at;

		if (column->kind == COLUMN_NUMBER)
		{
			float8		number = is_null ? NAN : NumberOf(given->type, value);

			*cells = encoding_number_cell(number, column->low, column->high, column->middle, column->half);
		}
		else if (column->kind != COLUMN_VECTOR)
			*cells = encoding_code_cell(column, is_null ? -1 : CodeOf(&column->lookup, given, value));
		else if (!is_null && NumbersOf(given->type, value, (int) column->length, columns->numbers))
			encoding_scale(column, columns->numbers, column->length, cells);
		else
			for (uint64 k = 0; k < column->length; k++)
				cells[k] = NAN;
	}
}

const float4 *
ProjectRows(Columns *columns, const float4 *encoded, int n_rows)
{
	if (columns->plan.map == NULL)
		return encoded;
	encoding_project(&columns->plan, encoded, n_rows, columns->features, columns->packed);
	return columns->packed;
}

/* The columns of a query whose plan is the same for every row are kept for the rest of it; others are read for each row. */
static Columns *
GetColumns(FunctionCallInfo fcinfo)
{
	Columns    *columns = fcinfo->flinfo->fn_extra;
	MemoryContext old;

	if (columns != NULL)
		return columns;
	if (!get_fn_expr_arg_stable(fcinfo->flinfo, 0))
		return OpenColumns(fcinfo, 0, 1);
	old = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
	fcinfo->flinfo->fn_extra = columns = OpenColumns(fcinfo, 0, 1);
	MemoryContextSwitchTo(old);
	return columns;
}

/* A packed row, as a block of one. */
PG_FUNCTION_INFO_V1(boltdp_pack_row);
Datum
boltdp_pack_row(PG_FUNCTION_ARGS)
{
	Columns    *columns = GetColumns(fcinfo);
	float4	   *encoded = palloc(EncodedWidth(columns) * sizeof(float4));
	int			width = PackedWidth(columns);
	ArrayType  *block = NewBlock(1, width);

	EncodeColumns(columns, fcinfo, encoded);
	memcpy(ARR_DATA_PTR(block), ProjectRows(columns, encoded, 1), width * sizeof(float4));
	PG_RETURN_ARRAYTYPE_P(block);
}
