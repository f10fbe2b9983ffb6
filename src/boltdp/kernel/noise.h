/*
 * noise.h: random words, normal and Gamma variables for the noise of an update: the ziggurat of ziggurat.h and the
 * method of Marsaglia and Tsang. Many normal variables at once are made in loops.h. noise.md says what is exact and
 * what is rounded.
 */
#ifndef BOLTDP_NOISE_H
#define BOLTDP_NOISE_H

#include "ziggurat.h"

typedef void blocks_function(const uint32_t start[16], uint32_t out[8 * 16]);

#define CHUNK 64 /* 64-bit words in eight blocks */

/* The random words of one update. Nothing of it outlives the update: the next has a nonce of its own. */
struct stream {
    blocks_function *blocks;
    uint32_t start[16]; /* ChaCha20's input for the next eight blocks */
    size_t spare;       /* of the words below, so many are unused: the first ones */
    uint64_t words[CHUNK];
};

static void open_stream(struct stream *s, blocks_function *blocks, const uint64_t key[4], uint64_t nonce)
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
static void next_chunk(struct stream *s, uint64_t words[CHUNK])
{
    const uint64_t counter = ((uint64_t) s->start[13] << 32 | s->start[12]) + 8;
    s->blocks(s->start, (uint32_t *) (void *) words);
    s->start[12] = (uint32_t) counter;
    s->start[13] = (uint32_t) (counter >> 32);
}

static uint64_t next_word(struct stream *s)
{
    if (s->spare == 0) {
        next_chunk(s, s->words);
        s->spare = CHUNK;
    }
    return s->words[--s->spare];
}

/* Between 2^-65 and 1, both of which it can be. Small ones have all their 64 bits. */
static double next_uniform(struct stream *s)
{
    return ((double) next_word(s) + 0.5) * 0x1p-64;
}

/* ln(x) of a positive normal number: x = 2^e * m, m near 1, and ln(m) = 2 * artanh((m - 1)/(m + 1)) by its series. */
static double natural_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    double exponent = (double) (bits >> 52) - 1023.0, m, sum = 0.0;
    bits = (bits & UINT64_C(0x000fffffffffffff)) | UINT64_C(0x3ff0000000000000);
    memcpy(&m, &bits, sizeof m);
    if (m > 0x1.6a09e667f3bcdp+0) { /* the square root of 2 */
        m *= 0.5;
        exponent += 1.0;
    }
    const double t = (m - 1.0) / (m + 1.0), square = t * t;
    for (int k = 23; k >= 3; k -= 2) /* the first term left out is below 2^-61 of the sum */
        sum = (sum + 1.0 / k) * square;
    return exponent * 0x1.62e42fefa39efp-1 + (2.0 * t + 2.0 * t * sum);
}

/* What is beyond TAIL_START (Marsaglia 1964): an exponential that is accepted with probability exp(-x*x/2). */
static double normal_tail(struct stream *s)
{
    double x, y;
    do {
        x = natural_log(next_uniform(s)) / -TAIL_START;
        y = -natural_log(next_uniform(s));
    } while (y + y < x * x);
    return TAIL_START + x;
}

/* The use of a random word: 8 bits choose the layer, one the sign, 52 the column of the layer. */
#define LAYER_OF(word) ((word) & 255)
#define SIGN_OF(word) (((word) & 256) << 55) /* where a double has it */
#define COLUMN_OF(word) ((word) >> 12)

/* A standard normal variable from `word`, and from spare words if it is rejected. */
static double normal_from(struct stream *s, uint64_t word)
{
    double x;
    for (;; word = next_word(s)) {
        const struct layer *layer = &LAYERS[LAYER_OF(word)];
        x = ((double) COLUMN_OF(word) + 0.5) * layer->width;
        if (COLUMN_OF(word) < layer->inside)
            break;
        if (LAYER_OF(word) == 0) {
            x = normal_tail(s);
            break;
        }
        const double y = layer->height + next_uniform(s) * (layer[1].height - layer->height);
        if (y < sgd_exp2_256ths(-0.5 * UNITS_PER_NAT * (x * x)))
            break;
    }
    return SIGN_OF(word) ? -x : x;
}

/* A Gamma variable of this shape, at least 1, and scale 1 (Marsaglia and Tsang 2000). */
static double next_gamma(struct stream *s, double shape)
{
    const double d = shape - 1.0 / 3.0, c = 1.0 / sqrt(9.0 * d);
    for (;;) {
        const double x = normal_from(s, next_word(s)), root = 1.0 + c * x, v = root * root * root;
        if (v <= 0.0)
            continue;
        const double u = next_uniform(s), square = x * x;
        if (u < 1.0 - 0.0331 * (square * square))
            return d * v;
        if (natural_log(u) < 0.5 * square + d * ((1.0 - v) + natural_log(v)))
            return d * v;
    }
}

#endif
