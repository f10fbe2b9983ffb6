/* packing.h: making packed rows (sgd.h) out of columns, projecting them and putting them in a permuted order. */
#ifndef BOLTDP_PACKING_H
#define BOLTDP_PACKING_H

#include <stddef.h>
#include <stdint.h>

/*
 * Cells (feature_map.h) of any number of columns:
 *
 *     PACK_NUMBERS  `width` numbers a row, packing_cell() of each
 *     PACK_STEPS    of a number, how many of `count` increasing places are at or below it, compared in double
 *     PACK_CODES    of a whole number x, codes[x - base], or x - base without codes; `count` of them
 *
 * What is not valid, no number, not one of the codes or a code below 0 is written as `missing`.
 */
enum packing_kind { PACK_NUMBERS, PACK_STEPS, PACK_CODES };
enum packing_type {
    PACK_INT8,
    PACK_INT16,
    PACK_INT32,
    PACK_INT64,
    PACK_UINT8,
    PACK_UINT16,
    PACK_UINT32,
    PACK_UINT64,
    PACK_FLOAT32,
    PACK_FLOAT64,
    PACK_BOOL /* bits, the lowest of a byte first, as in Arrow */
};

struct packing_column {
    uint64_t kind;           /* enum packing_kind */
    uint64_t type;           /* enum packing_type; for codes no float */
    const void *values;
    const uint8_t *validity; /* bits; NULL if all are valid, as those of width above 1 must be */
    uint64_t offset;         /* of the first row: the number of rows before it in both */
    uint64_t at;             /* where its cells stand in a row */
    uint64_t width;          /* how many they are: 1 but for numbers */
    uint64_t count;
    const double *places;
    const int32_t *codes;
    int64_t base;
    double low, high;
    double missing;
};

void packing_pack(const struct packing_column *columns, size_t n_columns, size_t n, float *out, size_t stride);

/* A number from -1 to 1, by its bounds; NaN stays NaN. */
static inline float packing_cell(double x, double low, double high)
{
    x = x < low ? low : x;
    x = x > high ? high : x;
    x = (x - (low + high) / 2.0) / ((high - low) / 2.0);
    /* The middle of bounds that have no number between them is one of them. */
    x = x < -1.0 ? -1.0 : x;
    x = x > 1.0 ? 1.0 : x;
    return (float) x;
}

/* Rows of `width` numbers, moved whole: out[i] = rows[places[i]], and its inverse, out[places[i]] = rows[i]. */
void packing_take(const float *rows, const int64_t *places, size_t n, size_t width, float *out);
void packing_put(const float *rows, const int64_t *places, size_t n, size_t width, float *out);

/*
 * Whether a row is in a sample of about share / 2^32 of all rows, by a hash of its bytes: whatever its place is, it is
 * or is not; and those of n rows that are, moved to `out`, which has room for all of them; the result is their number.
 */
int packing_is_sampled(const float *row, size_t width, uint64_t share);
size_t packing_sample(const float *rows, size_t n, size_t width, uint64_t share, float *out);

/*
 * Sort rows by the bucket of their positions, 2^shift (up to 2^32) positions to each, keeping the order of those in one
 * bucket. order[k] is which row comes k-th, slots[k] its position within its bucket, counts[b] how many go to bucket b;
 * all positions are within the buckets.
 */
void packing_sort(const int64_t *positions, size_t n, int shift, size_t n_buckets, int64_t *order, uint32_t *slots,
               int64_t *counts);

/*
 * Packed float32 rows of d features to packed rows of q: the label is copied, the features are scaled by the row
 * guard's factor and multiplied by the d x q matrix. Feature by feature in order, so one sum has one association.
 * A row that the guard makes neutral gets NaN features, so that it stays neutral.
 */
void packing_project(const float *rows, size_t n, size_t d, const double *matrix, size_t q, float *out);

/*
 * A bijection of 0 .. rows-1 from a 64-bit seed, the same on every machine: where row `start + i` goes, and its
 * inverse: which row stands at position `start + i`. The caller keeps start + n <= rows <= 2^62.
 */
void packing_permuted(uint64_t start, size_t n, uint64_t rows, uint64_t seed, int64_t *out);
void packing_source(uint64_t start, size_t n, uint64_t rows, uint64_t seed, int64_t *out);

/* The sum of n floats: reads memory as fast as it can be read, the yardstick of the benchmark. */
float packing_read(const float *numbers, size_t n);

#endif
