/* random_stream.h: random words from ChaCha20. */
#ifndef BOLTDP_RANDOM_STREAM_H
#define BOLTDP_RANDOM_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef void blocks_function(const uint32_t start[16], uint32_t out[8 * 16]);

#define CHUNK 64 /* 64-bit words in eight blocks */

/* The random words of one key and nonce. Whoever opens it has a nonce that this key had never before. */
struct stream {
    blocks_function *blocks;
    uint32_t start[16]; /* ChaCha20's input for the next eight blocks */
    size_t spare;       /* how many of the words below, the first ones, are unused */
    uint64_t words[CHUNK];
};

static inline void open_stream(struct stream *s, blocks_function *blocks, const uint64_t key[4], uint64_t nonce)
{
    static const uint32_t constants[4] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574}; /* "expand 32-byte k" */
    s->blocks = blocks;
    memcpy(s->start, constants, sizeof constants);
    memcpy(s->start + 4, key, 32);
    s->start[12] = s->start[13] = 0;
    s->start[14] = (uint32_t) nonce;
    s->start[15] = (uint32_t) (nonce >> 32);
    s->spare = 0;
}

/* A chunk of fresh words. */
static inline void next_chunk(struct stream *s, uint64_t words[CHUNK])
{
    const uint64_t counter = ((uint64_t) s->start[13] << 32 | s->start[12]) + 8;
    s->blocks(s->start, (uint32_t *) (void *) words);
    s->start[12] = (uint32_t) counter;
    s->start[13] = (uint32_t) (counter >> 32);
}

static inline uint64_t next_word(struct stream *s)
{
    if (s->spare == 0) {
        next_chunk(s, s->words);
        s->spare = CHUNK;
    }
    return s->words[--s->spare];
}

/* Between 2^-65 and 1, both of which it can be. Small ones have all their 64 bits. */
static inline double next_uniform(struct stream *s)
{
    /* The word as a double, by its halves: only signed numbers are converted without a branch, which would be guessed. */
    const uint64_t word = next_word(s);
    return (((double) (int64_t) (word >> 32) * 0x1p32 + (double) (int64_t) (word & UINT32_MAX)) + 0.5) * 0x1p-64;
}

#endif
