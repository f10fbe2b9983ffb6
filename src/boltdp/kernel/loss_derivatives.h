/*
 * loss_derivatives.h: sums over all rows of the loss's gradient, of its Hessian times a direction, or of the Hessian
 * with respect to each weight vector, at fixed weights.
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
 *
 * The state is one flat block, so that any engine can carry it.
 */
#ifndef BOLTDP_LOSS_DERIVATIVES_H
#define BOLTDP_LOSS_DERIVATIVES_H

#include <stddef.h>
#include <stdint.h>

#define DERIVATIVES_MAGIC UINT64_C(0x366a626f746c6f62) /* "boltobj6" in memory on a little-endian machine */
#define DERIVATIVES_SUMMED_ROWS 1024                   /* rows that `partial` has room for */
#define DERIVATIVES_MAX_ROWS (UINT64_C(1) << 33)       /* and `high` and `low` */

/* What is summed. Of the Hessian only what stands from the diagonal to the right, for each weight vector. */
enum { DERIVATIVES_GRADIENT, DERIVATIVES_PRODUCT, DERIVATIVES_HESSIAN };
#define DERIVATIVES_MAX_HESSIAN_SLOTS 1024

/*
 * The header, then arrays of rows of `stride` numbers: the dense slots, zeros up to a multiple of 4, and the slots of
 * groups, with zeros up to a multiple of 4 again. There are V rows, one for each weight vector, and in the sums of a
 * Hessian V*stride. The feature map, if there is one, is at the end.
 */
struct derivatives_state {
    uint64_t magic;    /* DERIVATIVES_MAGIC */
    uint64_t bytes;    /* length of the whole block */
    uint64_t loss;     /* enum loss of losses.h: one that has a Hessian, but for the gradient */
    uint64_t cells;    /* of a row */
    uint64_t classes;  /* declared labels */
    uint64_t positive; /* margin losses: the class that is y = +1 */
    uint64_t kind;     /* DERIVATIVES_GRADIENT, DERIVATIVES_PRODUCT (of the Hessian and `direction`) or DERIVATIVES_HESSIAN */
    double parameter;  /* the number that shapes the loss, or 1: > 0, finite */
    double clip;       /* a row's gradient that is longer is shortened to this: > 0, infinite if none is; gradients only */
    uint64_t weighted; /* 1: each class has a weight, else 0, and all of them are 1 */
    uint64_t map_bytes;  /* bytes of the feature map; 0: none */
    uint64_t share;    /* rows are summed whose hash, 32 bits of it, is below this: at most 2^32, which is all */
    uint64_t waiting;  /* of these, in `partial`: below DERIVATIVES_SUMMED_ROWS */
    uint64_t summed;   /* rows in all, but neutral ones and those that the share leaves out */
    uint64_t unused[2]; /* zeros: the arrays start a cache line */
    double data[];     /* weights, direction; partial, high and low as whole numbers; then the dense numbers of 4 rows, the slots of their
                          groups, and 8*V scores, all zeros between calls; then the class weights, if there are any */
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

/* Everything that can be wrong with a block that claims to be a state. */
int derivatives_check(const void *state, size_t bytes);

/* Add packed float32 rows. */
int derivatives_add(void *state, size_t bytes, const float *rows, size_t n_rows, int build);

/* Add what another state of the same sum has: SGD_BAD_RECIPE if it is of another. */
int derivatives_join(void *state, size_t bytes, const void *other);

/* The sum, into out[V*slots]; the Hessian, both of its triangles, into out[V*slots*slots]. */
int derivatives_sum(const void *state, size_t bytes, double *out);

#endif
