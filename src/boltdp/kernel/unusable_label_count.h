/*
 * unusable_label_count.h: how many rows have no usable label: a missing one, or no declared class, or no number.
 *
 * Rows are packed float32 as in sgd.h. Where persons are protected, rows beyond their limit are neutral, and are not
 * counted: those whose cells are all as in a given row, NaN being equal to NaN. So one row changes the count by at most
 * 1, and a neutral row adds the same whatever it stands for.
 */
#ifndef BOLTDP_UNUSABLE_LABEL_COUNT_H
#define BOLTDP_UNUSABLE_LABEL_COUNT_H

#include "sum_state.h"

struct unusable_label_count_state {
    struct sum_state sum;
    uint64_t classes;      /* at most SGD_MAX_CLASSES; 0: usable labels are numbers from -1 to 1 */
    uint64_t skip_neutral; /* 1: rows with the cells of `neutral` are not counted; 0: all are */
    uint64_t count;
    float neutral[];       /* the cells of a neutral row, or zeros; then one zero if they are odd in number */
};

/* Bytes of a state; 0 if a number is out of range, or if there is a feature map: it reads cells as they are. */
uint64_t unusable_label_count_bytes(uint64_t cells, uint64_t classes, const void *map);

/* The state before the first row. `neutral`: the cells of a row that is not counted, or NULL. */
int unusable_label_count_init(void *state, size_t bytes, uint64_t cells, uint64_t classes, const void *map,
                              const float *neutral);

/* Count n labels, as those of rows; SGD_BAD_RECIPE if the cells of rows matter. */
int unusable_label_count_add_labels(void *state, size_t bytes, const float *labels, size_t n);

#endif
