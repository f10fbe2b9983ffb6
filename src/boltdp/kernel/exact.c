/*
 * exact.c: real numbers as whole multiples of a power of two, in 128 bits. "Qn" is a number in multiples of 2^-n. Every
 * product is rounded down, by less than one multiple, and noise.md adds these errors up. The functions of the C library
 * (log, sqrt) give first guesses only: what is made of them is right, or is refused, whatever they return.
 */
#include "exact.h"

#include <math.h>

#if !defined(__SIZEOF_INT128__)

int exact_gaussian(const uint64_t *high, const uint64_t *low, double scale, int grid, const double *weights, size_t dims,
                   int64_t *points)
{
    (void) high, (void) low, (void) scale, (void) grid, (void) weights, (void) dims, (void) points;
    return 0;
}

#else

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
    if (!(fabs(step) < 4096.0))
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
static int scaled(double number, int shift, integer *out)
{
    int exponent;
    const double fraction = frexp(number, &exponent);
    shift += exponent - 53;
    *out = 0;
    if (number == 0.0)
        return 1;
    if (!isfinite(number) || shift > 125 - 53)
        return 0;
    const int64_t mantissa = (int64_t) (fraction * 0x1p53);
    *out = shift >= 0 ? (integer) mantissa * (integer) (ONE << shift) : mantissa >> (shift > -63 ? -shift : 63);
    return 1;
}

int exact_gaussian(const uint64_t *high, const uint64_t *low, double scale, int grid, const double *weights, size_t dims,
                   int64_t *points)
{
    int exponent;
    const natural mantissa = (natural) (frexp(scale, &exponent) * 0x1p53) << 75; /* Q128 */
    const int bits = exponent + grid;
    if (bits < 20 || bits > 50)
        return 0;
    const uint64_t doubt = UINT64_C(1) << (bits - 16); /* Q64, as the sums below */
    int sure = 1;
    for (size_t i = 0; i < dims; i += 2) {
        const natural u = (natural) high[i] << 62 | low[i], v = (natural) high[i + 1] << 62 | low[i + 1];
        const natural length = square_root(minus_log(u)); /* twice a Q121 is the same number as a Q120 */
        natural size[2];
        int negative[2];
        cosine_and_sine(v, size, negative);
        sure &= length != 0;
        for (size_t j = i; j < i + 2 && j < dims; j++) {
            const integer noise = (integer) (times(times(length, size[j - i]), mantissa) >> (119 - 64 - bits));
            integer sum;
            if (!scaled(weights[j], grid + 64, &sum))
                return 0;
            sum += (negative[j - i] ? -noise : noise) + (integer) (ONE << 63);
            const uint64_t fraction = (uint64_t) sum;
            sure &= fraction >= doubt && fraction <= -doubt;
            points[j] = (int64_t) (sum >> 64);
        }
    }
    return sure;
}

#endif
