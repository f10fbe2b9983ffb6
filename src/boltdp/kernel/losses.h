/*
 * losses.h: everything that C asks about a loss. losses.py says the same in Python, and a test compares them;
 * no other C file knows one margin loss from another.
 *
 * A new margin loss has a number in the enumeration, a line in one of the lists, its functions beside those of the
 * others, and a link at the end, or no probabilities. Its slope must lie between -1 and 0 exactly, roundings included,
 * and change by at most what losses.py claims: the sensitivity stands on that.
 */
#ifndef BOLTDP_LOSSES_H
#define BOLTDP_LOSSES_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "exp.h"

enum loss { LOSS_LOGISTIC = 0, LOSS_HUBER = 1, LOSS_MULTINOMIAL = 2, LOSS_MARGIN = 3 };
#define LOSS_COUNT 4

/*
 * EACH(number, name, unit) for the losses of one margin y*<w, x>, which have one weight vector: those with a Hessian
 * everywhere, and those whose slope has kinks. The unit is what the margin is multiplied by before their functions get
 * it; it goes into the guard's factor, which is there anyway, and spares a product where the next row waits for it.
 */
#define CURVED_LOSSES(EACH) EACH(LOSS_LOGISTIC, logistic, UNITS_PER_NAT) EACH(LOSS_MARGIN, margin, UNITS_PER_NAT)
#define KINKED_LOSSES(EACH) EACH(LOSS_HUBER, huber, 1.0)
#define MARGIN_LOSSES(EACH) CURVED_LOSSES(EACH) KINKED_LOSSES(EACH)

/* And for those of all scores of a row, which have one weight vector a class. */
#define JOINT_LOSSES(EACH) EACH(LOSS_MULTINOMIAL, multinomial, UNITS_PER_NAT)

/*
 * Of each margin loss, with `parameter` the number that shapes it:
 *
 * NAME_factor     rate times the negative slope at the margin
 * NAME_curvature  the second derivative, and the negative slope into *slope, if the loss has a Hessian
 *
 * What a row adds to the weights is factor * x. With s the guard's factor the row stands for s*x, so its margin is
 * y*s*<w, x>, its gradient y*s*x times the slope of the loss there, and `rate` is eta/|B| * y*s.
 *
 * The slopes of the two may differ in their last bit: both kinds of results are promised to the bit, as they were first
 * computed.
 */

/* ---- logistic: ln(1 + exp(-margin)) ------------------------------------------------------------------------- */

static inline double logistic_factor(double margin, double parameter, double rate)
{
    /* -slope = 1/(1 + exp(margin)): the denominator is at least 1, so |slope| <= 1 holds exactly. */
    double rest, whole = exp2_256ths(margin, &rest);
    (void) parameter;
    return rate / ((1.0 + whole) + rest);
}

static inline double logistic_curvature(double margin, double parameter, double *slope)
{
    double rest, whole = exp2_256ths(margin, &rest);
    (void) parameter;
    *slope = 1.0 / (1.0 + (whole + rest));
    return *slope * (1.0 - *slope);
}

/* ---- margin: ln(1 + exp(b - margin)), e^-b the parameter ------------------------------------------------------ */

static inline double margin_factor(double margin, double parameter, double rate)
{
    /* -slope = 1/(1 + exp(margin - b)), and again the denominator is at least 1. */
    double rest, whole = exp2_256ths(margin, &rest);
    return rate / ((1.0 + whole * parameter) + rest * parameter);
}

static inline double margin_curvature(double margin, double parameter, double *slope)
{
    double rest, whole = exp2_256ths(margin, &rest);
    *slope = 1.0 / (1.0 + (whole + rest) * parameter);
    return *slope * (1.0 - *slope);
}

/* ---- huber: the hinge max(0, 1 - margin), with a parabola of half-width h, the parameter, around its kink ----- */

static inline double huber_factor(double margin, double parameter, double rate)
{
    /* -slope = (1 + h - margin) / 2h, but between 0 and 1 */
    double slope = (1.0 + parameter - margin) / (2.0 * parameter);
    slope = slope > 0.0 ? slope : 0.0;
    slope = slope < 1.0 ? slope : 1.0;
    return rate * slope;
}

/* ---- multinomial: softmax cross-entropy ---------------------------------------------------------------------- */

/*
 * p = softmax(units * scores), with the unit of the loss among the units: powers, in the place of the scores, `step`
 * numbers apart, and their sum. p_k = power / sum is at most 1, since the sum only grew from its term.
 */
static inline double multinomial_powers(double *scores, size_t step, size_t classes, double units)
{
    double largest = -HUGE_VAL, sum = 0.0;
    for (size_t k = 0; k < classes; k++) {
        scores[k * step] *= units;
        largest = scores[k * step] > largest ? scores[k * step] : largest;
    }
    for (size_t k = 0; k < classes; k++) {
        double rest, whole = exp2_256ths(scores[k * step] - largest, &rest);
        scores[k * step] = whole + rest;
    }
    for (size_t k = 0; k < classes; k++)
        sum += scores[k * step];
    return sum;
}

/* ---- asked by number ----------------------------------------------------------------------------------------- */

static inline double loss_unit(uint64_t loss)
{
#define CASE(number, name, unit) \
    case number:                 \
        return unit;
    switch (loss) {
        MARGIN_LOSSES(CASE)
        JOINT_LOSSES(CASE)
    }
#undef CASE
    return 1.0;
}

static inline double loss_factor(uint64_t loss, double margin, double parameter, double rate)
{
#define CASE(number, name, unit) \
    case number:                 \
        return name##_factor(margin, parameter, rate);
    switch (loss) {
        MARGIN_LOSSES(CASE)
    }
#undef CASE
    return 0.0;
}

static inline double loss_curvature(uint64_t loss, double margin, double parameter, double *slope)
{
#define CASE(number, name, unit) \
    case number:                 \
        return name##_curvature(margin, parameter, slope);
    switch (loss) {
        CURVED_LOSSES(CASE)
    }
#undef CASE
    return *slope = 0.0;
}

/* Whether there is one weight vector a class. */
static inline int loss_is_joint(uint64_t loss)
{
#define CASE(number, name, unit) || loss == number
    return 0 JOINT_LOSSES(CASE);
#undef CASE
}

static inline int loss_has_hessian(uint64_t loss)
{
#define CASE(number, name, unit) || loss == number
    return 0 CURVED_LOSSES(CASE) JOINT_LOSSES(CASE);
#undef CASE
}

/* Weight vectors of one model. */
static inline uint64_t loss_vectors(uint64_t loss, uint64_t classes)
{
    return loss_is_joint(loss) ? classes : 1;
}

/* As in certificates and in boltdp.models; NULL for what is no loss. */
static inline const char *loss_name(uint64_t loss)
{
#define CASE(number, name, unit) \
    case number:                 \
        return #name;
    switch (loss) {
        MARGIN_LOSSES(CASE)
        JOINT_LOSSES(CASE)
    }
#undef CASE
    return NULL;
}

/* The loss of this name, or LOSS_COUNT. */
static inline uint64_t loss_named(const char *name)
{
    uint64_t loss = 0;
    while (loss < LOSS_COUNT && strcmp(loss_name(loss), name) != 0)
        loss++;
    return loss;
}

/* ---- the link from margins to probabilities ------------------------------------------------------------------ */

/* What a model of this loss is called, if it tells no probabilities, as none does that is not listed; else NULL. */
static inline const char *loss_without_odds(uint64_t loss)
{
    switch (loss) {
    case LOSS_LOGISTIC:
    case LOSS_MULTINOMIAL:
    case LOSS_MARGIN:
        return NULL;
    case LOSS_HUBER:
        return "a Huber SVM";
    }
    return "a model of this loss";
}

/* 1 / (1 + exp(-margin)). By libm: what is told to people needs no promise of bits. */
static inline double logistic_odds(double margin)
{
    return 0.5 * (1.0 + tanh(0.5 * margin));
}

/* The odds of a class with this margin; `largest` is that of the row. With one vector they are a probability. */
static inline double loss_odds(uint64_t loss, double parameter, double margin, double largest)
{
    double b, up;
    if (loss_is_joint(loss))
        return exp(margin - largest);
    if (loss != LOSS_MARGIN)
        return logistic_odds(margin);
    b = -log(parameter);
    up = logistic_odds(b + margin);
    return up / (up + logistic_odds(b - margin));
}

/* ---- for the binding and the tests: losses.c ----------------------------------------------------------------- */

/* How many losses there are; the others take a number below that. */
uint64_t losses_count(void);
const char *losses_name(uint64_t loss);
int losses_is_joint(uint64_t loss);
int losses_has_hessian(uint64_t loss);
int losses_has_odds(uint64_t loss);
uint64_t losses_vectors(uint64_t loss, uint64_t classes);

/* The slope of a margin loss at a margin, as an update has it; and its second derivative, where it has a Hessian. */
double losses_slope(uint64_t loss, double parameter, double margin);
double losses_curvature(uint64_t loss, double parameter, double margin);

#endif
