/*
 * misclassification.h: how many rows each of several models gets wrong, counted where the rows are.
 *
 * Rows are packed float32 as in sgd.h. A model with one weight vector w chooses class 1 where <w, x> > 0, else class 0;
 * one with a vector a class chooses the first whose <w, x> is greatest. It is wrong where that is not the row's class.
 * Rows longer than 1 are shortened in training, which is a positive factor and changes no choice: it is not done here.
 *
 * A row whose features are not all finite, or whose label is no declared class, is an error of every model: nobody can
 * be right about it, and one row still changes each count by at most 1.
 *
 * With a feature map (feature_map.h) the weights are those of its slots, and a row may have any cells. Every <w, x> is
 * summed from the first number to the last, the dense ones first, so that every build gives the same counts.
 */
#ifndef BOLTDP_MISCLASSIFICATION_H
#define BOLTDP_MISCLASSIFICATION_H

#include "sum_state.h"

#define MISCLASSIFICATION_MAX_VECTORS (UINT64_C(1) << 24) /* of all models together */

struct misclassification_state {
    struct sum_state sum;
    uint64_t classes; /* declared labels: 2 .. SGD_MAX_CLASSES */
    uint64_t models;  /* 1 .. */
    uint64_t vectors; /* weight vectors of a model: 1 or classes */
    uint64_t data[];  /* counts[models]; then double weights[models * vectors * slots]; then, where there is a feature map,
                         scratch that is zero between calls: the dense numbers of 8 rows, twice, and the slots of their
                         groups, two in a number */
};

/* Bytes of a state; 0 if a number is out of range. The feature map is NULL if there is none. */
uint64_t misclassification_bytes(uint64_t cells, uint64_t classes, uint64_t models, uint64_t vectors, const void *map);

/* The state before the first row. */
int misclassification_init(void *state, size_t bytes, uint64_t cells, uint64_t classes, uint64_t models, uint64_t vectors,
                const void *map, const double *weights);

#endif
