/* row_permutation.c: see row_permutation.h. */
#include "row_permutation.h"

#include <string.h>

/* ---- the permutation ---------------------------------------------------------------------------------------- */

/*
 * A Feistel network on the smallest 2^bits >= rows, whose halves may differ by one bit: eight times, one half is
 * combined by exclusive or with a keyed hash of the other. Positions outside 0 .. rows-1 are fed back until they are
 * inside (cycle walking): fewer than two rounds of the network on average, and still a bijection.
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

/* Positions that are permuted side by side: no step of one waits for a step of another. */
#define LANES 8

static inline __attribute__((always_inline)) void permute(const struct feistel *f, uint64_t *positions, int forward)
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
static inline __attribute__((always_inline)) void permute_range(uint64_t start, size_t n, uint64_t rows, uint64_t seed,
                                                           int64_t *out, int forward)
{
    const struct feistel f = feistel(rows, seed);
    uint64_t positions[LANES];
    size_t indices[LANES], next = 0, left = n;
    for (int k = 0; k < LANES; k++) {
        indices[k] = next < n ? next : n;
        positions[k] = next < n ? start + next++ : 0;
    }
    while (left > 0) {
        permute(&f, positions, forward);
        for (int k = 0; k < LANES; k++)
            if (positions[k] < rows && indices[k] < n) {
                out[indices[k]] = (int64_t) positions[k];
                left--;
                indices[k] = next < n ? next : n;
                positions[k] = next < n ? start + next++ : 0;
            }
    }
}

void permutation_apply(uint64_t start, size_t n, uint64_t rows, uint64_t seed, int64_t *out)
{
    permute_range(start, n, rows, seed, out, 1);
}

void permutation_invert(uint64_t start, size_t n, uint64_t rows, uint64_t seed, int64_t *out)
{
    permute_range(start, n, rows, seed, out, 0);
}

/* ---- rows to their new positions ---------------------------------------------------------------------------- */

/* This many rows later, the row that is needed has arrived in the cache. */
#define AHEAD 8

void permutation_take(const float *rows, const int64_t *positions, size_t n, size_t width, float *out)
{
    for (size_t i = 0; i < n; i++) {
        if (i + AHEAD < n)
            for (size_t k = 0; k < width; k += 16)
                __builtin_prefetch(rows + (size_t) positions[i + AHEAD] * width + k);
        memcpy(out + i * width, rows + (size_t) positions[i] * width, width * sizeof *out);
    }
}

void permutation_put(const float *rows, const int64_t *positions, size_t n, size_t width, float *out)
{
    for (size_t i = 0; i < n; i++) {
        if (i + AHEAD < n)
            for (size_t k = 0; k < width; k += 16)
                __builtin_prefetch(out + (size_t) positions[i + AHEAD] * width + k, 1);
        memcpy(out + (size_t) positions[i] * width, rows + i * width, width * sizeof *out);
    }
}

void permutation_sort(const int64_t *positions, size_t n, int shift, size_t n_buckets, int64_t *order,
                      uint32_t *slots, int64_t *counts)
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
