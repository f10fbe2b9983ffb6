/* hash_sampling.c: see hash_sampling.h. */
#include "hash_sampling.h"

#include <string.h>

/* Four hashes take turns, so that none waits for the one before. */
int hash_selects(const float *row, size_t width, uint64_t share)
{
    uint64_t hashes[4] = {1, 2, 3, 4}, words[4];
    if (share > UINT32_MAX)
        return 1;
    for (; width >= 8; row += 8, width -= 8) {
        memcpy(words, row, sizeof words);
        for (int turn = 0; turn < 4; turn++)
            hashes[turn] = hash_mix(hashes[turn], words[turn]);
    }
    memset(words, 0, sizeof words);
    memcpy(words, row, width * sizeof *row);
    for (int turn = 0; turn < 4; turn++)
        hashes[turn] = hash_mix(hashes[turn], words[turn]);
    for (int turn = 1; turn < 4; turn++)
        hashes[0] = hash_mix(hashes[0], hashes[turn]);
    return (hashes[0] * HASH_MULTIPLIER) >> 32 < share;
}

size_t hash_sample(const float *rows, size_t n, size_t width, uint64_t share, float *out)
{
    size_t taken = 0;
    for (size_t i = 0; i < n; i++)
        if (hash_selects(rows + i * width, width, share))
            memcpy(out + taken++ * width, rows + i * width, width * sizeof *out);
    return taken;
}
