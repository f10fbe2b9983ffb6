/*
 * block_writer.c: writing packed rows into a temporary table, in blocks of one page, in a permuted order or as they come.
 *
 * A row's place follows from its position and the seed alone, so nothing is sorted: rows are put into their places in
 * memory, and what is more than the memory allows waits in temporary files, one for each range of places. The aggregates
 * write the table themselves: a set of blocks as large as the table would have to wait somewhere before it is stored.
 *
 * What they refuse: any table but the caller's own temporary one, of the right columns and with nothing attached to it;
 * more or fewer rows than were said. No message has a number of a row.
 */
#include "postgres.h"

#include <sys/mman.h>

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "arrays.h"
#include "catalog/pg_am.h"
#include "columns.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "aggregate_helpers.h"
#include "row_permutation.h"
#include "storage/buffile.h"
#include "utils/memutils.h"
#include "utils/rel.h"

/* Ranges of places, at most: each has a file. */
#define MAX_RANGES 65536

/* The size of a large page, on most systems. */
#define LARGE_PAGE (2 * 1024 * 1024)

/* Places that are computed at once. */
#define PLACES 1024

/* The table that is written, and the tuple that is: its block is filled in place. */
typedef struct Writer
{
	Relation	table;			/* NULL once it is closed */
	BulkInsertState bulk;
	int			width;			/* numbers of a row */
	int			block_rows;
	HeapTuple	tuple;
	char	   *start;			/* in the tuple: the position of the block's first row */
	char	   *block;			/* and its rows, which need not be aligned */
	int			capacity;		/* and how many of them fit */
	int64		written;		/* rows */
	MemoryContext scratch;		/* for storing one tuple */
} Writer;

/* Rows on their way to their places. Lives in the aggregate's memory context. */
typedef struct Packing
{
	Writer		writer;
	int64		met;			/* rows so far */
	bool		is_placed;		/* else they stay in the order in which they come */
	int64		total;			/* rows in all, if they are placed */
	int64		first;			/* those from here */
	int64		last;			/* to here, exclusive, are permuted, and the others stay */
	uint64		seed;
	int64		places[PLACES]; /* of rows from known_from on */
	int64		known_from;
	int			known;
	int64		range_rows;		/* places of a range */
	int			n_ranges;
	float4	   *range;			/* rows in their places; of the only range, or when all rows have been met */
	BufFile   **files;			/* of more than one: each row after its place */
	char	   *record;			/* such a row */
	Columns    *columns;		/* NULL where blocks are packed again */
	float4	   *waiting;		/* encoded rows that are to be projected together */
	int			n_waiting;
	int			filled;			/* rows of the block that is being filled with them as they come */
} Packing;

/* Memory that rows are scattered over: in large pages where the system has them, whose places it finds much sooner. */
static float4 *
AllocateRange(Size bytes)
{
	float4	   *range = MemoryContextAllocHuge(CurrentMemoryContext, bytes);

#ifdef MADV_HUGEPAGE
	char	   *first = (char *) TYPEALIGN(LARGE_PAGE, range);
	char	   *last = (char *) TYPEALIGN_DOWN(LARGE_PAGE, (char *) range + bytes);

	/* It is a wish: that it is not granted changes the speed alone. */
	if (first < last)
		(void) madvise(first, last - first, MADV_HUGEPAGE);
#endif
	return range;
}

/* ---- the table ---------------------------------------------------------------------------------------------- */

/* The caller's own temporary table of (start bigint, block real[]), to which nothing is attached that we would miss. */
static Relation
OpenTable(Oid oid)
{
	Relation	table = table_open(oid, RowExclusiveLock);
	Form_pg_class form = table->rd_rel;
	TupleDesc	columns = RelationGetDescr(table);

	if (form->relkind != RELKIND_RELATION || form->relpersistence != RELPERSISTENCE_TEMP ||
		RELATION_IS_OTHER_TEMP(table) || form->relowner != GetUserId() || form->relam != HEAP_TABLE_AM_OID ||
		form->relhasindex || form->relhasrules || form->relhastriggers || form->relchecks != 0 || form->relispartition ||
		form->relrowsecurity || columns->natts != 2 || TupleDescAttr(columns, 0)->atttypid != INT8OID ||
		TupleDescAttr(columns, 1)->atttypid != FLOAT4ARRAYOID || TupleDescAttr(columns, 0)->attisdropped ||
		TupleDescAttr(columns, 1)->attisdropped || columns->constr != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("rows must be packed into a temporary table of one's own, of a bigint and a real[]")));
	return table;
}

/* At the end, whatever becomes of the statement: the table does not stay open. */
static void
CloseTable(Datum packing)
{
	Writer	   *writer = &((Packing *) DatumGetPointer(packing))->writer;

	if (writer->table == NULL)
		return;
	FreeBulkInsertState(writer->bulk);
	table_close(writer->table, NoLock);
	writer->table = NULL;
}

/* Make a tuple with room for this many rows. */
static void
NewTuple(Writer *writer, int rows)
{
	ArrayType  *block = NewBlock(rows, writer->width);
	Datum		values[2] = {Int64GetDatum(0), PointerGetDatum(block)};
	bool		nulls[2] = {false, false};
	TupleDesc	columns = RelationGetDescr(writer->table);
	bool		null;

	if (writer->tuple != NULL)
		heap_freetuple(writer->tuple);
	writer->tuple = heap_form_tuple(columns, values, nulls);
	pfree(block);
	/* Of int8, whatever the platform: the first column follows the header, aligned. */
	writer->start = (char *) writer->tuple->t_data + writer->tuple->t_data->t_hoff;
	writer->block = (char *) OpenArray(heap_getattr(writer->tuple, 2, columns, &null)).data;
	writer->capacity = rows;
}

static void
OpenWriter(Writer *writer, Oid table, int width, int block_rows)
{
	if (block_rows < 1 || (int64) block_rows * width > MaxAllocSize / (int64) sizeof(float4) / 2)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a block must have at least 1 row and be within the size of a value, got %d", block_rows)));
	writer->width = width;
	writer->block_rows = block_rows;
	writer->table = OpenTable(table);
	writer->bulk = GetBulkInsertState();
	writer->scratch = AllocSetContextCreate(CurrentMemoryContext, "boltdp block", ALLOCSET_SMALL_SIZES);
	NewTuple(writer, block_rows);
}

/* Store the tuple, whose block has been filled. */
static void
StoreBlock(Writer *writer)
{
	MemoryContext old = MemoryContextSwitchTo(writer->scratch);

	CHECK_FOR_INTERRUPTS();
	memcpy(writer->start, &writer->written, sizeof(writer->written));
	heap_insert(writer->table, writer->tuple, GetCurrentCommandId(true), HEAP_INSERT_SKIP_FSM, writer->bulk);
	writer->written += writer->capacity;
	MemoryContextSwitchTo(old);
	MemoryContextReset(writer->scratch);
}

/* Store rows that lie end to end. */
static void
StoreRows(Writer *writer, const float4 *rows, int64 n_rows)
{
	for (int64 at = 0; at < n_rows; at += writer->capacity)
	{
		if (n_rows - at < writer->capacity)
			NewTuple(writer, (int) (n_rows - at));
		memcpy(writer->block, rows + at * writer->width, (Size) writer->capacity * writer->width * sizeof(float4));
		StoreBlock(writer);
	}
}

/* ---- places ------------------------------------------------------------------------------------------------- */

/* Where the row at a position goes. */
static int64
PlaceOf(Packing *packing, int64 position)
{
	if (position < packing->first || position >= packing->last)
		return position;
	if (position < packing->known_from || position >= packing->known_from + packing->known)
	{
		packing->known_from = position;
		packing->known = (int) Min(PLACES, packing->last - position);
		permutation_apply((uint64) (position - packing->first), packing->known,
						  (uint64) (packing->last - packing->first), packing->seed, packing->places);
	}
	return packing->first + packing->places[position - packing->known_from];
}

/* Have room for the rows, in memory or in files, one for each range of places. */
static void
OpenPlaces(Packing *packing, int64 memory)
{
	Size		row_bytes = packing->writer.width * sizeof(float4);
	int64		blocks = Max(1, memory / (int64) (row_bytes * packing->writer.block_rows));

	packing->range_rows = blocks * packing->writer.block_rows;
	if (packing->range_rows >= packing->total)
	{
		packing->range_rows = packing->total;
		packing->n_ranges = 1;
		packing->range = AllocateRange(packing->total * row_bytes);
		return;
	}
	if ((packing->total - 1) / packing->range_rows >= MAX_RANGES)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the memory must hold at least one row in %d", MAX_RANGES)));
	packing->n_ranges = (int) ((packing->total - 1) / packing->range_rows) + 1;
	packing->files = palloc0(packing->n_ranges * sizeof(BufFile *));
	for (int i = 0; i < packing->n_ranges; i++)
		packing->files[i] = BufFileCreateTemp(false);
	packing->record = palloc(sizeof(int64) + row_bytes);
}

/* Put the next row where it belongs. */
static void
PutRow(Packing *packing, const float4 *row)
{
	Writer	   *writer = &packing->writer;
	Size		row_bytes = writer->width * sizeof(float4);
	int64		place;

	if (!packing->is_placed)
	{
		memcpy(writer->block + packing->filled * row_bytes, row, row_bytes);
		packing->met++;
		packing->filled++;
		if (packing->filled == writer->capacity)
		{
			StoreBlock(writer);
			packing->filled = 0;
		}
		return;
	}
	if (packing->met >= packing->total)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("there must be " INT64_FORMAT " rows, got more", packing->total)));
	place = PlaceOf(packing, packing->met++);
	if (packing->n_ranges == 1)
		memcpy(packing->range + place * writer->width, row, row_bytes);
	else
	{
		memcpy(packing->record, &place, sizeof(place));
		memcpy(packing->record + sizeof(place), row, row_bytes);
		BufFileWrite(packing->files[place / packing->range_rows], packing->record, sizeof(place) + row_bytes);
	}
}

/* The rows of a range, from its file to their places. */
static void
ReadRange(Packing *packing, int range, int64 n_rows)
{
	Size		row_bytes = packing->writer.width * sizeof(float4);
	BufFile    *file = packing->files[range];

	if (BufFileSeek(file, 0, 0, SEEK_SET) != 0)
		ereport(ERROR, (errcode_for_file_access(), errmsg("could not rewind a temporary file")));
	for (int64 i = 0; i < n_rows; i++)
	{
		int64		place;

		if (i % PLACES == 0)
			CHECK_FOR_INTERRUPTS();
		if (BufFileRead(file, packing->record, sizeof(place) + row_bytes) != sizeof(place) + row_bytes)
			ereport(ERROR, (errcode_for_file_access(), errmsg("could not read from a temporary file")));
		memcpy(&place, packing->record, sizeof(place));
		memcpy(packing->range + (place - range * packing->range_rows) * packing->writer.width,
			   packing->record + sizeof(place), row_bytes);
	}
	BufFileClose(file);
}

/* All rows have been met: store those that wait. */
static void
StoreWaitingRows(Packing *packing)
{
	Writer	   *writer = &packing->writer;

	if (!packing->is_placed)
	{
		Size		bytes = (Size) packing->filled * writer->width * sizeof(float4);
		float4	   *rest = palloc(bytes + 1);

		memcpy(rest, writer->block, bytes);
		StoreRows(writer, rest, packing->filled);
		return;
	}
	if (packing->met != packing->total)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("there must be " INT64_FORMAT " rows, got " INT64_FORMAT, packing->total, packing->met)));
	if (packing->n_ranges > 1)
		packing->range = AllocateRange(packing->range_rows * writer->width * sizeof(float4));
	for (int range = 0; range < packing->n_ranges; range++)
	{
		int64		n_rows = Min(packing->range_rows, packing->total - range * packing->range_rows);

		if (packing->files != NULL)
			ReadRange(packing, range, n_rows);
		StoreRows(writer, packing->range, n_rows);
	}
}

/* ---- the aggregates ----------------------------------------------------------------------------------------- */

/*
 * A new packing, in the current memory context. The arguments from `order` on say how many rows there are, NULL if they stay
 * in the order in which they come, the seed of the permutation, NULL for one that nobody knows, and bytes of memory.
 */
static Packing *
OpenPacking(FunctionCallInfo fcinfo, int width, int order)
{
	Packing    *packing = palloc0(sizeof(Packing));
	Oid			table = DatumGetObjectId(RequiredArgument(fcinfo, 1, "the table"));
	int			block_rows = DatumGetInt32(RequiredArgument(fcinfo, order - 1, "the rows of a block"));
	int64		memory = DatumGetInt64(RequiredArgument(fcinfo, order + 2, "the memory"));

	AggRegisterCallback(fcinfo, CloseTable, PointerGetDatum(packing));
	OpenWriter(&packing->writer, table, width, block_rows);
	packing->is_placed = !PG_ARGISNULL(order);
	if (!packing->is_placed)
		return packing;
	packing->total = PG_GETARG_INT64(order);
	if (packing->total < 1 || packing->total > INT64CONST(1) << 40)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the number of rows must be from 1 to 2^40, got " INT64_FORMAT, packing->total)));
	packing->last = packing->total;
	if (!PG_ARGISNULL(order + 1))
		packing->seed = (uint64) PG_GETARG_INT64(order + 1);
	else if (!pg_strong_random(&packing->seed, sizeof(packing->seed)))
		ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not generate a random seed")));
	OpenPlaces(packing, memory);
	return packing;
}

/* Project the encoded rows that wait, and put them where they belong. */
static void
PutWaiting(Packing *packing)
{
	const float4 *rows = ProjectRows(packing->columns, packing->waiting, packing->n_waiting);

	for (int i = 0; i < packing->n_waiting; i++)
		PutRow(packing, rows + (Size) i * packing->writer.width);
	packing->n_waiting = 0;
}

/* (table, plan, rows of a block, total, seed, memory, columns ...) */
PG_FUNCTION_INFO_V1(boltdp_pack_columns);
Datum
boltdp_pack_columns(PG_FUNCTION_ARGS)
{
	Packing    *packing;

	/* Only this function makes such a pointer, so where there is one, all has been checked. */
	if (PG_ARGISNULL(0))
	{
		MemoryContext old = MemoryContextSwitchTo(AggregateContext(fcinfo, "pack"));
		Columns    *columns = OpenColumns(fcinfo, 2, 7);

		packing = OpenPacking(fcinfo, PackedWidth(columns), 4);
		packing->columns = columns;
		packing->waiting = palloc(RowsAtOnce(columns) * EncodedWidth(columns) * sizeof(float4));
		MemoryContextSwitchTo(old);
	}
	else
		packing = (Packing *) PG_GETARG_POINTER(0);
	EncodeColumns(packing->columns, fcinfo, packing->waiting + packing->n_waiting * EncodedWidth(packing->columns));
	packing->n_waiting++;
	if (packing->n_waiting == RowsAtOnce(packing->columns))
		PutWaiting(packing);
	PG_RETURN_POINTER(packing);
}

/* (table, rows of a block, total, seed, memory, first, last, start, block): blocks of a table, packed in a new order */
PG_FUNCTION_INFO_V1(boltdp_repack_block);
Datum
boltdp_repack_block(PG_FUNCTION_ARGS)
{
	Packing    *packing;
	NumberArray block;
	int			width;

	if (PG_ARGISNULL(0))
	{
		MemoryContext old = MemoryContextSwitchTo(AggregateContext(fcinfo, "repack"));

		block = OpenArray(RequiredArgument(fcinfo, 9, "a block of rows"));
		if (block.ndim != 2 || block.dims[1] < 2)
			ereport(ERROR,
					(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
					 errmsg("a block must have two dimensions and rows of at least 2 numbers, got %d and %d", block.ndim,
							block.dims[1])));
		packing = OpenPacking(fcinfo, block.dims[1], 3);
		RequiredArgument(fcinfo, 3, "the number of rows");
		packing->first = DatumGetInt64(RequiredArgument(fcinfo, 6, "the first position"));
		packing->last = DatumGetInt64(RequiredArgument(fcinfo, 7, "the last position"));
		if (packing->first < 0 || packing->first >= packing->last || packing->last > packing->total)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("positions must have 0 <= first < last <= " INT64_FORMAT ", got " INT64_FORMAT " and "
							INT64_FORMAT, packing->total, packing->first, packing->last)));
		MemoryContextSwitchTo(old);
	}
	else
		packing = (Packing *) PG_GETARG_POINTER(0);
	width = packing->writer.width;
	block = OpenBlock(fcinfo, 9, width - 1);
	/* In order and without a gap, every place is taken once. */
	if (DatumGetInt64(RequiredArgument(fcinfo, 8, "the start of a block")) != packing->met)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("blocks must come in order, without a gap")));
	for (int i = 0; i < block.dims[0]; i++)
		PutRow(packing, (const float4 *) (block.data + (Size) i * width * sizeof(float4)));
	PG_RETURN_POINTER(packing);
}

/* How many rows were written; NULL if there were none. */
PG_FUNCTION_INFO_V1(boltdp_pack_final);
Datum
boltdp_pack_final(PG_FUNCTION_ARGS)
{
	Packing    *packing;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	packing = (Packing *) PG_GETARG_POINTER(0);
	if (packing->n_waiting > 0)
		PutWaiting(packing);
	StoreWaitingRows(packing);
	CloseTable(PointerGetDatum(packing));
	PG_RETURN_INT64(packing->met);
}
