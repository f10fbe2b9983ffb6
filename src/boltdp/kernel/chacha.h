/*
 * chacha.h: eight blocks of ChaCha20 (RFC 8439, section 2.3) at once, one in each lane. sgd.c includes it once for each
 * instruction set, with NAME and TARGET as in sgd_loops.h and the two rotations that some have an instruction for.
 *
 * `start` is the first block's input: constants, key, a 64-bit counter in words 12 and 13, a 64-bit nonce in 14 and 15.
 * The RFC calls word 13 nonce too, which is the same as long as no counter passes 2^32. Word w of block `lane` is
 * out[8*w + lane]: the words of one block need not be neighbours to be random, and moving them would take time.
 */
#define ROTATE(v, n) (((v) << (n)) | ((v) >> (32 - (n))))
#define ROTATE_12(v) ROTATE(v, 12)
#define ROTATE_7(v) ROTATE(v, 7)

/* A line of the RFC's quarter round, and four quarter rounds side by side: their lines do not wait for each other. */
#define LINE(a, b, d, ROTATED) x[a] += x[b], x[d] ^= x[a], x[d] = ROTATED(x[d]);
#define LINES(a, b, c, d, e, f, g, h, i, j, k, l, ROTATED) \
    LINE(a, e, i, ROTATED) LINE(b, f, j, ROTATED) LINE(c, g, k, ROTATED) LINE(d, h, l, ROTATED)
#define ROUND(e, f, g, h, i, j, k, l, m, n, o, p)             \
    LINES(0, 1, 2, 3, e, f, g, h, m, n, o, p, ROTATE_16)      \
    LINES(i, j, k, l, m, n, o, p, e, f, g, h, ROTATE_12)      \
    LINES(0, 1, 2, 3, e, f, g, h, m, n, o, p, ROTATE_8)       \
    LINES(i, j, k, l, m, n, o, p, e, f, g, h, ROTATE_7)

TARGET static void NAME(chacha20)(const uint32_t start[16], uint32_t out[8 * 16])
{
    const vec8u lanes = {0, 1, 2, 3, 4, 5, 6, 7};
    vec8u input[16], x[16];
    for (size_t w = 0; w < 16; w++)
        input[w] = start[w] - (vec8u){0};
    input[12] += lanes;
    input[13] -= (vec8u) (input[12] < lanes); /* a carry: a true comparison is -1 */
    memcpy(x, input, sizeof x);
    for (size_t i = 0; i < 10; i++) {
        ROUND(4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15) /* columns */
        ROUND(5, 6, 7, 4, 10, 11, 8, 9, 15, 12, 13, 14) /* diagonals */
    }
    for (size_t w = 0; w < 16; w++)
        *(vec8u *) (out + 8 * w) = x[w] + input[w];
}

#undef ROTATE
#undef ROTATE_12
#undef ROTATE_7
#undef LINE
#undef LINES
#undef ROUND
