/* states.h: what the aggregates around the kernel have in common. */
#ifndef BOLTDP_STATES_H
#define BOLTDP_STATES_H

#include "postgres.h"

#include "sgd.h"

/* Kernel vectors that straddle two cache lines are slow to load. */
#define CACHE_LINE 64

/* Refuse what the kernel refuses. */
static inline void
CheckCode(int code)
{
	if (code != SGD_OK)
		ereport(ERROR,
				(errcode(code == SGD_CORRUPT ? ERRCODE_DATA_CORRUPTED : ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s", sgd_error_text(code))));
}

/* Zeroed memory that starts a cache line. */
static inline void *
AllocateAligned(size_t bytes)
{
	return (void *) TYPEALIGN(CACHE_LINE, palloc0(bytes + CACHE_LINE));
}

#endif
