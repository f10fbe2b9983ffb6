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

const char *losses_target(uint64_t loss)
{
#define CASE(number, name, form, target, slope, link, unit) \
    case number:                                           \
        return TARGET_OF_##target;
    switch (loss) {
        LOSSES(CASE)
    }
#undef CASE
    return NULL;
}

int losses_has_hessian(uint64_t loss)
{
    return loss_has_hessian(loss);
}

int losses_has_odds(uint64_t loss)
{
    return loss_has_odds(loss);
}

uint64_t losses_vectors(uint64_t loss, uint64_t classes)
{
    return loss_vectors(loss, classes);
}

double losses_slope(uint64_t loss, double parameter, double score, double y)
{
    return -loss_factor(loss, score * loss_unit(loss), y, parameter, 1.0);
}

double losses_curvature(uint64_t loss, double parameter, double score, double y)
{
    double slope;
    return loss_curvature(loss, score * loss_unit(loss), y, parameter, &slope);
}
