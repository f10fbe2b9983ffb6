/*
 * exact_sampling.h: the noise of a release, drawn exactly: a quick way for nearly all draws. privacy/exact_sampling.py
 * draws the same from the same random bits, to as many digits as it takes, whenever this one cannot be sure.
 */
#ifndef BOLTDP_EXACT_SAMPLING_H
#define BOLTDP_EXACT_SAMPLING_H

#include <stddef.h>
#include <stdint.h>

/*
 * out[i] = weights[i] + scale * x_i, rounded to the nearest multiple of 2^-grid, with x_1, x_2, ... the normal
 * variables that the Box-Muller transform makes of pairs of real uniforms. Of each uniform, of which there are `dims`
 * rounded up to an even number, the first 124 bits are given: 16 bytes of `stream`, as two numbers of 64 bits, the
 * highest byte first, without their two lowest bits. Returns 1 if all results are what they would be whatever the
 * other bits are, and 0 if one may not be, after which they mean nothing. The work is the same whatever the noise is,
 * unless the answer is 0. privacy/mechanisms.md, section 3, has the proof.
 */
int exact_gaussian(const unsigned char *stream, double scale, int grid, const double *weights, size_t dims,
                   double *out);

/*
 * The same for spherical noise: the normal variables, over their norm, times the sum of -ln(U) over `dims` further
 * uniforms, which follow the even number above. Up to 16383 dimensions.
 */
int exact_spherical(const unsigned char *stream, double scale, int grid, const double *weights, size_t dims,
                    double *out);

#endif
