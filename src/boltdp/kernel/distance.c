/* distance.c: the recursion of distance.h. */
#include "distance.h"

void remaining_distance(const double *alpha, const double *rho_next, double rest, size_t n, double *distance)
{
    for (size_t i = n; i-- > 0;)
        distance[i] = rest = alpha[i] + rho_next[i] * rest;
}
