/* hash_sampling.h: samples of packed rows (sgd.h) that a hash of each row selects. */
#ifndef BOLTDP_HASH_SAMPLING_H
#define BOLTDP_HASH_SAMPLING_H

#include <stddef.h>
#include <stdint.h>

/* The hash of some words and one more. */
#define HASH_MULTIPLIER UINT64_C(0x9fb21c651e98df25)
static inline uint64_t hash_mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * HASH_MULTIPLIER;
    return hash ^ hash >> 32;
}

/*
 * Whether a row is in a sample of about share / 2^32 of all rows, by a hash of its bytes, whatever its position is; and
 * those of n rows that are, copied to `out`, which has room for all of them: the result is their number.
 */
int hash_selects(const float *row, size_t width, uint64_t share);
size_t hash_sample(const float *rows, size_t n, size_t width, uint64_t share, float *out);

#endif
