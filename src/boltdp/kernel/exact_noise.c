/*
 * exact_noise.c: the noise of a release, drawn exactly: a quick way for nearly all draws. privacy/exact_noise.py
 * draws the same from the same random bits, to as many digits as it takes, whenever this one cannot be sure.
 *
 * Real numbers are whole multiples of a power of two, in 128 bits. "Qn" is a number in multiples of 2^-n. Every product
 * is rounded down, by less than one multiple, and privacy/mechanisms.md adds these errors up. The functions of the C
 * library (log, sqrt) give first guesses only: what is made of them is right, or is refused, whatever they return.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef unsigned __int128 natural;
typedef __int128 integer;

#define ONE ((natural) 1)
#define NATURAL(high, low) ((natural) UINT64_C(high) << 64 | UINT64_C(low))
#define LN_2 NATURAL(0x0162e42fefa39ef3, 0x5793c7673007e5ed)    /* Q121 */
#define PI_OVER_4 NATURAL(0xc90fdaa22168c234, 0xc4c6628b80dc1cd1) /* Q128 */
#define OVER(n) (~(natural) 0 / (n))                            /* 1/n as Q128 */

/* a*b / 2^128, rounded down: Qn times Qm is Q(n+m-128). */
static inline natural times(natural a, natural b)
{
    const uint64_t a0 = (uint64_t) a, a1 = (uint64_t) (a >> 64), b0 = (uint64_t) b, b1 = (uint64_t) (b >> 64);
    const natural middle = (natural) a1 * b0 + ((natural) a0 * b0 >> 64);
    return (natural) a1 * b1 + (middle >> 64) + (((natural) a0 * b1 + (uint64_t) middle) >> 64);
}

/* exp(y) as Q126, of a Q128: 1 + y/1 * (1 + y/2 * (1 + ...)), below 2.02 for y below 0.7 */
static natural exponential(natural y)
{
    static const natural over[] = {OVER(1),  OVER(2),  OVER(3),  OVER(4),  OVER(5),  OVER(6),  OVER(7),  OVER(8),
                                   OVER(9),  OVER(10), OVER(11), OVER(12), OVER(13), OVER(14), OVER(15), OVER(16),
                                   OVER(17), OVER(18), OVER(19), OVER(20), OVER(21), OVER(22), OVER(23), OVER(24),
                                   OVER(25), OVER(26), OVER(27), OVER(28), OVER(29), OVER(30), OVER(31), OVER(32)};
    natural sum = ONE << 126;
    for (size_t n = sizeof over / sizeof *over; n-- > 0;)
        sum = (ONE << 126) + times(times(sum, y), over[n]);
    return sum;
}

/*
 * -ln(k / 2^124) as Q121, 0 if k is too small. With k/2^124 = f / 2^n, f from 1 to 2, and a guess y of ln(2/f),
 * exp(y) * f/2 is 1 + d with a small d, and -ln = (n - 1) * ln(2) + y - ln(1 + d).
 */
static natural minus_log(natural k)
{
    if (k < ONE << 84 || k >= ONE << 124)
        return 0;
    const int zeros = (int) __builtin_clzll((unsigned long long) (k >> 64));
    const natural f = k << zeros; /* Q127 */
    const double guess = log(0x1p128 / (double) f);
    if (!(guess >= 0.0 && guess < 0.7))
        return 0;
    const natural y = (natural) (guess * 0x1p128);
    const integer d = (integer) times(exponential(y), f) - (integer) (ONE << 126); /* Q126 */
    if (d > (integer) (ONE << 86) || d < -(integer) (ONE << 86))
        return 0;
    const double small = (double) d * 0x1p-126;
    const integer result = (integer) ((natural) (zeros - 4) * LN_2 + (y >> 7)) - (d >> 5) +
                           (integer) (0.5 * small * small * 0x1p121);
    return result > 0 ? (natural) result : 0;
}

/* The square root of a Q120 below 64, as Q120; 0 if it is below 2^-20. One step of Newton's from 2^-60. */
static natural square_root(natural square)
{
    const uint64_t guess = (uint64_t) sqrt((double) square); /* Q60 */
    if (guess < UINT64_C(1) << 40 || guess >= UINT64_C(1) << 63)
        return 0;
    const integer rest = (integer) square - (integer) ((natural) guess * guess);
    const double step = (double) rest / (2.0 * (double) guess); /* Q60 */
    if (!(fabs(step) < 4.0 + 0x1p-50 * (double) guess))
        return 0;
    return (natural) ((integer) ((natural) guess << 60) + (integer) (step * 0x1p60));
}

/* Cosine and sine of 2*pi * k/2^124, their sizes as Q127. */
static void cosine_and_sine(natural k, natural size[2], int negative[2])
{
    static const natural cosine_over[] = {OVER(1 * 2),   OVER(3 * 4),   OVER(5 * 6),   OVER(7 * 8),
                                          OVER(9 * 10),  OVER(11 * 12), OVER(13 * 14), OVER(15 * 16),
                                          OVER(17 * 18), OVER(19 * 20), OVER(21 * 22), OVER(23 * 24),
                                          OVER(25 * 26), OVER(27 * 28), OVER(29 * 30), OVER(31 * 32)};
    static const natural sine_over[] = {OVER(2 * 3),   OVER(4 * 5),   OVER(6 * 7),   OVER(8 * 9),
                                        OVER(10 * 11), OVER(12 * 13), OVER(14 * 15), OVER(16 * 17),
                                        OVER(18 * 19), OVER(20 * 21), OVER(22 * 23), OVER(24 * 25),
                                        OVER(26 * 27), OVER(28 * 29), OVER(30 * 31), OVER(32 * 33)};
    /* The angle is a number of quarter turns plus or minus an angle up to an eighth of a turn. */
    const unsigned eighth = (unsigned) (k >> 121), quarters = (eighth + 1) / 2 % 4, backwards = eighth % 2;
    const natural within = (backwards ? ~k : k) << 7; /* of the eighth, Q128 */
    const natural angle = times(within, PI_OVER_4), square = times(angle, angle);
    natural cosine = ONE << 127, sine = ONE << 127;
    for (size_t n = sizeof cosine_over / sizeof *cosine_over; n-- > 0;) {
        cosine = (ONE << 127) - times(times(cosine, square), cosine_over[n]);
        sine = (ONE << 127) - times(times(sine, square), sine_over[n]);
    }
    sine = times(sine, angle);
    /* A quarter turn takes (c, s) to (-s, c), and where a size is says which of the two it is. */
    const int turned = quarters % 2 == 1;
    size[turned] = cosine, size[!turned] = sine;
    negative[turned] = quarters >= 2;
    negative[!turned] = (quarters == 1 || quarters == 2) != backwards;
}

/* number * 2^shift, rounded down to a whole one, into `out`; 0 if it is 2^125 or more, or no number. */
static int scale_number(double number, int shift, integer *out)
{
    int exponent;
    *out = 0;
    if (!isfinite(number))
        return 0; /* it has no exponent either */
    const double fraction = frexp(number, &exponent);
    shift += exponent - 53;
    if (number == 0.0)
        return 1;
    if (shift > 125 - 53)
        return 0;
    const int64_t mantissa = (int64_t) (fraction * 0x1p53);
    *out = shift >= 0 ? (integer) mantissa * (integer) (ONE << shift) : mantissa >> (shift > -63 ? -shift : 63);
    return 1;
}

/* The first 124 bits of the j-th uniform. */
static natural uniform(const unsigned char *stream, size_t j)
{
    uint64_t words[2] = {0};
    for (size_t i = 0; i < 16; i++)
        words[i / 8] = words[i / 8] << 8 | stream[16 * j + i];
    return (natural) (words[0] >> 2) << 62 | words[1] >> 2;
}

/* Two standard normal variables of the uniforms j and j + 1, as Q119; 0 if they are refused. */
static int normals(const unsigned char *stream, size_t j, integer out[2])
{
    /* Twice a Q121 is the same number as a Q120. */
    const natural length = square_root(minus_log(uniform(stream, j)));
    natural size[2];
    int negative[2];
    cosine_and_sine(uniform(stream, j + 1), size, negative);
    for (size_t i = 0; i < 2; i++) {
        const integer product = (integer) times(length, size[i]);
        out[i] = negative[i] ? -product : product;
    }
    return length != 0;
}

/* |a|*b / 2^128, rounded down, with the sign of a. */
static inline integer signed_times(integer a, natural b)
{
    const integer product = (integer) times((natural) (a < 0 ? -a : a), b);
    return a < 0 ? -product : product;
}

/* weight + noise at the nearest grid point; 0 if an error of `doubt` in the noise, both Q64 in steps, may change it. */
static int settle(double weight, int grid, integer noise, uint64_t doubt, double *out)
{
    integer sum;
    if (!scale_number(weight, grid + 64, &sum))
        return 0;
    sum += noise + (integer) (ONE << 63);
    *out = ldexp((double) (int64_t) (sum >> 64), -grid);
    return (uint64_t) sum >= doubt && (uint64_t) sum <= -doubt;
}

/*
 * out[i] = weights[i] + scale * x_i, rounded to the nearest multiple of 2^-grid, with x_1, x_2, ... the normal
 * variables that the Box-Muller transform makes of pairs of real uniforms. Of each uniform, of which there are `dims`
 * rounded up to an even number, the first 124 bits are given: 16 bytes of `stream`, as two numbers of 64 bits, the
 * highest byte first, without their two lowest bits. Returns 1 if all results are what they would be whatever the
 * other bits are, and 0 if one may not be, after which they mean nothing. The work is the same whatever the noise is,
 * unless the answer is 0. privacy/mechanisms.md, section 3, has the proof.
 */
int exact_gaussian(const unsigned char *stream, double scale, int grid, const double *weights, size_t dims,
                   double *out)
{
    int exponent, sure = 1;
    const natural mantissa = (natural) (frexp(scale, &exponent) * 0x1p53) << 75; /* Q128 */
    const int bits = exponent + grid;
    if (bits < 20 || bits > 50)
        return 0;
    for (size_t i = 0; i < dims; i += 2) {
        integer normal[2];
        sure &= normals(stream, i, normal);
        for (size_t j = i; j < i + 2 && j < dims; j++) {
            const integer noise = signed_times(normal[j - i], mantissa) >> (119 - 64 - bits);
            sure &= settle(weights[j], grid, noise, UINT64_C(1) << (bits - 16), out + j);
        }
    }
    return sure;
}

/*
 * The same for spherical noise: the normal variables, over their norm, times the sum of -ln(U) over `dims` further
 * uniforms, which follow the even number above. Up to 16383 dimensions.
 */
int exact_spherical(const unsigned char *stream, double scale, int grid, const double *weights, size_t dims,
                    double *out)
{
    int exponent, sure = 1, log_dims = 0;
    const natural mantissa = (natural) (frexp(scale, &exponent) * 0x1p53) << 75; /* Q128 */
    const int bits = exponent + grid;
    while (dims >> log_dims != 0)
        log_dims++;
    if (bits < 20 || bits > 40 || log_dims > 14)
        return 0;
    integer *normal = malloc((dims + 1) * sizeof *normal);
    if (normal == NULL)
        return 0;

    natural squares = 0, exponentials = 0; /* Q(110 - log_dims), Q(121 - log_dims): no sum can overflow */
    const size_t half = dims + dims % 2;
    for (size_t i = 0; i < dims; i += 2)
        sure &= normals(stream, i, normal + i);
    for (size_t i = 0; i < dims; i++) {
        const natural size = (natural) (normal[i] < 0 ? -normal[i] : normal[i]);
        const natural exponential_variable = minus_log(uniform(stream, half + i));
        squares += times(size, size) >> log_dims;
        exponentials += exponential_variable >> log_dims;
        sure &= exponential_variable != 0;
    }

    /* With 4^g no less than dims: the norm over 2^g, the length over 4^g, and their quotient, the stretch over 2^g. */
    const int g = (log_dims + 1) / 2;
    const natural norm = square_root(squares << (10 + log_dims - 2 * g)); /* Q120 */
    const natural length = exponentials >> (3 + 2 * g - log_dims);        /* Q118 */
    const double guess = 4.0 * (double) length / (double) norm;
    sure &= norm >> (94 + log_dims) != 0 && guess < 0x1p23;
    if (sure) {
        const uint64_t whole = (uint64_t) (guess * 0x1p40); /* Q40 */
        const integer rest = (integer) (length >> 18) - (integer) times(norm << 4, (natural) whole << 64); /* Q100 */
        const double step = 0x1p20 * (double) rest / (double) norm;
        const natural stretch = (natural) ((integer) ((natural) whole << 60) + (integer) (step * 0x1p100)); /* Q100 */
        const double doubt = (ldexp(guess, g) * (1.0 + sqrt((double) dims)) + (double) dims) * ldexp(1.0, bits - 16);
        sure = doubt < 0x1p62;
        for (size_t i = 0; sure && i < dims; i++) {
            /* The product is a Q95. */
            const integer noise = signed_times(signed_times(normal[i], stretch << 4), mantissa);
            const int shift = bits + g - 31;
            const integer steps = shift >= 0 ? noise * (integer) (ONE << shift) : noise >> -shift;
            sure = settle(weights[i], grid, steps, (uint64_t) doubt, out + i);
        }
    }
    free(normal);
    return sure;
}
