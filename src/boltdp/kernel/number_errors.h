/*
 * number_errors.h: how far each of several models is from labels that are numbers, summed where the rows are.
 *
 * Rows are packed float32 as in sgd.h, labels are read by the feature map (losses.h), and scores are of rows that are
 * scaled into the unit ball, as in training. The error of a row is NAME_error of the loss over `whole`, but at most 1,
 * in whole multiples of 2^-NUMBER_ERROR_BITS; that of a row without a usable label is 1. So one row changes each sum by
 * at most 1, and the sums are exact.
 */
#ifndef BOLTDP_NUMBER_ERRORS_H
#define BOLTDP_NUMBER_ERRORS_H

#include "sum_state.h"

#define NUMBER_ERROR_BITS 20
#define NUMBER_ERRORS_MAX_MODELS (UINT64_C(1) << 24)

struct number_errors_state {
    struct sum_state sum;
    uint64_t loss;    /* enum loss: one that predicts a number */
    uint64_t models;  /* 1 .. */
    double parameter; /* the number that shapes the loss, or 1: > 0, finite */
    double whole;     /* the error that counts as 1: > 0, finite */
    uint64_t data[];  /* sums[models]; then double weights[models * slots], and scratch that is zero between calls: the
                         dense slots of a row, its groups, two in a number, and a score for each model */
};

/* Bytes of a state; 0 if a number is out of range. The feature map is NULL if there is none. */
uint64_t number_errors_bytes(uint64_t cells, uint64_t loss, uint64_t models, const void *map);

/* The state before the first row. */
int number_errors_init(void *state, size_t bytes, uint64_t cells, uint64_t loss, uint64_t models, const void *map,
                       double parameter, double whole, const double *weights);

#endif
