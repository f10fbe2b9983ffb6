/* losses_for_python.c: what the binding and the tests ask of losses.h, whose functions are else compiled into their callers. */
#include "losses.h"

void losses_facts(uint64_t loss, struct loss_facts *out)
{
    *out = loss_facts(loss);
}

uint64_t losses_vectors(uint64_t loss, uint64_t classes)
{
    return loss_vectors(loss, classes);
}

double losses_slope(uint64_t loss, double parameter, double score, double y)
{
    return -loss_factor(loss, score * loss_facts(loss).unit, y, parameter, 1.0);
}

double losses_curvature(uint64_t loss, double parameter, double score, double y)
{
    double slope;
    return loss_curvature(loss, score * loss_facts(loss).unit, y, parameter, &slope);
}
