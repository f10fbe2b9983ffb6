/*
 * objective.h: sums over all rows of the loss's gradient, of its Hessian times a direction, or of the Hessian with
 * respect to each weight vector, at fixed weights.
 *
 * What a solver needs that looks for the exact minimiser; and gradient descent, which wants each row's gradient clipped.
 * Rows are packed float32 as in sgd.h, with the same guard:
 * scaled into the unit ball, and without a derivative where a number is not finite or the label not declared. Each
 * class may have a weight of at most 1, which its rows' losses are multiplied by, before anything is clipped. The
 * state is one flat block, so that any engine can carry it. Feeding the rows in blocks of any length gives the same
 * bits, from every build, within a bound (privacy/objective.md, section 5).
 */
#ifndef BOLTDP_OBJECTIVE_H
#define BOLTDP_OBJECTIVE_H

#include <stddef.h>
#include <stdint.h>

#define OBJECTIVE_MAGIC UINT64_C(0x346a626f746c6f62) /* "boltobj4" in memory on a little-endian machine */
#define OBJECTIVE_SUMMED_ROWS 256                    /* rows added up before they join the compensated total */

/* What is summed. Of the Hessian only what stands from the diagonal to the right, for each weight vector. */
enum { OBJECTIVE_GRADIENT, OBJECTIVE_PRODUCT, OBJECTIVE_HESSIAN };
#define OBJECTIVE_MAX_HESSIAN_DIMS 256

/*
 * The header, then arrays of rows of `stride` numbers (dims rounded up to a multiple of 4, zeros there): V rows, one
 * for each weight vector, and in the sums of a Hessian V*dims.
 */
struct objective_state {
    uint64_t magic;    /* OBJECTIVE_MAGIC */
    uint64_t bytes;    /* length of the whole block */
    uint64_t loss;     /* enum loss of losses.h: one that has a Hessian, but for the gradient */
    uint64_t dims;     /* features of a row */
    uint64_t classes;  /* declared labels */
    uint64_t positive; /* margin losses: the class that is y = +1 */
    uint64_t kind;     /* OBJECTIVE_GRADIENT, OBJECTIVE_PRODUCT (of the Hessian and `direction`) or OBJECTIVE_HESSIAN */
    double parameter;  /* the number that shapes the loss, or 1: > 0, finite */
    double clip;       /* a row's gradient that is longer is shortened to this: > 0, infinite if none is; gradients only */
    uint64_t weighted; /* 1: each class has a weight, else 0, and all of them are 1 */
    uint64_t waiting;  /* rows in `partial`: 0 .. OBJECTIVE_SUMMED_ROWS - 1 */
    uint64_t unused[5]; /* zeros: the arrays start a cache line */
    double data[];     /* weights, direction, partial, total, lost; then one row of `stride`, and 2*V scores; then the
                          class weights, if there are any */
};

/* Bytes of a state; 0 if a number is out of range. */
uint64_t objective_bytes(uint64_t loss, uint64_t dims, uint64_t classes, uint64_t positive, uint64_t kind,
                         uint64_t weighted);

/*
 * The state before the first row. weights have V*dims numbers, and for a product direction too; else it is NULL.
 * class_weights have a number a class, or are NULL where `weighted` is 0.
 */
int objective_init(void *state, size_t bytes, uint64_t loss, uint64_t dims, uint64_t classes, uint64_t positive,
                   uint64_t kind, uint64_t weighted, double parameter, double clip, const double *weights,
                   const double *direction, const double *class_weights);

/* Everything that can be wrong with a block that claims to be a state. */
int objective_check(const void *state, size_t bytes);

/* Add packed float32 rows. */
int objective_add(void *state, size_t bytes, const float *rows, size_t n_rows, int build);

/* The sum, into out[V*dims]; the Hessian, both of its triangles, into out[V*dims*dims]. */
int objective_sum(const void *state, size_t bytes, double *out);

#endif
