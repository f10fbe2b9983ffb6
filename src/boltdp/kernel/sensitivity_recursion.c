/*
 * sensitivity_recursion.c: how far a difference of weights goes on to the end of training.
 * privacy/events/sgd_sensitivity.py calls it, and sgd_sensitivity.md, section 2, has the recursion.
 */
#include <stddef.h>

/* distance[i] = alpha[i] + rho_next[i] * distance[i + 1], from the last to the first; distance[n] is `rest`. */
void recur_sensitivity(const double *alpha, const double *rho_next, double rest, size_t n, double *distance)
{
    for (size_t i = n; i-- > 0;)
        distance[i] = rest = alpha[i] + rho_next[i] * rest;
}
