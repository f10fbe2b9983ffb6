/* packed_rows.h: projecting packed rows (sgd.h), sampling them and putting them in a permuted order. */
#ifndef BOLTDP_PACKING_H
#define BOLTDP_PACKING_H

#include <stddef.h>
#include <stdint.h>

/* Other compilers and processors get the portable loops; the bits are the same, since no sum changes its order. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define WIDEST __attribute__((target_clones("avx2", "default")))
#else
#define WIDEST
#endif

/* A hash that has seen a word more. */
#define PACKING_MULTIPLIER UINT64_C(0x9fb21c651e98df25)
static inline uint64_t packing_mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * PACKING_MULTIPLIER;
    return hash ^ hash >> 32;
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
