/* row_projection.c: see row_projection.h. */
#include "row_projection.h"

#include <math.h>

#include "sgd.h"

typedef double vec4 __attribute__((vector_size(32), aligned(8), may_alias));

#define AT(x, i) (*(const vec4 *) ((x) + (i)))
#define TILE_ROWS 4
#define TILE_COLUMNS 8

/* The guard's factor of a row of d features; the four sums are so that none waits for the last addition. */
static inline double compute_row_scale(const float *x, size_t d)
{
    double s[4] = {0};
    for (size_t k = 0; k < d; k++)
        s[k % 4] += (double) x[k] * (double) x[k];
    return sgd_row_scale((s[0] + s[1]) + (s[2] + s[3]), d);
}

/*
 * Four rows by eight outputs at a time, as many sums as stay in registers, so that the matrix is not loaded for every
 * row. Each output is a sum over the features in their order, whatever tile it is in: tiles may overlap at the edge.
 */
WIDEST void project_features(const float *rows, size_t n, size_t d, const double *matrix, size_t q, float *out)
{
    for (size_t i = 0; i < n; i += TILE_ROWS) {
        const size_t n_rows = n - i < TILE_ROWS ? n - i : TILE_ROWS;
        const float *x[TILE_ROWS];
        double scale[TILE_ROWS];
        for (size_t r = 0; r < TILE_ROWS; r++) {
            x[r] = rows + (i + (r < n_rows ? r : 0)) * (1 + d) + 1;
            scale[r] = compute_row_scale(x[r], d);
        }
        for (size_t j = 0; q >= TILE_COLUMNS && j < q; j += TILE_COLUMNS) {
            const size_t at = j + TILE_COLUMNS <= q ? j : q - TILE_COLUMNS;
            vec4 s00 = {0}, s01 = {0}, s10 = {0}, s11 = {0}, s20 = {0}, s21 = {0}, s30 = {0}, s31 = {0};
            for (size_t k = 0; k < d; k++) {
                const vec4 left = AT(matrix + k * q, at), right = AT(matrix + k * q, at + 4);
                const double v0 = scale[0] * (double) x[0][k], v1 = scale[1] * (double) x[1][k];
                const double v2 = scale[2] * (double) x[2][k], v3 = scale[3] * (double) x[3][k];
                s00 += v0 * left, s01 += v0 * right;
                s10 += v1 * left, s11 += v1 * right;
                s20 += v2 * left, s21 += v2 * right;
                s30 += v3 * left, s31 += v3 * right;
            }
            const vec4 sums[TILE_ROWS][2] = {{s00, s01}, {s10, s11}, {s20, s21}, {s30, s31}};
            for (size_t r = 0; r < n_rows; r++)
                for (size_t c = 0; c < TILE_COLUMNS; c++)
                    out[(i + r) * (1 + q) + 1 + at + c] = (float) sums[r][c / 4][c % 4];
        }
        for (size_t r = 0; r < n_rows; r++) {
            float *y = out + (i + r) * (1 + q) + 1;
            y[-1] = x[r][-1];
            for (size_t j = 0; q < TILE_COLUMNS && j < q; j++) {
                double sum = 0.0;
                for (size_t k = 0; k < d; k++)
                    sum += (scale[r] * (double) x[r][k]) * matrix[k * q + j];
                y[j] = (float) sum;
            }
            for (size_t j = 0; scale[r] == 0.0 && j < q; j++)
                y[j] = NAN;
        }
    }
}
