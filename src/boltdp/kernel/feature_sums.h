/*
 * feature_sums.h: sums over all rows of the features, and of their squares, which centre and scale them later.
 *
 * Rows are packed float32 as in sgd.h, and read by a feature map in which a number stands as it is, a category is 1
 * where it is the row's, and steps are all of one height, above or below zero. Features are clipped to [-1, 1], and
 * rows shortened to the radius; a row without a feature map that has a NaN adds nothing. Labels play no part.
 *
 * Each term is rounded by itself to a whole multiple of 1/FEATURE_SUMS_UNIT, and whole numbers are added exactly:
 * replacing a row changes nothing but its own terms. The sums are those of slots (feature_map.h), of which
 * `feature_sums.py` makes those of features.
 */
#ifndef BOLTDP_FEATURE_SUMS_H
#define BOLTDP_FEATURE_SUMS_H

#include "sum_state.h"

#define FEATURE_SUMS_UNIT 1048576.0 /* 2^20 */

struct feature_sums_state {
    struct sum_state sum;
    double radius;      /* > 0 */
    uint64_t unused[2]; /* zeros */
    double data[];      /* sums[slots], squares[slots], in units; then scratch that is zero between calls: the dense
                           numbers of a row, rounded up to a multiple of 4, and half as many numbers as there are groups */
};

/* Bytes of a state; 0 if a number is out of range. The feature map is NULL if there is none. */
uint64_t feature_sums_bytes(uint64_t cells, const void *map);

/* The state before the first row. */
int feature_sums_init(void *state, size_t bytes, uint64_t cells, const void *map, double radius);

#endif
