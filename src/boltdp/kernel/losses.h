/*
 * losses.h: everything that C asks about a loss. losses.py says the same in Python, and a test compares them; no other
 * C file knows one margin loss from another, or how a label is read.
 *
 * A new margin loss is a line of the table and the functions that its line asks for: without one of them it does not
 * compile. Its slope must lie between -1 and 0 (of a signed score), or between -1 and 1 (of a number), exactly, roundings
 * included, and change by at most what losses.py claims: the sensitivity depends on that.
 */
#ifndef BOLTDP_LOSSES_H
#define BOLTDP_LOSSES_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "exp.h"
#include "feature_map.h"

/*
 * EACH(number, name, form, target, slope, link, unit) for every loss, by number:
 *
 * form   margin: a loss of one score <w, x>, with one weight vector; joint: of one score for each class
 * target how it reads a row's label, below: sign, class, number or share
 * slope  curved: its second derivative, NAME_curvature, is at most 1/4; sharp: at most 1; kinked: it is constant between
 *        kinks, and NAME_curvature is in units of the largest, `smoothness` in losses.py, so at most 1
 * link   odds: NAME_odds; no_odds: it gives no probabilities; label: NAME_label, the number that a score predicts
 * unit   what scores are multiplied by before the functions of the loss get them. It goes into the guard's factor, which
 *        is there anyway, and spares a product where the next row waits for it
 */
#define LOSSES(EACH)                                                 \
    EACH(0, logistic, margin, sign, curved, odds, UNITS_PER_NAT)     \
    EACH(1, huber, margin, sign, kinked, no_odds, 1.0)               \
    EACH(2, multinomial, joint, class, curved, odds, UNITS_PER_NAT)  \
    EACH(3, margin, margin, sign, curved, odds, UNITS_PER_NAT)       \
    EACH(4, robust, margin, number, sharp, label, TWO_UNITS)         \
    EACH(5, quantile, margin, number, curved, label, UNITS_PER_NAT)  \
    EACH(6, mean, margin, share, curved, label, UNITS_PER_NAT)       \
    EACH(7, multiclass_huber, joint, class, kinked, no_odds, 1.0)

#define TWO_UNITS (2.0 * UNITS_PER_NAT)

/* What only losses have with this word in a column. */
#define IF_MARGIN_margin(...) __VA_ARGS__
#define IF_MARGIN_joint(...)
#define IF_JOINT_margin(...)
#define IF_JOINT_joint(...) __VA_ARGS__
#define MAX_CURVATURE_curved 0.25
#define MAX_CURVATURE_sharp 1.0
#define MAX_CURVATURE_kinked 1.0
#define HAS_KINKS_curved 0
#define HAS_KINKS_sharp 0
#define HAS_KINKS_kinked 1
#define IF_ODDS_odds(...) __VA_ARGS__
#define IF_ODDS_no_odds(...)
#define IF_ODDS_label(...)
#define IF_LABEL_odds(...)
#define IF_LABEL_no_odds(...)
#define IF_LABEL_label(...) __VA_ARGS__

#define ENUMERATOR(number, name, form, target, slope, link, unit) LOSS_##name = number,
enum loss { LOSSES(ENUMERATOR) LOSS_COUNT };
#undef ENUMERATOR

/* ---- labels -------------------------------------------------------------------------------------------------- */

/* How labels are read: the declared classes and the positive one, or the centre and the factor of a number. */
struct label_reading {
    double classes;
    double positive;
    double center;
    double factor;
};

/* Without a feature map, NULL, numbers are read as they are packed. */
static inline struct label_reading read_labels_by(const struct feature_map *map, uint64_t classes, uint64_t positive)
{
    return (struct label_reading){(double) classes, (double) positive, map == NULL ? 0.0 : map->label_center,
                                  map == NULL ? 1.0 : map->label_factor};
}

/* What a loss reads of a row's label. */
struct label {
    double sign; /* that the row's scores are multiplied by: 1 or -1; 0 if the label is not known, and the row neutral */
    double y;    /* for the functions of the loss, beside the score; 0 where the sign says everything */
};

/* Whether it is the index of a declared class. Without a branch, for loops over labels: adding 2^52 rounds. */
static inline int label_is_class(double label, double classes)
{
    return (label >= 0.0) & (label < classes) & ((label + 0x1p52) - 0x1p52 == label);
}

/* One class against all others: the class `positive` has the sign 1, every other declared class -1. */
static inline struct label sign_label(double label, const struct label_reading *by)
{
    const double sign = label == by->positive ? 1.0 : -1.0;
    return (struct label){label_is_class(label, by->classes) ? sign : 0.0, 0.0};
}

/* The index of a declared class. */
static inline struct label class_label(double label, const struct label_reading *by)
{
    const int known = label_is_class(label, by->classes);
    return (struct label){known ? 1.0 : 0.0, known ? label : 0.0};
}

/* Whether it is a number between the bounds, as it is packed. NaN is none. */
static inline int label_is_number(double label)
{
    return (label >= -1.0) & (label <= 1.0);
}

/* A number in units of its spread, but at most MAX_ABS_LABEL: losses that clip nothing else need a bound. */
#define MAX_ABS_LABEL 64.0
static inline struct label number_label(double label, const struct label_reading *by)
{
    const int known = label_is_number(label);
    double y = known ? (label - by->center) * by->factor : 0.0;
    y = y < MAX_ABS_LABEL ? y : MAX_ABS_LABEL;
    y = y > -MAX_ABS_LABEL ? y : -MAX_ABS_LABEL;
    return (struct label){known ? 1.0 : 0.0, y};
}

/* A number as it is packed: whatever the centre and the factor are, it is from -1 to 1, on which the slope depends. */
static inline struct label share_label(double label, const struct label_reading *by)
{
    const int known = label_is_number(label);
    (void) by;
    return (struct label){known ? 1.0 : 0.0, known ? label : 0.0};
}

/* The weight of a row in a weighted recipe: that of its class, or 1. */
static inline double label_weight(double label, uint64_t classes, const double *class_weights)
{
    return label_is_class(label, (double) classes) ? class_weights[(size_t) label] : 1.0;
}

#define TARGET_OF_sign "classes"
#define TARGET_OF_class "classes"
#define TARGET_OF_number "number"
#define TARGET_OF_share "number"

/*
 * ---- the functions of each loss ------------------------------------------------------------------------------
 *
 * With `parameter` the number that shapes the loss, and `score` that of a row, times its label's sign:
 *
 * NAME_factor     of a margin loss: rate times the negative slope at the score
 * NAME_curvature  of a margin loss: the second derivative, and the negative slope into *slope
 * NAME_powers     of a joint loss: instead of the scores, `step` numbers apart, numbers that are the odds p times their
 *                 sum, which it returns; the slopes are p less 1 for the label. `units` multiply the scores first
 * NAME_odds       the odds of a class with this score, in its own unit; `largest` is that of the row. Of a margin loss they
 *                 are a probability. By libm: what is shown to people needs no fixed bits
 * NAME_label      the label that a score predicts, as it was read; also by libm
 * NAME_error      of a loss with a label: the error of that prediction, which models are compared by; with any bits
 *
 * What a row adds to the weights is factor * x. With s the guard's factor the row stands for s*x, so its score is
 * sign*s*<w, x>, its gradient sign*s*x times the slope of the loss there, and `rate` is eta/|B| * sign*s. Scores are in
 * the unit of the loss, y is not.
 *
 * The slopes of the two may differ in their last bit: both kinds of results keep the bits that they were first computed
 * with.
 */

/* ---- logistic: ln(1 + exp(-score)) ------------------------------------------------------------------------- */

static inline double logistic_factor(double score, double y, double parameter, double rate)
{
    /* -slope = 1/(1 + exp(score)): the denominator is at least 1, so |slope| <= 1 holds exactly. */
    double rest, whole = exp2_256ths(score, &rest);
    (void) y, (void) parameter;
    return rate / ((1.0 + whole) + rest);
}

static inline double logistic_curvature(double score, double y, double parameter, double *slope)
{
    double rest, whole = exp2_256ths(score, &rest);
    (void) y, (void) parameter;
    *slope = 1.0 / (1.0 + (whole + rest));
    return *slope * (1.0 - *slope);
}

static inline double logistic_odds(double parameter, double score, double largest)
{
    (void) parameter, (void) largest;
    return 0.5 * (1.0 + tanh(0.5 * score));
}

/* ---- margin: ln(1 + exp(b - score)), e^-b the parameter ------------------------------------------------------ */

static inline double margin_factor(double score, double y, double parameter, double rate)
{
    /* -slope = 1/(1 + exp(score - b)), and again the denominator is at least 1. */
    double rest, whole = exp2_256ths(score, &rest);
    (void) y;
    return rate / ((1.0 + whole * parameter) + rest * parameter);
}

static inline double margin_curvature(double score, double y, double parameter, double *slope)
{
    double rest, whole = exp2_256ths(score, &rest);
    (void) y;
    *slope = 1.0 / (1.0 + (whole + rest) * parameter);
    return *slope * (1.0 - *slope);
}

static inline double margin_odds(double parameter, double score, double largest)
{
    const double b = -log(parameter), up = logistic_odds(1.0, b + score, largest);
    return up / (up + logistic_odds(1.0, b - score, largest));
}

/* ---- huber: the hinge max(0, 1 - score), with a parabola of half-width h, the parameter, around its kink ----- */

static inline double huber_factor(double score, double y, double parameter, double rate)
{
    /* -slope = (1 + h - score) / 2h, but between 0 and 1 */
    double slope = (1.0 + parameter - score) / (2.0 * parameter);
    (void) y;
    slope = slope > 0.0 ? slope : 0.0;
    slope = slope < 1.0 ? slope : 1.0;
    return rate * slope;
}

static inline double huber_curvature(double score, double y, double parameter, double *slope)
{
    *slope = huber_factor(score, y, parameter, 1.0);
    return *slope > 0.0 && *slope < 1.0 ? 1.0 : 0.0;
}

/* ---- multinomial: softmax cross-entropy ---------------------------------------------------------------------- */

/*
 * p = softmax(units * scores), with the unit of the loss among the units: powers, instead of the scores, `step`
 * numbers apart, and their sum. p_k = power / sum is at most 1, since the sum only grew from its term.
 */
static inline double multinomial_powers(double *scores, size_t step, size_t classes, double units, size_t label,
                                        double parameter)
{
    double largest = -HUGE_VAL, sum = 0.0;
    (void) label, (void) parameter;
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

static inline double multinomial_odds(double parameter, double score, double largest)
{
    (void) parameter;
    return exp(score - largest);
}

/* ---- multiclass_huber: the largest of the others' scores + 1 and the label's, less that, with parabolas ---------- */

/*
 * p = (scores + 1 but for the label) / h, projected on the simplex: max(at - t, 0) with the t for which these sum to 1.
 * The t of a set of classes leaves out those that are not above it, until all are; the largest always stays. What the
 * rounding of t took from the sum, or added, is shared by those that are left. Numbers that are none are taken for very
 * small ones.
 */
static inline double multiclass_huber_powers(double *scores, size_t step, size_t classes, double units, size_t label,
                                             double parameter)
{
    double largest = -HUGE_VAL, t = -HUGE_VAL, sum = 0.0;
    size_t above = 0, before;
    for (size_t k = 0; k < classes; k++) {
        scores[k * step] = scores[k * step] * units + (k == label ? 0.0 : 1.0);
        largest = scores[k * step] > largest ? scores[k * step] : largest;
    }
    for (size_t k = 0; k < classes; k++) {
        const double below = (scores[k * step] - largest) / parameter;
        scores[k * step] = below > -1.0 ? below : -1.0;
    }
    do {
        before = above;
        above = 0;
        sum = 0.0;
        for (size_t k = 0; k < classes; k++)
            if (scores[k * step] > t) {
                sum += scores[k * step];
                above++;
            }
        t = (sum - 1.0) / (double) above;
    } while (above != before);
    sum = 0.0;
    for (size_t k = 0; k < classes; k++) {
        scores[k * step] = scores[k * step] > t ? scores[k * step] - t : 0.0;
        sum += scores[k * step];
    }
    for (size_t k = 0; k < classes; k++) {
        const double p = scores[k * step] - (sum - 1.0) / (double) above;
        scores[k * step] = scores[k * step] > 0.0 && p > 0.0 ? p : 0.0;
    }
    return 1.0;
}

/* ---- robust: ln cosh(score - y) -------------------------------------------------------------------------------- */

static inline double robust_factor(double score, double y, double parameter, double rate)
{
    /* -slope = -tanh(score - y) = 2/(1 + exp(2(score - y))) - 1: between -1 and 1, exactly. */
    double rest, whole = exp2_256ths(score - y * TWO_UNITS, &rest);
    (void) parameter;
    return rate * (2.0 / ((1.0 + whole) + rest) - 1.0);
}

static inline double robust_curvature(double score, double y, double parameter, double *slope)
{
    double rest, whole = exp2_256ths(score - y * TWO_UNITS, &rest), twice;
    (void) parameter;
    twice = 2.0 / ((1.0 + whole) + rest);
    *slope = twice - 1.0;
    return twice * (2.0 - twice);
}

static inline double robust_label(double score)
{
    return score;
}

static inline double robust_error(double score, double y, double parameter)
{
    (void) parameter;
    return fabs(score - y);
}

/* ---- quantile: tau (y - score) + ln(1 + exp(score - y)), tau the parameter ------------------------------------- */

static inline double quantile_factor(double score, double y, double parameter, double rate)
{
    /* -slope = tau - p, with 1 - p = 1/(1 + exp(score - y)). */
    double rest, whole = exp2_256ths(score - y * UNITS_PER_NAT, &rest);
    return rate * (1.0 / ((1.0 + whole) + rest) - (1.0 - parameter));
}

static inline double quantile_curvature(double score, double y, double parameter, double *slope)
{
    double rest, whole = exp2_256ths(score - y * UNITS_PER_NAT, &rest), other;
    other = 1.0 / ((1.0 + whole) + rest);
    *slope = other - (1.0 - parameter);
    return other * (1.0 - other);
}

static inline double quantile_label(double score)
{
    return score;
}

static inline double quantile_error(double score, double y, double parameter)
{
    return y > score ? parameter * (y - score) : (1.0 - parameter) * (score - y);
}

/* ---- mean: ln(1 + exp(score)) - a score, a = (1 + y)/2 --------------------------------------------------------- */

static inline double mean_factor(double score, double y, double parameter, double rate)
{
    /* -slope = a - p = 1/(1 + exp(score)) - (1 - y)/2, for y from -1 to 1. */
    double rest, whole = exp2_256ths(score, &rest);
    (void) parameter;
    return rate * (1.0 / ((1.0 + whole) + rest) - 0.5 * (1.0 - y));
}

static inline double mean_curvature(double score, double y, double parameter, double *slope)
{
    double rest, whole = exp2_256ths(score, &rest), other;
    (void) parameter;
    other = 1.0 / ((1.0 + whole) + rest);
    *slope = other - 0.5 * (1.0 - y);
    return other * (1.0 - other);
}

static inline double mean_label(double score)
{
    return tanh(0.5 * score);
}

static inline double mean_error(double score, double y, double parameter)
{
    (void) parameter;
    return fabs(mean_label(score) - y);
}

/* ---- asked by number: what is no such loss gets NaN, which no state takes for a number ------------------------ */

/* What the table says of a loss. */
struct loss_facts {
    const char *name;   /* as in certificates and in boltdp.models; NULL for what is no loss */
    const char *target; /* the kind of target that losses.py names */
    int is_joint;       /* whether there is one weight vector for each class */
    int has_kinks;
    int has_odds;
    int has_label;      /* whether a score predicts a number */
    double unit;
    double max_curvature; /* of one score */
};

static inline __attribute__((always_inline)) struct loss_facts loss_facts(uint64_t loss)
{
#define CASE(number, name, form, target, slope, link, unit)                                          \
    case number:                                                                                    \
        return (struct loss_facts){#name, TARGET_OF_##target, 0 IF_JOINT_##form(+ 1),               \
                                   HAS_KINKS_##slope, 0 IF_ODDS_##link(+ 1),                        \
                                   0 IF_LABEL_##link(+ 1), unit, MAX_CURVATURE_##slope};
    switch (loss) {
        LOSSES(CASE)
    }
#undef CASE
    return (struct loss_facts){NULL, NULL, 0, 0, 0, 0, NAN, 0.0};
}

/* What it reads of n labels: their signs and y. */
static inline __attribute__((always_inline)) void loss_labels(uint64_t loss, const double *labels, size_t n,
                                                              const struct label_reading *by, double *signs,
                                                              double *y)
{
#define CASE(number, name, form, target, slope, link, unit)                            \
    case number:                                                                      \
        for (size_t i = 0; i < n; i++) {                                              \
            const struct label read = target##_label(labels[i], by);                   \
            signs[i] = read.sign;                                                     \
            y[i] = read.y;                                                            \
        }                                                                             \
        break;
    switch (loss) {
        LOSSES(CASE)
    default: /* no loss, all of whose rows are neutral */
        memset(signs, 0, n * sizeof *signs);
        memset(y, 0, n * sizeof *y);
    }
#undef CASE
}

static inline double loss_factor(uint64_t loss, double score, double y, double parameter, double rate)
{
#define CASE(number, name, form, target, slope, link, unit) \
    IF_MARGIN_##form(case number : return name##_factor(score, y, parameter, rate);)
    switch (loss) {
        LOSSES(CASE)
    }
#undef CASE
    return NAN;
}

static inline double loss_curvature(uint64_t loss, double score, double y, double parameter, double *negative_slope)
{
#define CASE(number, name, form, target, slope, link, unit) \
    IF_MARGIN_##form(case number : return name##_curvature(score, y, parameter, negative_slope);)
    switch (loss) {
        LOSSES(CASE)
    }
#undef CASE
    return *negative_slope = NAN;
}

static inline double loss_powers(uint64_t loss, double *scores, size_t step, size_t classes, double scale, size_t label,
                                 double parameter)
{
#define CASE(number, name, form, target, slope, link, unit) \
    IF_JOINT_##form(case number : return name##_powers(scores, step, classes, scale * (unit), label, parameter);)
    switch (loss) {
        LOSSES(CASE)
    }
#undef CASE
    return NAN;
}

static inline double loss_odds(uint64_t loss, double parameter, double score, double largest)
{
#define CASE(number, name, form, target, slope, link, unit) \
    IF_ODDS_##link(case number : return name##_odds(parameter, score, largest);)
    switch (loss) {
        LOSSES(CASE)
    }
#undef CASE
    return NAN;
}

/* The label that a score predicts, as it was read. */
static inline double loss_label(uint64_t loss, double score)
{
#define CASE(number, name, form, target, slope, link, unit) \
    IF_LABEL_##link(case number : return name##_label(score);)
    switch (loss) {
        LOSSES(CASE)
    }
#undef CASE
    return NAN;
}

static inline double loss_error(uint64_t loss, double score, double y, double parameter)
{
#define CASE(number, name, form, target, slope, link, unit) \
    IF_LABEL_##link(case number : return name##_error(score, y, parameter);)
    switch (loss) {
        LOSSES(CASE)
    }
#undef CASE
    return NAN;
}

/* Weight vectors of one model. */
static inline uint64_t loss_vectors(uint64_t loss, uint64_t classes)
{
    return loss_facts(loss).is_joint ? classes : 1;
}

/* The loss of this name, or LOSS_COUNT. */
static inline uint64_t find_loss(const char *name)
{
    uint64_t loss = 0;
    while (loss < LOSS_COUNT && strcmp(loss_facts(loss).name, name) != 0)
        loss++;
    return loss;
}

/* ---- for the binding and the tests: losses_for_python.c ----------------------------------------------------------------- */

void losses_facts(uint64_t loss, struct loss_facts *out);
uint64_t losses_vectors(uint64_t loss, uint64_t classes);

/* The slope of a margin loss at a score, as an update has it; and its second derivative, of a kinked one in its unit. */
double losses_slope(uint64_t loss, double parameter, double score, double y);
double losses_curvature(uint64_t loss, double parameter, double score, double y);

#endif
