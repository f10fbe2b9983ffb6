/* rows.h: making packed rows (sgd.h) out of columns, projecting them and putting them in a permuted order. */
#ifndef BOLTDP_ROWS_H
#define BOLTDP_ROWS_H

#include <stddef.h>
#include <stdint.h>

/*
 * Numbers, `width` in a row: out[i*stride + k] = float32((clip(cells[i*width + k], low, high) - middle[k]) * factor[k]),
 * in double; NaN becomes 0.
 */
void rows_pack_float32(const float *cells, size_t n, size_t width, float *out, size_t stride, double low, double high,
                       const double *middle, const double *factor);
void rows_pack_float64(const double *cells, size_t n, size_t width, float *out, size_t stride, double low, double high,
                       const double *middle, const double *factor);

/*
 * Steps of a number: out[i*stride + k] = present[k] where cells[i] >= places[k], else absent[k], compared in double; all of
 * them 0 where the cell is NaN. Places lie inside the bounds of a column, so that clipping the cell would change nothing.
 */
void rows_pack_steps_float32(const float *cells, size_t n, float *out, size_t stride, size_t count,
                             const double *places, const float *absent, const float *present);
void rows_pack_steps_float64(const double *cells, size_t n, float *out, size_t stride, size_t count,
                             const double *places, const float *absent, const float *present);

/* out[i*stride + k] = absent[k], but present[k] where k is codes[i]; a code outside 0 .. count-1 is none of them. */
void rows_pack_categories(const int32_t *codes, size_t n, float *out, size_t stride, int32_t count,
                          const float *absent, const float *present);

/*
 * Packed float32 rows of d features to packed rows of q: the label is copied, the features are scaled by the row
 * guard's factor and multiplied by the d x q matrix. Feature by feature in order, so one sum has one association.
 * A row that the guard makes neutral gets NaN features, so that it stays neutral.
 */
void rows_project(const float *rows, size_t n, size_t d, const double *matrix, size_t q, float *out);

/*
 * A bijection of 0 .. rows-1 from a 64-bit seed, the same on every machine: where row `start + i` goes, and its
 * inverse: which row stands at position `start + i`. The caller keeps start + n <= rows <= 2^62.
 */
void rows_permuted(uint64_t start, size_t n, uint64_t rows, uint64_t seed, int64_t *out);
void rows_source(uint64_t start, size_t n, uint64_t rows, uint64_t seed, int64_t *out);

/* The sum of n floats: reads memory as fast as it can be read, the yardstick of the benchmark. */
float rows_read(const float *numbers, size_t n);

#endif
