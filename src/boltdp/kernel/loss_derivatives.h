/*
 * loss_derivatives.h: sums over all rows of the loss's gradient, of its Hessian times a direction, of the Hessian
 * with respect to each weight vector, or of the outer products of the gradients, at fixed weights.
 *
 * What a solver needs that looks for the exact minimiser; and gradient descent, which wants each row's gradient
 * clipped. Rows are packed float32 as in sgd.h, with the same guard: scaled into the unit ball, and without a
 * derivative where a number is not finite or the label not declared. Each class may have a weight of at most 1, which
 * its rows' losses are multiplied by, before anything is clipped. With a feature map (feature_map.h), weights and sums
 * are those of its slots; without one, every cell is a feature, and a slot.
 *
 * THE ORDER OF ROWS DOES NOT MATTER. Each number that a row adds is rounded to a multiple of 2^-50, and such numbers
 * are added exactly, as whole numbers: how rows are ordered and cut, and which of several states they are added to
 * before these are joined, changes no bit; replacing a row replaces its own terms and nothing else
 * (privacy/events/objective_perturbation.md, section 5).
 */
#ifndef BOLTDP_LOSS_DERIVATIVES_H
#define BOLTDP_LOSS_DERIVATIVES_H

#include "sparse_rows.h"
#include "sum_state.h"

#define DERIVATIVES_SUMMED_ROWS 1024 /* rows that `partial` has room for */

/* What is summed. Of a matrix only what stands from the diagonal to the right, for each weight vector. */
enum { DERIVATIVES_GRADIENT, DERIVATIVES_PRODUCT, DERIVATIVES_HESSIAN, DERIVATIVES_OUTER };
#define DERIVATIVES_MAX_HESSIAN_SLOTS 1024

/*
 * The header, then arrays of rows of `stride` numbers: the dense slots, zeros up to a multiple of 4, and the slots of
 * groups, with zeros up to a multiple of 4 again. There are V rows, one for each weight vector, and in the sums of a
 * Hessian V*stride. The feature map, if there is one, is at the end.
 */
struct derivatives_state {
    struct sum_state sum; /* of its rows, neutral ones and those that the share leaves out are not counted */
    uint64_t loss;        /* enum loss of losses.h; where it has kinks, second derivatives are in its unit */
    uint64_t classes;     /* declared labels */
    uint64_t positive;    /* margin losses: the class that is y = +1 */
    uint64_t kind;        /* DERIVATIVES_GRADIENT, DERIVATIVES_PRODUCT (of the Hessian and `direction`),
                             DERIVATIVES_HESSIAN, or of a loss with one weight vector DERIVATIVES_OUTER */
    double parameter;     /* the number that shapes the loss, or 1: > 0, finite */
    double clip;          /* a longer gradient of a row is shortened to this: > 0; infinite if none is, as for Hessians */
    uint64_t weighted;    /* 1: each class has a weight, else 0, and all of them are 1 */
    uint64_t share;       /* rows are summed whose hash, 32 bits of it, is below this: at most 2^32, which is all */
    uint64_t unused[2];   /* zeros: the arrays start a cache line */
    uint64_t waiting;     /* of the summed rows, in `partial`: below DERIVATIVES_SUMMED_ROWS */
    double data[];        /* partial, high and low as whole numbers; weights, direction; then the dense numbers of 4 rows,
                             the slots of their groups, and 8*V scores, all zeros between calls; then the class weights,
                             if there are any */
};

/* Bytes of a state; 0 if a number is out of range. The feature map is NULL if there is none. */
uint64_t derivatives_bytes(uint64_t loss, uint64_t cells, uint64_t classes, uint64_t positive, uint64_t kind,
                         uint64_t weighted, const void *map);

/*
 * The state before the first row. weights have V numbers for each slot, and for a product direction too, no longer than
 * 1 in all; else it is NULL. class_weights have a number for each class, or are NULL where `weighted` is 0.
 */
int derivatives_init(void *state, size_t bytes, uint64_t loss, uint64_t cells, uint64_t classes, uint64_t positive,
                   uint64_t kind, uint64_t weighted, const void *map, double parameter, double clip, uint64_t share,
                   const double *weights, const double *direction, const double *class_weights);

/*
 * Add sparse rows to the sum of a vector over all rows, whose map they fit (sparse_rows.h); SGD_CORRUPT if they do not,
 * and SGD_BAD_RECIPE for other sums.
 */
int derivatives_add_sparse(void *state, size_t bytes, const struct sparse_rows *rows);

/* The sum, into out[V*slots]; a matrix, both of its triangles, into out[V*slots*slots]. */
int derivatives_sum(const void *state, size_t bytes, double *out);

#endif
