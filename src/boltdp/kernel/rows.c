/* rows.c: see rows.h. */
#include "rows.h"

#include <math.h>

#include "sgd.h"

/* Other compilers and processors get the portable loops; the bits are the same, since no sum changes its order. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define WIDEST __attribute__((target_clones("avx2", "default")))
#else
#define WIDEST
#endif

static inline float pack(double x, double low, double high, double middle, double factor)
{
    x = x < low ? low : x;
    x = x > high ? high : x;
    return x == x ? (float) ((x - middle) * factor) : 0.0f;
}

void rows_pack_float32(const float *cells, size_t n, size_t width, float *out, size_t stride, double low, double high,
                       const double *middle, const double *factor)
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < width; k++)
            out[i * stride + k] = pack((double) cells[i * width + k], low, high, middle[k], factor[k]);
}

void rows_pack_float64(const double *cells, size_t n, size_t width, float *out, size_t stride, double low, double high,
                       const double *middle, const double *factor)
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < width; k++)
            out[i * stride + k] = pack(cells[i * width + k], low, high, middle[k], factor[k]);
}

static inline void pack_steps(double x, float *out, size_t count, const double *places, const float *absent,
                              const float *present)
{
    for (size_t k = 0; k < count; k++)
        out[k] = x != x ? 0.0f : x >= places[k] ? present[k] : absent[k];
}

void rows_pack_steps_float32(const float *cells, size_t n, float *out, size_t stride, size_t count,
                             const double *places, const float *absent, const float *present)
{
    for (size_t i = 0; i < n; i++)
        pack_steps((double) cells[i], out + i * stride, count, places, absent, present);
}

void rows_pack_steps_float64(const double *cells, size_t n, float *out, size_t stride, size_t count,
                             const double *places, const float *absent, const float *present)
{
    for (size_t i = 0; i < n; i++)
        pack_steps(cells[i], out + i * stride, count, places, absent, present);
}

void rows_pack_categories(const int32_t *codes, size_t n, float *out, size_t stride, int32_t count,
                          const float *absent, const float *present)
{
    for (size_t i = 0; i < n; i++) {
        float *row = out + i * stride;
        for (int32_t k = 0; k < count; k++)
            row[k] = absent[k];
        if (codes[i] >= 0 && codes[i] < count)
            row[codes[i]] = present[codes[i]];
    }
}

/* ---- projection -------------------------------------------------------------------------------------------- */

typedef double vec4 __attribute__((vector_size(32), aligned(8), may_alias));
#define AT(x, i) (*(const vec4 *) ((x) + (i)))
#define TILE_ROWS 4
#define TILE_COLUMNS 8

/* The guard's factor of a row of d features; the four sums are so that none waits for the last addition. */
static inline double scale_of(const float *x, size_t d)
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
WIDEST void rows_project(const float *rows, size_t n, size_t d, const double *matrix, size_t q, float *out)
{
    for (size_t i = 0; i < n; i += TILE_ROWS) {
        const size_t n_rows = n - i < TILE_ROWS ? n - i : TILE_ROWS;
        const float *x[TILE_ROWS];
        double scale[TILE_ROWS];
        for (size_t r = 0; r < TILE_ROWS; r++) {
            x[r] = rows + (i + (r < n_rows ? r : 0)) * (1 + d) + 1;
            scale[r] = scale_of(x[r], d);
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

/* ---- the permutation ---------------------------------------------------------------------------------------- */

/*
 * A Feistel network on the smallest 2^bits >= rows, whose halves may differ by one bit: eight times, one half is
 * combined by exclusive or with a keyed hash of the other. Positions outside 0 .. rows-1 are fed back until they are
 * inside (cycle walking): fewer than two turns on average, and still a bijection.
 */
#define ROUNDS 8

struct feistel {
    uint64_t rows, low_mask, high_mask, keys[ROUNDS];
    int low_bits;
};

/* The finaliser of splitmix64: every input bit moves every output bit. */
static inline uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static struct feistel feistel(uint64_t rows, uint64_t seed)
{
    struct feistel f = {.rows = rows};
    int bits = 0;
    while ((UINT64_C(1) << bits) < rows)
        bits++;
    f.low_bits = bits / 2;
    f.low_mask = (UINT64_C(1) << f.low_bits) - 1;
    f.high_mask = (UINT64_C(1) << (bits - f.low_bits)) - 1;
    for (int i = 0; i < ROUNDS; i++)
        f.keys[i] = mix(seed + (uint64_t) (i + 1) * UINT64_C(0x9e3779b97f4a7c15));
    return f;
}

static inline uint64_t turn(const struct feistel *f, uint64_t position, int forward)
{
    do {
        uint64_t low = position & f->low_mask, high = position >> f->low_bits;
        for (int i = 0; i < ROUNDS; i++) {
            int round = forward ? i : ROUNDS - 1 - i;
            if (round % 2 == 0)
                low ^= mix(high ^ f->keys[round]) & f->low_mask;
            else
                high ^= mix(low ^ f->keys[round]) & f->high_mask;
        }
        position = high << f->low_bits | low;
    } while (position >= f->rows);
    return position;
}

void rows_permuted(uint64_t start, size_t n, uint64_t rows, uint64_t seed, int64_t *out)
{
    const struct feistel f = feistel(rows, seed);
    for (size_t i = 0; i < n; i++)
        out[i] = (int64_t) turn(&f, start + i, 1);
}

void rows_source(uint64_t start, size_t n, uint64_t rows, uint64_t seed, int64_t *out)
{
    const struct feistel f = feistel(rows, seed);
    for (size_t i = 0; i < n; i++)
        out[i] = (int64_t) turn(&f, start + i, 0);
}

/* ---- the yardstick ------------------------------------------------------------------------------------------ */

WIDEST float rows_read(const float *numbers, size_t n)
{
    float sums[32] = {0};
    for (size_t i = 0; i + 32 <= n; i += 32)
        for (size_t k = 0; k < 32; k++)
            sums[k] += numbers[i + k];
    for (size_t k = 1; k < 32; k++)
        sums[0] += sums[k];
    return sums[0];
}
