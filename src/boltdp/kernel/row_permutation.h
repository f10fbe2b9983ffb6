/* row_permutation.h: the permutation of rows by a seed, and the copying of packed rows (sgd.h) to their new positions. */
#ifndef BOLTDP_ROW_PERMUTATION_H
#define BOLTDP_ROW_PERMUTATION_H

#include <stddef.h>
#include <stdint.h>

/*
 * A bijection of 0 .. rows-1 from a 64-bit seed, the same on every machine: where row `start + i` goes, and its
 * inverse: which row goes to position `start + i`. The caller keeps start + n <= rows <= 2^62.
 */
void permutation_apply(uint64_t start, size_t n, uint64_t rows, uint64_t seed, int64_t *out);
void permutation_invert(uint64_t start, size_t n, uint64_t rows, uint64_t seed, int64_t *out);

/* Copy rows of `width` numbers: out[i] = rows[positions[i]], and its inverse, out[positions[i]] = rows[i]. */
void permutation_take(const float *rows, const int64_t *positions, size_t n, size_t width, float *out);
void permutation_put(const float *rows, const int64_t *positions, size_t n, size_t width, float *out);

/*
 * Sort rows by the bucket of their positions, 2^shift (up to 2^32) positions to each, keeping the order of those in one
 * bucket. order[k] is which row comes k-th, slots[k] its position within its bucket, counts[b] how many go to bucket b;
 * all positions are within the buckets.
 */
void permutation_sort(const int64_t *positions, size_t n, int shift, size_t n_buckets, int64_t *order,
                      uint32_t *slots, int64_t *counts);

#endif
