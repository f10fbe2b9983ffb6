/*
 * sgd.h: permutation-based SGD over packed rows, as one flat state that any engine can carry.
 *
 * What it does: minimises a loss of losses.h with the update
 *
 *     w_t = Project( (1 - eta_t*lambda) * w_{t-1} - (eta_t/|B_t|) * sum over B_t of grad phi(w_{t-1}; z_i) ),   w_0 = 0
 *
 * over the rows in the order they are fed, in blocks of any length: the same rows give the same bits however they are
 * cut. In a weighted recipe the loss of a row is multiplied by the weight of its class, at most 1. What it refuses: to
 * do I/O, to keep anything outside the state, to follow a corrupt state. It allocates only for a scan of rows too wide
 * for the stack (above a thousand features), and frees it again.
 *
 * A recipe may ask for noise in every update, - eta_t * noise_t beside the gradients above: what white-box algorithms
 * do. It comes from ChaCha20 with the state's key and the number of the update, so that each update has its own and
 * nothing is kept between them (gaussian_noise.md). The product's own algorithm adds none here.
 *
 * A packed row is the class index (0, 1, ...), then its cells. A state may have a feature map (feature_map.h), which
 * makes features of cells, and then rows are float32; without one the cells are the features, float32 or float64.
 *
 * THE SAME BITS FROM EVERY BUILD. Sums have one written association (sgd_loops.h), exp is our own, nothing is
 * contracted into a fused multiply-add. Compile with -ffp-contract=off, never with -ffast-math. C99 plus GNU vector
 * types.
 */
#ifndef BOLTDP_SGD_H
#define BOLTDP_SGD_H

#include <stddef.h>
#include <stdint.h>

#define SGD_MAGIC UINT64_C(0x31646773746c6f62) /* "boltsgd1" in memory on a little-endian machine */
#define SGD_VERSION 4

/* Other compilers and processors get the portable loops; the bits are the same, since no sum changes its order. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define WIDEST __attribute__((target_clones("avx2", "default")))
#else
#define WIDEST
#endif

enum sgd_growth { SGD_NONE = 0, SGD_LINEAR = 1, SGD_SQRT = 2 };
enum sgd_noise { SGD_NOISELESS = 0, SGD_GAUSSIAN = 1, SGD_SPHERICAL = 2 };
enum sgd_element { SGD_FLOAT32 = 0, SGD_FLOAT64 = 1 };
enum sgd_build { SGD_FASTEST = 0, SGD_PORTABLE = 1, SGD_AVX2 = 2 };

enum sgd_error {
    SGD_OK = 0,
    SGD_BAD_RECIPE,  /* a number of the recipe is outside its range */
    SGD_CORRUPT,     /* the block is not a state, or contradicts itself */
    SGD_UNALIGNED,   /* the state is not aligned to 8 bytes, or the rows to their element */
    SGD_WIDTHS,      /* the states of one scan read different rows, or read them differently */
    SGD_FINISHED,    /* more rows than the passes have left */
    SGD_NO_MEMORY,   /* a row too wide for the stack, and no memory for it */
    SGD_BAD_ELEMENT, /* not an enum sgd_element */
    SGD_BAD_BUILD,   /* not a build, or one that this machine cannot run */
    SGD_BAD_POSITION /* a drawn row outside the rows */
};

/* What is run: public numbers only. */
struct sgd_recipe {
    uint64_t loss;     /* enum loss of losses.h */
    uint64_t dims;     /* features of a row: 1 .. SGD_MAX_DIMS */
    uint64_t classes;  /* declared labels, 0 .. classes-1; a row with another is neutral: 2 .. SGD_MAX_CLASSES */
    uint64_t positive; /* margin losses: the class that is y = +1; every other declared class is y = -1 */
    uint64_t rows;     /* m: 1 .. 2^48 */
    uint64_t batches;  /* n, updates of a pass: 1 .. m. Batch j is rows floor(j*m/n) .. floor((j+1)*m/n)-1 */
    uint64_t passes;   /* k: 1 .. , n*k at most 2^53 and m*k at most 2^62 */
    uint64_t averaged; /* the result is the mean of this many last iterates: 1 .. n*k */
    uint64_t growth;   /* enum sgd_growth: eta_t = min(cap, scale / (0, t or sqrt(t) + offset)), t = 1, 2, ... */
    double scale;      /* > 0, finite; eta_1 * n * k at most 1e100, so that no weight can overflow */
    double offset;     /* >= 0, finite; 1 for a constant step */
    double cap;        /* > 0, may be infinite */
    double parameter;  /* the number that shapes the loss, or 1: > 0, finite */
    double lambda;     /* >= 0, finite; eta_1 * lambda at most 2 */
    double radius;     /* R > 0; infinite: no projection */
    uint64_t marked;   /* 1: a batch ends at SGD_BATCH_END and has any number of rows, n batches are a pass, and their
                          sums are divided by m/n; else 0 */
    uint64_t noise;    /* enum sgd_noise. Joint losses: in the subspace where the vectors sum to zero, of (V-1)*dims */
    double deviation;  /* the scale of the noise: 1e-100 or more, eta_1 * n * k times it times the number of weights at
                          most 1e100; 0 without noise */
    uint64_t weighted; /* 1: each class has a weight, else 0, and all of them are 1 */
};

#define SGD_MAX_DIMS (UINT64_C(1) << 24)
#define SGD_MAX_CLASSES (UINT64_C(1) << 24) /* a float32 label is exact up to here */

/*
 * The state: this header, then five arrays, and the feature map if there is one. Vectors have a stride of dims rounded
 * up to a multiple of 4, and zeros at the end; V is the number of weight vectors: 1 for margin losses, for joint ones
 * one for each class, class after class.
 *
 *     double weights[V*stride];  the last iterate, without a row that waits
 *     double total[V*stride];    the sum of the iterates to be averaged so far; zeros while averaged = 1
 *     double step[V*stride];     what the rows of the batch in progress, and its noise, will add to the weights. Margin
 *                                losses with one-row batches, no radius, noise or marks: the row that waits for a
 *                                second if `row` is odd
 *     double aside[];            4 numbers, the first three the waiting row's scale with its sign, weight and y; for joint
 *                                losses 4 * (classes rounded up to a multiple of 4), scratch that is zero
 *                                between calls
 *     double class_weights[];    one for each class, above 0 and at most 1; none if the recipe is not weighted
 */
struct sgd_state {
    uint64_t magic;   /* SGD_MAGIC; also fails on a machine of the other byte order */
    uint64_t version; /* SGD_VERSION */
    uint64_t bytes;   /* length of the whole block */
    struct sgd_recipe recipe;
    uint64_t updates; /* t: updates done */
    uint64_t row;     /* rows done in this pass: 0 .. m-1, or, in a marked recipe, any number up to 2^62 */
    uint64_t left;    /* rows the batch in progress still wants: 1 .. its size; marked: 0 */
    uint64_t carry;   /* (j*m) mod n of the batch j in progress: the batches' sizes follow without big products;
                         marked: 0 */
    uint64_t drawn;   /* 1 if `step` has the noise of the batch in progress, which is so from its first row on */
    uint64_t key[4];  /* of the noise; zeros without any. As secret as the rows */
    uint64_t map_bytes; /* bytes of the feature map, which is at the end of the block; 0: none */
    double data[];
};

/*
 * Bytes of the state of a recipe and a feature map, or NULL; 0 if dims, classes or `weighted` are out of range, or if
 * the map downweights long rows: the recursion is for those that are shortened.
 */
uint64_t sgd_bytes(const struct sgd_recipe *recipe, const void *map);

/*
 * Write the state before the first row. `bytes` must be sgd_bytes(recipe, map), the key 32 bytes, or NULL without
 * noise, and class_weights one number a class, or NULL in a recipe that is not weighted.
 */
int sgd_init(void *state, size_t bytes, const struct sgd_recipe *recipe, const void *key, const double *class_weights,
             const void *map);

/* Cells of the rows that a sound state reads. */
uint64_t sgd_cells(const void *state);

/* Everything that can be wrong with a block that claims to be a state. */
int sgd_check(const void *state, size_t bytes);

/*
 * Feed the packed rows at n positions, in their order, to several models in one scan; with NULL, the first n rows.
 * Nothing is changed unless all of it can be done. SGD_BATCH_END among the positions is no row: it ends a batch of a
 * marked recipe, and nothing else does. Models of other recipes take it for a neutral row.
 */
#define SGD_BATCH_END INT64_C(-1)
int sgd_run(void *const *states, const size_t *bytes, size_t n_states, const void *rows, size_t n_rows,
                  const int64_t *positions, size_t n, int element, int build);

/* The mean of the last `averaged` iterates, into out[D]. Meaningful once the passes are done. */
int sgd_weights(const void *state, size_t bytes, double *out);

/* 1 if this machine can run the build. */
int sgd_has_build(int build);

/* Whether these can be the weights of this many classes: all above 0 and at most 1. */
int sgd_class_weights_are_sound(const double *class_weights, uint64_t classes);

/* What an error code means, in words without a value. */
const char *sgd_error_text(int code);

/* Eight blocks of ChaCha20, word w of block i at out[8*w + i], from the input of the first: the source of the noise. */
int sgd_chacha20(const uint32_t start[16], uint32_t out[8 * 16], int build);

/* ln(x) of a positive normal number, within 4 units in the last place: the logarithm of the samplers. */
double sgd_log(double x);

/* 2^(u/256), within 1.5 units in the last place for |u| <= 256*1020 and clamped there: the exp of every loss. */
double sgd_exp2_256ths(double u);

/* The factor s for a row with this sum of squares, such that ||s*x|| <= 1; 0 for a row that must be neutral. */
double sgd_row_scale(double sum_of_squares, uint64_t dims);

/* The sum of n floats: reads memory as fast as it can be read, the yardstick of the benchmark. */
float sgd_read_memory(const float *numbers, size_t n);

#endif
