/*
 * exact.h: the noise of a release, drawn exactly: a quick way for nearly all draws. privacy/noise.py draws the same
 * from the same random bits, to as many digits as it takes, whenever this one cannot be sure.
 */
#ifndef BOLTDP_EXACT_H
#define BOLTDP_EXACT_H

#include <stddef.h>
#include <stdint.h>

/*
 * points[i] = the whole number nearest to (weights[i] + scale * x_i) * 2^grid, with x_1, x_2, ... the normal variables
 * that the Box-Muller transform makes of pairs of real uniforms. Of uniform j only the first 124 bits are given,
 * high[j] * 2^62 + low[j]; there are `dims` of them, rounded up to an even number. Returns 1 if all points are what
 * they would be whatever the other bits are, and 0 if one may not be, after which the points mean nothing. The work is
 * the same whatever the noise is, unless the answer is 0. privacy/noise.md, section 3, has the proof.
 */
int exact_gaussian(const uint64_t *high, const uint64_t *low, double scale, int grid, const double *weights,
                   size_t dims, int64_t *points);

/*
 * The same for spherical noise: the normal variables, over their norm, times the sum of -ln(U) over `dims` further
 * uniforms, which follow the even number above. Up to 16383 dimensions.
 */
int exact_spherical(const uint64_t *high, const uint64_t *low, double scale, int grid, const double *weights,
                    size_t dims, int64_t *points);

#endif
