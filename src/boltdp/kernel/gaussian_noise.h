/*
 * gaussian_noise.h: normal and Gamma variables for the noise of an update: the ziggurat of ziggurat.h and the method
 * of Marsaglia and Tsang. Many normal variables at once are made in sgd_loops.h. gaussian_noise.md says what is
 * exact and what is rounded.
 */
#ifndef BOLTDP_GAUSSIAN_NOISE_H
#define BOLTDP_GAUSSIAN_NOISE_H

#include "random_stream.h"
#include "ziggurat.h"

/* ln(x) of a positive normal number: x = 2^e * m, m near 1, and ln(m) = 2 * artanh((m - 1)/(m + 1)) by its series. */
double sgd_log(double x)
{
    static const double over[] = {1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13,
                                  1.0 / 11, 1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3}; /* dividing takes time */
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
    for (size_t k = 0; k < sizeof over / sizeof *over; k++) /* the first term left out is below 2^-61 of the sum */
        sum = (sum + over[k]) * square;
    return exponent * 0x1.62e42fefa39efp-1 + (2.0 * t + 2.0 * t * sum);
}

/* What is beyond X_1 (Marsaglia 1964): an exponential that is accepted with probability exp(-x*x/2). */
static double normal_tail(struct stream *s)
{
    double x, y;
    do {
        x = sgd_log(next_uniform(s)) / -EDGES[1];
        y = -sgd_log(next_uniform(s));
    } while (y + y < x * x);
    return EDGES[1] + x;
}

/* The use of a random word: 8 bits choose the layer, one the sign, 52 the column of the layer. */
#define LAYER_OF(word) ((word) & 255)
#define SIGN_OF(word) (((word) & 256) << 55) /* where a double has it */
#define COLUMN_OF(word) ((word) >> 12)

/* f(x) = exp(-x*x/2) */
static double normal_curve(double x)
{
    return sgd_exp2_256ths(-0.5 * UNITS_PER_NAT * (x * x));
}

/* A standard normal variable from `word`, and from spare words if it is rejected. */
static double normal_from(struct stream *s, uint64_t word)
{
    double x;
    for (;; word = next_word(s)) {
        const double *edge = &EDGES[LAYER_OF(word)];
        x = ((double) COLUMN_OF(word) + 0.5) * 0x1p-52 * edge[0];
        if (x < edge[1])
            break;
        if (LAYER_OF(word) == 0) {
            x = normal_tail(s);
            break;
        }
        const double low = normal_curve(edge[0]), high = normal_curve(edge[1]);
        if (low + next_uniform(s) * (high - low) < normal_curve(x))
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
        if (sgd_log(u) < 0.5 * square + d * ((1.0 - v) + sgd_log(v)))
            return d * v;
    }
}

#endif
