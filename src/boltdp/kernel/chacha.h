/*
 * chacha.h: eight blocks of ChaCha20 (RFC 8439, section 2.3) at once, one in each lane. sgd.c includes it once for each
 * instruction set, with NAME and TARGET as in loops.h and the two rotations that some have an instruction for.
 *
 * `start` is the first block's input: constants, key, a 64-bit counter in words 12 and 13, a 64-bit nonce in 14 and 15.
 * The RFC calls word 13 nonce too, which is the same as long as no counter passes 2^32. Word w of block `lane` is
 * out[8*w + lane]: the words of one block need not be neighbours to be random, and moving them would take time.
 */
#define ROTATE(x, n) (((x) << (n)) | ((x) >> (32 - (n))))
#define QUARTER_ROUND(a, b, c, d)                       \
    do {                                                \
        x[a] += x[b], x[d] = ROTATE_16(x[d] ^ x[a]);    \
        x[c] += x[d], x[b] ^= x[c], x[b] = ROTATE(x[b], 12); \
        x[a] += x[b], x[d] = ROTATE_8(x[d] ^ x[a]);     \
        x[c] += x[d], x[b] ^= x[c], x[b] = ROTATE(x[b], 7);  \
    } while (0)

TARGET static void NAME(chacha20)(const uint32_t start[16], uint32_t out[8 * 16])
{
    const uint64_t counter = (uint64_t) start[13] << 32 | start[12];
    vec8u input[16], x[16];
    for (size_t w = 0; w < 16; w++)
        input[w] = start[w] - (vec8u){0};
    for (size_t lane = 0; lane < 8; lane++) {
        input[12][lane] = (uint32_t) (counter + lane);
        input[13][lane] = (uint32_t) ((counter + lane) >> 32);
    }
    memcpy(x, input, sizeof x);
    for (size_t i = 0; i < 10; i++) {
        QUARTER_ROUND(0, 4, 8, 12);
        QUARTER_ROUND(1, 5, 9, 13);
        QUARTER_ROUND(2, 6, 10, 14);
        QUARTER_ROUND(3, 7, 11, 15);
        QUARTER_ROUND(0, 5, 10, 15);
        QUARTER_ROUND(1, 6, 11, 12);
        QUARTER_ROUND(2, 7, 8, 13);
        QUARTER_ROUND(3, 4, 9, 14);
    }
    for (size_t w = 0; w < 16; w++)
        *(vec8u *) (out + 8 * w) = x[w] + input[w];
}

#undef ROTATE
#undef QUARTER_ROUND
