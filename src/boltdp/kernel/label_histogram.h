/*
 * label_histogram.h: how many rows have a label, a number from -1 to 1, in each of equal bins of that interval.
 *
 * Rows are packed float32 as in sgd.h. Bin i has the labels from -1 + 2i/bins on, without the next such edge; the last one
 * has 1 too. The bins are a power of two, so that a label is compared with the edges exactly. A row whose label is missing
 * or outside of the interval is in no bin.
 */
#ifndef BOLTDP_LABEL_HISTOGRAM_H
#define BOLTDP_LABEL_HISTOGRAM_H

#include "sum_state.h"

#define LABEL_HISTOGRAM_MAX_BINS 65536

struct label_histogram_state {
    struct sum_state sum;
    uint64_t bins;     /* a power of two, 2 .. LABEL_HISTOGRAM_MAX_BINS */
    uint64_t counts[]; /* of each bin */
};

/* Bytes of a state; 0 if a number is out of range, or if there is a feature map: it reads no cells. */
uint64_t label_histogram_bytes(uint64_t cells, uint64_t bins, const void *map);

/* The state before the first row. */
int label_histogram_init(void *state, size_t bytes, uint64_t cells, uint64_t bins, const void *map);

#endif
