/* packed_rows.c: see packed_rows.h. */
#include "packed_rows.h"

#include <math.h>
#include <string.h>

#include "sgd.h"

/* ---- rows to other places ----------------------------------------------------------------------------------- */

/* This many rows later, the row that is needed has arrived in the cache. */
#define AHEAD 8

void packing_take(const float *rows, const int64_t *places, size_t n, size_t width, float *out)
{
    for (size_t i = 0; i < n; i++) {
        if (i + AHEAD < n)
            for (size_t k = 0; k < width; k += 16)
                __builtin_prefetch(rows + (size_t) places[i + AHEAD] * width + k);
        memcpy(out + i * width, rows + (size_t) places[i] * width, width * sizeof *out);
    }
}

void packing_put(const float *rows, const int64_t *places, size_t n, size_t width, float *out)
{
    for (size_t i = 0; i < n; i++) {
        if (i + AHEAD < n)
            for (size_t k = 0; k < width; k += 16)
                __builtin_prefetch(out + (size_t) places[i + AHEAD] * width + k, 1);
        memcpy(out + (size_t) places[i] * width, rows + i * width, width * sizeof *out);
    }
}

/* Four hashes take turns, so that none waits for the one before. */
int packing_is_sampled(const float *row, size_t width, uint64_t share)
{
    uint64_t hashes[4] = {1, 2, 3, 4}, words[4];
    if (share > UINT32_MAX)
        return 1;
    for (; width >= 8; row += 8, width -= 8) {
        memcpy(words, row, sizeof words);
        for (int turn = 0; turn < 4; turn++)
            hashes[turn] = packing_mix(hashes[turn], words[turn]);
    }
    memset(words, 0, sizeof words);
    memcpy(words, row, width * sizeof *row);
    for (int turn = 0; turn < 4; turn++)
        hashes[turn] = packing_mix(hashes[turn], words[turn]);
    for (int turn = 1; turn < 4; turn++)
        hashes[0] = packing_mix(hashes[0], hashes[turn]);
    return (hashes[0] * PACKING_MULTIPLIER) >> 32 < share;
}

size_t packing_sample(const float *rows, size_t n, size_t width, uint64_t share, float *out)
{
    size_t taken = 0;
    for (size_t i = 0; i < n; i++)
        if (packing_is_sampled(rows + i * width, width, share))
            memcpy(out + taken++ * width, rows + i * width, width * sizeof *out);
    return taken;
}

void packing_sort(const int64_t *positions, size_t n, int shift, size_t n_buckets, int64_t *order, uint32_t *slots,
               int64_t *counts)
{
    memset(counts, 0, n_buckets * sizeof *counts);
    for (size_t i = 0; i < n; i++)
        counts[(uint64_t) positions[i] >> shift]++;
    int64_t end = 0;
    for (size_t b = 0; b < n_buckets; b++) {
        const int64_t count = counts[b];
        counts[b] = end;
        end += count;
    }
    for (size_t i = 0; i < n; i++) {
        const uint64_t bucket = (uint64_t) positions[i] >> shift;
        const int64_t at = counts[bucket]++;
        order[at] = (int64_t) i;
        slots[at] = (uint32_t) ((uint64_t) positions[i] - (bucket << shift));
    }
    /* Now they are where each bucket ends. */
    for (size_t b = n_buckets - 1; b > 0; b--)
        counts[b] -= counts[b - 1];
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
WIDEST void packing_project(const float *rows, size_t n, size_t d, const double *matrix, size_t q, float *out)
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

/* Positions that are turned side by side: no step of one waits for a step of another. */
#define LANES 8

static inline __attribute__((always_inline)) void turn(const struct feistel *f, uint64_t *positions, int forward)
{
    uint64_t low[LANES], high[LANES];
    for (int k = 0; k < LANES; k++) {
        low[k] = positions[k] & f->low_mask;
        high[k] = positions[k] >> f->low_bits;
    }
    for (int i = 0; i < ROUNDS; i++) {
        const int round = forward ? i : ROUNDS - 1 - i;
        const uint64_t key = f->keys[round];
        if (round % 2 == 0)
            for (int k = 0; k < LANES; k++)
                low[k] ^= mix(high[k] ^ key) & f->low_mask;
        else
            for (int k = 0; k < LANES; k++)
                high[k] ^= mix(low[k] ^ key) & f->high_mask;
    }
    for (int k = 0; k < LANES; k++)
        positions[k] = high[k] << f->low_bits | low[k];
}

/* Each lane takes the next position as soon as its own is inside. */
static inline __attribute__((always_inline)) void turn_all(uint64_t start, size_t n, uint64_t rows, uint64_t seed,
                                                           int64_t *out, int forward)
{
    const struct feistel f = feistel(rows, seed);
    uint64_t positions[LANES];
    size_t places[LANES], next = 0, left = n;
    for (int k = 0; k < LANES; k++) {
        places[k] = next < n ? next : n;
        positions[k] = next < n ? start + next++ : 0;
    }
    while (left > 0) {
        turn(&f, positions, forward);
        for (int k = 0; k < LANES; k++)
            if (positions[k] < rows && places[k] < n) {
                out[places[k]] = (int64_t) positions[k];
                left--;
                places[k] = next < n ? next : n;
                positions[k] = next < n ? start + next++ : 0;
            }
    }
}

void packing_permuted(uint64_t start, size_t n, uint64_t rows, uint64_t seed, int64_t *out)
{
    turn_all(start, n, rows, seed, out, 1);
}

void packing_source(uint64_t start, size_t n, uint64_t rows, uint64_t seed, int64_t *out)
{
    turn_all(start, n, rows, seed, out, 0);
}

/* ---- the yardstick ------------------------------------------------------------------------------------------ */

WIDEST float packing_read(const float *numbers, size_t n)
{
    float sums[32] = {0};
    for (size_t i = 0; i + 32 <= n; i += 32)
        for (size_t k = 0; k < 32; k++)
            sums[k] += numbers[i + k];
    for (size_t k = 1; k < 32; k++)
        sums[0] += sums[k];
    return sums[0];
}
