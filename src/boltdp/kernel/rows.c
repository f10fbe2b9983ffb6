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

void rows_pack_float32(const float *column, size_t n, float *out, size_t stride, double low, double high, double factor)
{
    double middle = (low + high) / 2;
    for (size_t i = 0; i < n; i++)
        out[i * stride] = pack((double) column[i], low, high, middle, factor);
}

void rows_pack_float64(const double *column, size_t n, float *out, size_t stride, double low, double high, double factor)
{
    double middle = (low + high) / 2;
    for (size_t i = 0; i < n; i++)
        out[i * stride] = pack(column[i], low, high, middle, factor);
}

void rows_pack_categories(const int32_t *codes, size_t n, float *out, size_t stride, int32_t count, float value)
{
    for (size_t i = 0; i < n; i++) {
        float *row = out + i * stride;
        for (int32_t k = 0; k < count; k++)
            row[k] = 0.0f;
        if (codes[i] >= 0 && codes[i] < count)
            row[codes[i]] = value;
    }
}

/* ---- projection -------------------------------------------------------------------------------------------- */

#define COLUMNS 16 /* outputs summed side by side: as many as stay in registers */

WIDEST void rows_project(const float *rows, size_t n, size_t d, const double *matrix, size_t q, float *out)
{
    for (size_t i = 0; i < n; i++) {
        const float *x = rows + i * (1 + d) + 1;
        float *y = out + i * (1 + q) + 1;
        double squares = 0.0;
        for (size_t k = 0; k < d; k++)
            squares += (double) x[k] * (double) x[k];
        double scale = sgd_row_scale(squares, d);
        y[-1] = x[-1];
        for (size_t j = 0; j < q; j += COLUMNS) {
            double sums[COLUMNS] = {0};
            size_t width = COLUMNS < q - j ? COLUMNS : q - j;
            for (size_t k = 0; k < d; k++) {
                double value = scale * (double) x[k];
                const double *entries = matrix + k * q + j;
                if (width == COLUMNS)
                    for (size_t c = 0; c < COLUMNS; c++)
                        sums[c] += value * entries[c];
                else
                    for (size_t c = 0; c < width; c++)
                        sums[c] += value * entries[c];
            }
            for (size_t c = 0; c < width; c++)
                y[j + c] = scale > 0.0 ? (float) sums[c] : NAN;
        }
    }
}

/* ---- the permutation ---------------------------------------------------------------------------------------- */

/*
 * A Feistel network on the smallest 2^bits >= rows, whose halves may differ by one bit: eight times, one half is
 * combined by exclusive or with a keyed hash of the other. Positions outside 0 .. rows-1 are fed back until they are inside
 * (cycle walking): fewer than two turns on average, and still a bijection.
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
