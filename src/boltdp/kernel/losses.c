/* losses.c: what the binding and the tests ask of losses.h, whose functions are else compiled into their callers. */
#include "losses.h"

uint64_t losses_count(void)
{
    return LOSS_COUNT;
}

const char *losses_name(uint64_t loss)
{
    return loss_name(loss);
}

int losses_is_joint(uint64_t loss)
{
    return loss_is_joint(loss);
}

int losses_has_hessian(uint64_t loss)
{
    return loss_has_hessian(loss);
}

int losses_has_odds(uint64_t loss)
{
    return loss_without_odds(loss) == NULL;
}

uint64_t losses_vectors(uint64_t loss, uint64_t classes)
{
    return loss_vectors(loss, classes);
}

double losses_slope(uint64_t loss, double parameter, double margin)
{
    return -loss_factor(loss, margin * loss_unit(loss), parameter, 1.0);
}

double losses_curvature(uint64_t loss, double parameter, double margin)
{
    double slope;
    return loss_curvature(loss, margin * loss_unit(loss), parameter, &slope);
}
