/*
 * drawn_sgd_aggregate.c: SGD over drawn rows, in the order of the draw, as an aggregate around the kernel: for batches drawn at random.
 *
 * One scan of all blocks, in order, puts each drawn row where the draw wants it; then the rows are fed as they lie. What
 * it refuses, beside what sgd_aggregate.c does: positions without a row, blocks that come out of order. Positions are as secret as
 * the rows: no message has one.
 */
#include "postgres.h"

#include "arrays.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "sgd.h"
#include "aggregate_helpers.h"
#include "sgd_aggregate.h"
#include "utils/memutils.h"

/* Rows are fed this many bytes at a time: in between, the statement can be cancelled. */
#define FEED_BYTES (1 << 20)

/* Bits of a position that one step of the sort looks at. */
#define DIGIT_BITS 11
#define DIGITS (1 << DIGIT_BITS)

/* A position that was drawn, and when. */
typedef struct Draw
{
	int64		position;
	int64		ordinal;
} Draw;

/* The models, the draws, and the rows on their way to their places. Lives in the aggregate's memory context. */
typedef struct Drawing
{
	Training   *training;
	size_t		n_positions;	/* ends of batches included */
	int64	   *positions;		/* among `rows`, or SGD_BATCH_END */
	char	   *rows;			/* in the order of the draw */
	size_t		n_draws;		/* rows that are drawn */
	Draw	   *draws;			/* by position */
	size_t		done;			/* of them, those whose row has come */
	int64		next;			/* the least position that the next block may have */
} Drawing;

/* Sort by position, digit by digit from the lowest; `room` is for as many. Returns where the result is: here or there. */
static Draw *
SortDraws(Draw *draws, Draw *room, size_t count)
{
	int64		largest = 0;

	for (size_t i = 0; i < count; i++)
		largest = Max(largest, draws[i].position);
	for (int shift = 0; shift < 63 && largest >> shift > 0; shift += DIGIT_BITS)
	{
		size_t		starts[DIGITS + 1] = {0};
		Draw	   *sorted = room;

		for (size_t i = 0; i < count; i++)
			starts[1 + ((draws[i].position >> shift) & (DIGITS - 1))]++;
		for (int digit = 0; digit < DIGITS; digit++)
			starts[digit + 1] += starts[digit];
		for (size_t i = 0; i < count; i++)
			sorted[starts[(draws[i].position >> shift) & (DIGITS - 1)]++] = draws[i];
		room = draws;
		draws = sorted;
	}
	return draws;
}

/* The drawing of the models and the positions, which are in the form of int8send, end to end. */
static Drawing *
OpenDrawing(FunctionCallInfo fcinfo)
{
	MemoryContext old = MemoryContextSwitchTo(AggregateContext(fcinfo, "sgd_drawn"));
	bytea	   *models = DatumGetByteaPP(RequiredArgument(fcinfo, 1, "the models"));
	bytea	   *positions = DatumGetByteaPP(RequiredArgument(fcinfo, 2, "the positions"));
	Drawing    *drawing = palloc0(sizeof(Drawing));
	const char *from = VARDATA_ANY(positions);
	size_t		row_bytes;
	Draw	   *draws;
	Draw	   *room;

	drawing->training = OpenTraining(models, SGD_FLOAT32);
	row_bytes = drawing->training->row_bytes;
	if (VARSIZE_ANY_EXHDR(positions) % sizeof(int64) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("positions must have 8 bytes each")));
	drawing->n_positions = VARSIZE_ANY_EXHDR(positions) / sizeof(int64);
	drawing->positions = MemoryContextAllocHuge(CurrentMemoryContext, (drawing->n_positions + 1) * sizeof(int64));
	draws = MemoryContextAllocHuge(CurrentMemoryContext, (drawing->n_positions + 1) * sizeof(Draw));
	for (size_t i = 0; i < drawing->n_positions; i++)
	{
		uint64		sent;
		int64		position;

		memcpy(&sent, from + i * sizeof(sent), sizeof(sent));
		position = (int64) pg_ntoh64(sent);
		if (position < SGD_BATCH_END)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("a position must be at least 0, or -1 for the end of a batch, got one below")));
		drawing->positions[i] = SGD_BATCH_END;
		if (position != SGD_BATCH_END)
		{
			drawing->positions[i] = (int64) drawing->n_draws;
			draws[drawing->n_draws++] = (Draw) {position, drawing->positions[i]};
		}
	}
	drawing->rows = (char *) TYPEALIGN(CACHE_LINE, MemoryContextAllocHuge(CurrentMemoryContext,
																		   drawing->n_draws * row_bytes + CACHE_LINE));
	room = MemoryContextAllocHuge(CurrentMemoryContext, (drawing->n_draws + 1) * sizeof(Draw));
	drawing->draws = SortDraws(draws, room, drawing->n_draws);
	pfree(drawing->draws == draws ? room : draws);
	MemoryContextSwitchTo(old);
	return drawing;
}

/* One tuple is a block of packed rows, the first of them at `start`: put those that were drawn where they are wanted. */
PG_FUNCTION_INFO_V1(boltdp_sgd_drawn_block);
Datum
boltdp_sgd_drawn_block(PG_FUNCTION_ARGS)
{
	/* Only this function makes such a pointer, so where there is one, all has been checked. */
	Drawing    *drawing = PG_ARGISNULL(0) ? OpenDrawing(fcinfo) : (Drawing *) PG_GETARG_POINTER(0);
	size_t		row_bytes = drawing->training->row_bytes;
	NumberArray block = OpenBlock(fcinfo, 4, drawing->training->cells);
	int64		start = DatumGetInt64(RequiredArgument(fcinfo, 3, "the start of a block"));

	/* In order, no row can come twice, and no draw can be left without one unnoticed. */
	if (start < drawing->next || start > PG_INT64_MAX - block.dims[0])
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("blocks must start at 0 or later, and come in order without a row twice")));
	drawing->next = start + block.dims[0];
	while (drawing->done < drawing->n_draws)
	{
		Draw		draw = drawing->draws[drawing->done];

		if (draw.position >= drawing->next)
			break;
		if (draw.position < start)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("a drawn position must have a row")));
		memcpy(drawing->rows + draw.ordinal * row_bytes, block.data + (draw.position - start) * row_bytes, row_bytes);
		drawing->done++;
	}
	PG_RETURN_POINTER(drawing);
}

/* Feed the rows; the models after them, end to end, or NULL when there were no blocks. */
PG_FUNCTION_INFO_V1(boltdp_sgd_drawn_final);
Datum
boltdp_sgd_drawn_final(PG_FUNCTION_ARGS)
{
	Drawing    *drawing;
	Training   *training;
	size_t		at_once;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	drawing = (Drawing *) PG_GETARG_POINTER(0);
	training = drawing->training;
	if (drawing->done < drawing->n_draws)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("a drawn position must have a row")));
	at_once = Max(1, FEED_BYTES / training->row_bytes);
	for (size_t fed = 0; fed < drawing->n_positions; fed += at_once)
	{
		CHECK_FOR_INTERRUPTS();
		CheckCode(sgd_run(training->models, training->bytes, training->n_models, drawing->rows, drawing->n_draws,
								drawing->positions + fed, Min(at_once, drawing->n_positions - fed), SGD_FLOAT32,
								SGD_FASTEST));
	}
	PG_RETURN_BYTEA_P(CopyModels(training));
}
