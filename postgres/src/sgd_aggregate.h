/* sgd_aggregate.h: models that are fed rows, for the aggregates that feed them. */
#ifndef BOLTDP_SGD_AGGREGATE_H
#define BOLTDP_SGD_AGGREGATE_H

#include "postgres.h"

/* The models of one scan, and rows on their way to them. Lives in the aggregate's memory context. */
typedef struct Training
{
	size_t		n_models;
	void	  **models;			/* each a kernel state */
	size_t	   *bytes;			/* and its length */
	uint64		cells;			/* of a row */
	int			element;		/* enum sgd_element, of the rows gathered */
	size_t		row_bytes;
	size_t		used;			/* rows gathered */
	size_t		capacity;		/* and how many can be */
	char	   *rows;
} Training;

/* Copy the models, kernel states end to end, into the current memory context. */
Training   *OpenTraining(bytea *states, int element);

/* Feed rows to every model. */
void		FeedRows(Training *training, const char *rows, size_t n_rows);

/* The models as they are now, end to end. */
bytea	   *CopyModels(const Training *training);

#endif
