/* sensitivity_recursion.c: the recursion of sensitivity_recursion.h. */
#include "sensitivity_recursion.h"

void recur_sensitivity(const double *alpha, const double *rho_next, double rest, size_t n, double *distance)
{
    for (size_t i = n; i-- > 0;)
        distance[i] = rest = alpha[i] + rho_next[i] * rest;
}
