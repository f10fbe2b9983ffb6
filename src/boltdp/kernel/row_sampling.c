/*
 * row_sampling.c: which rows an update sees, where a proof asks for random samples. The words are those of ChaCha20 with a
 * key that nobody else may know: the key and the positions stay secret.
 */
#include "random_stream.h"
#include "sgd.h"

static void blocks(const uint32_t start[16], uint32_t out[8 * 16])
{
    sgd_chacha20(start, out, SGD_FASTEST);
}

static void open_draws(struct stream *s, const void *key, uint64_t nonce)
{
    uint64_t words[4];
    memcpy(words, key, sizeof words);
    open_stream(s, blocks, words, nonce);
}

/* A word shifted to as many bits as `rows` needs is taken if it is below `rows`: all of these are equally likely. */
static int unused_bits(uint64_t rows)
{
    int bits = 0;
    while (bits < 63 && ((rows - 1) >> bits) != 0)
        bits++;
    return 64 - (bits > 0 ? bits : 1);
}

/* Whether the position is not among those seen, of which it then is one. They are stored plus 1, for 0 to be a gap. */
static inline int is_new(int64_t *seen, size_t slots, uint64_t position)
{
    size_t slot = position & (slots - 1);
    for (; seen[slot] != 0; slot = (slot + 1) & (slots - 1))
        if (seen[slot] == (int64_t) position + 1)
            return 0;
    seen[slot] = (int64_t) position + 1;
    return 1;
}

/*
 * `count` batches of a pass, one after the other into out: each is uniform among the sets of its size, whatever the
 * others are. The sizes are those of a permutation's batches (sgd.h), and `carry` is (j*m) mod n of the first one.
 * `seen` has `slots` numbers, a power of two that is more than any size. Returns how many positions were written.
 */
size_t sampling_fixed(const void *key, uint64_t nonce, uint64_t rows, uint64_t batches, uint64_t carry, size_t count,
                   int64_t *seen, size_t slots, int64_t *out)
{
    const uint64_t least = rows / batches, rest = rows % batches;
    const int shift = unused_bits(rows);
    int64_t *const start = out;
    struct stream s;
    open_draws(&s, key, nonce);
    for (; count > 0; count--) {
        carry += rest;
        const uint64_t size = least + (carry >= batches);
        carry -= carry >= batches ? batches : 0;
        memset(seen, 0, slots * sizeof *seen);
        /* A row that the batch has already is drawn again: then each of the others is equally likely to be next. */
        for (uint64_t taken = 0; taken < size;) {
            const uint64_t position = next_word(&s) >> shift;
            if (position < rows && is_new(seen, slots, position)) {
                *out++ = (int64_t) position;
                taken++;
            }
        }
    }
    return (size_t) (out - start);
}

#define SAMPLING_LEAST_ROOM 64

/*
 * Batches of a pass that each row is in with probability 1/n, whatever else is: ascending positions, and -1 where a
 * batch ends. `gap` is -1/ln(1 - 1/n), or 0 for n = 1. `progress` has the batch and the next row that is to be decided
 * of: zeros before the first call, and n batches after the last. Each call has a nonce of its own and writes at most
 * `room` numbers, SAMPLING_LEAST_ROOM or more. Returns how many.
 */
size_t sampling_poisson(const void *key, uint64_t nonce, uint64_t rows, uint64_t batches, double gap, uint64_t progress[2],
                     int64_t *out, size_t room)
{
    uint64_t batch = progress[0], row = progress[1];
    size_t n = 0;
    struct stream s;
    open_draws(&s, key, nonce);
    /*
     * A coin for each row of each batch: the number of tails before the next head is geometric, floor(-ln(U) * gap). It
     * is below 46 * n, and n <= m, so that fewer than 47 batches end before it.
     */
    while (batch < batches && n + SAMPLING_LEAST_ROOM <= room) {
        row += (uint64_t) (-sgd_log(next_uniform(&s)) * gap);
        for (; row >= rows && batch < batches; batch++, row -= rows)
            out[n++] = -1;
        if (batch < batches)
            out[n++] = (int64_t) row++;
    }
    progress[0] = batch;
    progress[1] = row;
    return n;
}
