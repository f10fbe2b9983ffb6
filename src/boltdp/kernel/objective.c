/* objective.c: derivatives of the loss summed over rows. objective.h says what for. */
#include "objective.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "losses.h"
#include "sgd.h"

typedef double vec4 __attribute__((vector_size(32), aligned(8), may_alias));

#define INLINE static inline __attribute__((always_inline))
#define AT(p, i) (*(vec4 *) ((p) + (i)))
#define LANES(v) (((v)[0] + (v)[1]) + ((v)[2] + (v)[3]))

static uint64_t vectors(const struct objective_state *s)
{
    return loss_vectors(s->loss, s->classes);
}

static uint64_t stride_of(const struct objective_state *s)
{
    return (s->dims + 3) / 4 * 4;
}

/* How many numbers the weights are, and how many their sum. */
static uint64_t weights_of(const struct objective_state *s)
{
    return vectors(s) * stride_of(s);
}

static uint64_t numbers(const struct objective_state *s)
{
    return weights_of(s) * (s->kind == OBJECTIVE_HESSIAN ? s->dims : 1);
}

/* Where each array of `data` begins. */
enum { WEIGHTS, DIRECTION, PARTIAL, TOTAL, LOST, ARRAYS };

static uint64_t place_of(const struct objective_state *s, uint64_t array)
{
    return array < PARTIAL ? array * weights_of(s) : PARTIAL * weights_of(s) + (array - PARTIAL) * numbers(s);
}

static double *array_of(struct objective_state *s, uint64_t array)
{
    return s->data + place_of(s, array);
}

/* Where in `data` the weights of the classes are, if there are any. */
static uint64_t class_weights_at(const struct objective_state *s)
{
    return place_of(s, ARRAYS) + stride_of(s) + 2 * vectors(s);
}

uint64_t objective_bytes(uint64_t loss, uint64_t dims, uint64_t classes, uint64_t positive, uint64_t kind,
                         uint64_t weighted)
{
    struct objective_state s = {.loss = loss, .dims = dims, .classes = classes, .kind = kind};
    if (loss >= LOSS_COUNT || (kind != OBJECTIVE_GRADIENT && !loss_has_hessian(loss)) || dims < 1 ||
        dims > SGD_MAX_DIMS || classes < 2 || classes > SGD_MAX_CLASSES || positive >= classes ||
        kind > OBJECTIVE_HESSIAN || (kind == OBJECTIVE_HESSIAN && dims > OBJECTIVE_MAX_HESSIAN_DIMS) || weighted > 1)
        return 0;
    return sizeof s + sizeof(double) * (class_weights_at(&s) + (weighted ? classes : 0));
}

static int numbers_are_sound(uint64_t kind, double parameter, double clip)
{
    return parameter > 0.0 && parameter <= DBL_MAX && clip > 0.0 && (kind == OBJECTIVE_GRADIENT || clip > DBL_MAX);
}

int objective_check(const void *state, size_t bytes)
{
    const struct objective_state *s = state;
    if ((uintptr_t) state % sizeof(double) != 0)
        return SGD_UNALIGNED;
    if (bytes < sizeof *s || s->magic != OBJECTIVE_MAGIC || s->bytes != bytes ||
        s->waiting >= OBJECTIVE_SUMMED_ROWS || !numbers_are_sound(s->kind, s->parameter, s->clip) ||
        objective_bytes(s->loss, s->dims, s->classes, s->positive, s->kind, s->weighted) != bytes)
        return SGD_CORRUPT;
    if (s->weighted && !sgd_class_weights_are_sound(s->data + class_weights_at(s), s->classes))
        return SGD_CORRUPT;
    for (size_t i = 0; i < sizeof s->unused / sizeof *s->unused; i++)
        if (s->unused[i] != 0)
            return SGD_CORRUPT;
    return SGD_OK;
}

int objective_init(void *state, size_t bytes, uint64_t loss, uint64_t dims, uint64_t classes, uint64_t positive,
                   uint64_t kind, uint64_t weighted, double parameter, double clip, const double *weights,
                   const double *direction, const double *class_weights)
{
    struct objective_state *s = state;
    if (!numbers_are_sound(kind, parameter, clip) ||
        objective_bytes(loss, dims, classes, positive, kind, weighted) != bytes ||
        (kind == OBJECTIVE_PRODUCT) != (direction != NULL) || (weighted != 0) != (class_weights != NULL) ||
        (class_weights != NULL && !sgd_class_weights_are_sound(class_weights, classes)))
        return SGD_BAD_RECIPE;
    if ((uintptr_t) state % sizeof(double) != 0)
        return SGD_UNALIGNED;
    memset(s, 0, bytes);
    s->magic = OBJECTIVE_MAGIC;
    s->bytes = bytes;
    s->loss = loss;
    s->dims = dims;
    s->classes = classes;
    s->positive = positive;
    s->kind = kind;
    s->parameter = parameter;
    s->clip = clip;
    s->weighted = weighted;
    if (class_weights != NULL)
        memcpy(s->data + class_weights_at(s), class_weights, classes * sizeof *class_weights);
    for (uint64_t k = 0; k < vectors(s); k++) {
        memcpy(array_of(s, WEIGHTS) + k * stride_of(s), weights + k * dims, dims * sizeof *weights);
        if (direction != NULL)
            memcpy(array_of(s, DIRECTION) + k * stride_of(s), direction + k * dims, dims * sizeof *direction);
    }
    return SGD_OK;
}

/* a + b = sum + error, exactly (Knuth's TwoSum); the error goes to `lost`. */
static inline void add_exactly(double *total, double *lost, double b)
{
    const double a = *total, sum = a + b, back = sum - a;
    *lost += (a - (sum - back)) + (b - back);
    *total = sum;
}

/* Let the rows that wait join the total. */
static void fold(struct objective_state *s)
{
    double *partial = array_of(s, PARTIAL), *total = array_of(s, TOTAL), *lost = array_of(s, LOST);
    for (uint64_t i = 0; i < numbers(s); i++) {
        add_exactly(total + i, lost + i, partial[i]);
        partial[i] = 0.0;
    }
    s->waiting = 0;
}

/*
 * Rows are taken several at a time, since their sums do not wait for each other: n of them, which the compiler knows.
 * Each has the same operations in the same order however many are taken, and so the same bits.
 */
#define TILE 4
#define TILE_STRIDE 256 /* wider rows, */
#define TILE_VECTORS 64 /* and those of more classes, are taken one at a time */

struct tile {
    double *x;      /* rows of `stride` numbers */
    double *scores; /* 2 * V numbers for each row */
    double labels[TILE], scales[TILE];
    double weights[TILE]; /* of the labels' classes, where these have some */
    double lengths[TILE]; /* where gradients are clipped */
};

/* Widen rows of `dims` numbers, padded with zeros, and sum the squares of each. */
INLINE void widen(double *squares, double *x, size_t stride, const float *rows, size_t dims, int n)
{
    vec4 sums[TILE] = {{0}};
    size_t i = 0;
    for (; i + 4 <= dims; i += 4)
        for (int r = 0; r < n; r++) {
            const float *row = rows + r * (1 + dims) + i;
            const vec4 four = {row[0], row[1], row[2], row[3]};
            AT(x, r * stride + i) = four;
            sums[r] += four * four;
        }
    for (int r = 0; r < n; r++) {
        if (i < dims) {
            const float *row = rows + r * (1 + dims) + i;
            const vec4 rest = {row[0], i + 1 < dims ? row[1] : 0.0, i + 2 < dims ? row[2] : 0.0, 0.0};
            AT(x, r * stride + i) = rest;
            sums[r] += rest * rest;
        }
        squares[r] = LANES(sums[r]);
    }
}

/* out = <a, x> for each row x. */
INLINE void dots(double *out, const double *a, const double *x, size_t stride, int n)
{
    vec4 sums[TILE] = {{0}};
    for (size_t i = 0; i < stride; i += 4)
        for (int r = 0; r < n; r++)
            sums[r] += AT(a, i) * AT(x, r * stride + i);
    for (int r = 0; r < n; r++)
        out[r] = LANES(sums[r]);
}

/* to += factor * x for each row x, one after the other, from number `first` on. */
INLINE void add_multiples(double *to, const double *factors, const double *x, size_t first, size_t stride, int n)
{
    double own[TILE]; /* which no store to `to` can change */
    memcpy(own, factors, n * sizeof *own);
    for (size_t i = first; i < stride; i += 4) {
        vec4 sum = AT(to, i);
        for (int r = 0; r < n; r++)
            sum += own[r] * AT(x, r * stride + i);
        AT(to, i) = sum;
    }
}

/* hessian += factor * x * x^T for each row x, but for most of what is left of the diagonal, which is never read. */
INLINE void add_squares(double *hessian, const double *factors, const double *x, size_t dims, size_t stride, int n)
{
    for (size_t i = 0; i < dims; i++) {
        double multiples[TILE];
        for (int r = 0; r < n; r++)
            multiples[r] = factors[r] * x[r * stride + i];
        add_multiples(hessian + i * stride, multiples, x, i / 4 * 4, stride, n);
    }
}

/* Add the rows, each by its factor for weight vector k, to what is summed. */
INLINE void add_factors(struct objective_state *s, size_t k, const double *factors, const double *x, int n)
{
    const size_t stride = stride_of(s);
    if (s->kind == OBJECTIVE_HESSIAN)
        add_squares(array_of(s, PARTIAL) + k * s->dims * stride, factors, x, s->dims, stride, n);
    else
        add_multiples(array_of(s, PARTIAL) + k * stride, factors, x, 0, stride, n);
}

/* With s the guard's factor the row stands for s*x, and its margin is y*s*<w, x>. */
INLINE void add_margins(struct objective_state *s, const struct tile *t, int first, int n)
{
    const size_t stride = stride_of(s);
    const double *x = t->x + first * stride, *labels = t->labels + first, *scales = t->scales + first;
    const double *lengths = t->lengths + first, *class_weights = t->weights + first;
    double factors[TILE], along[TILE] = {0};
    dots(factors, array_of(s, WEIGHTS), x, stride, n);
    if (s->kind == OBJECTIVE_PRODUCT)
        dots(along, array_of(s, DIRECTION), x, stride, n);
    for (int r = 0; r < n; r++) {
        const double scale = scales[r], signed_scale = labels[r] == (double) s->positive ? scale : -scale;
        const double margin = factors[r] * (signed_scale * loss_unit(s->loss));
        const double bend = s->kind == OBJECTIVE_PRODUCT ? along[r] * scale : scale;
        double slope, curvature = 0.0;
        if (loss_has_hessian(s->loss))
            curvature = loss_curvature(s->loss, margin, s->parameter, &slope);
        else
            slope = loss_factor(s->loss, margin, s->parameter, 1.0);
        if (s->weighted) {
            slope *= class_weights[r];
            curvature *= class_weights[r];
        }
        if (s->clip <= DBL_MAX && slope * (scale * lengths[r]) > s->clip)
            slope = s->clip / (scale * lengths[r]);
        factors[r] = s->kind == OBJECTIVE_GRADIENT ? -slope * signed_scale : curvature * bend * scale;
    }
    add_factors(s, 0, factors, x, n);
}

/* Shorten factors, `step` numbers apart, whose outer product with a row of this length is longer than `clip`. */
INLINE void clip_factors(double *factors, size_t step, size_t classes, double length, double clip)
{
    double square = 0.0;
    for (size_t k = 0; k < classes; k++)
        square += factors[k * step] * factors[k * step];
    const double product = sqrt(square) * length;
    for (size_t k = 0; product > clip && k < classes; k++)
        factors[k * step] *= clip / product;
}

/*
 * p = softmax(s * <w_k, x>). The factors are s times the class's weight times: p_k - [k is the label] for the gradient;
 * p_k * (a_k - <p, a>), with a_k = s * <direction_k, x>, for a product; p_k * (1 - p_k) * s for the Hessian.
 */
INLINE void add_multinomial(struct objective_state *s, const struct tile *t, int first, int n)
{
    const size_t classes = s->classes, stride = stride_of(s);
    const double *x = t->x + first * stride, *labels = t->labels + first, *scales = t->scales + first;
    const double *lengths = t->lengths + first, *class_weights = t->weights + first;
    double *p = t->scores, *a = p + n * classes; /* of row r and class k at k * n + r */
    for (size_t k = 0; k < classes; k++)
        dots(p + k * n, array_of(s, WEIGHTS) + k * stride, x, stride, n);
    for (size_t k = 0; s->kind == OBJECTIVE_PRODUCT && k < classes; k++)
        dots(a + k * n, array_of(s, DIRECTION) + k * stride, x, stride, n);
    for (int r = 0; r < n; r++) {
        const double sum = multinomial_powers(p + r, n, classes, scales[r] * loss_unit(LOSS_MULTINOMIAL));
        const double weighted_scale = s->weighted ? scales[r] * class_weights[r] : scales[r];
        double mean = 0.0;
        for (size_t k = 0; k < classes; k++)
            p[k * n + r] /= sum;
        for (size_t k = 0; s->kind == OBJECTIVE_PRODUCT && k < classes; k++)
            mean += p[k * n + r] * (a[k * n + r] *= scales[r]);
        for (size_t k = 0; k < classes; k++) {
            const double share = p[k * n + r];
            const double factor = s->kind == OBJECTIVE_GRADIENT  ? share - (double) ((double) k == labels[r])
                                  : s->kind == OBJECTIVE_PRODUCT ? share * (a[k * n + r] - mean)
                                                                 : share * (1.0 - share) * scales[r];
            p[k * n + r] = weighted_scale * factor;
        }
        if (s->clip <= DBL_MAX)
            clip_factors(p + r, n, classes, lengths[r], s->clip);
    }
    for (size_t k = 0; k < classes; k++)
        add_factors(s, k, p + k * n, x, n);
}

INLINE void add_rows(struct objective_state *s, const struct tile *t, int first, int n)
{
    if (loss_is_joint(s->loss))
        add_multinomial(s, t, first, n);
    else
        add_margins(s, t, first, n);
}

/* Add n rows, but those that are neutral. */
INLINE void add_tile(struct objective_state *s, struct tile *t, const float *rows, int n)
{
    const size_t dims = s->dims;
    double squares[TILE];
    int good = 0;
    widen(squares, t->x, stride_of(s), rows + 1, dims, n);
    for (int r = 0; r < n; r++) {
        const double label = rows[r * (1 + dims)];
        const int declared = label >= 0.0 && label < (double) s->classes && (double) (uint64_t) label == label;
        t->labels[r] = label;
        t->scales[r] = declared ? sgd_row_scale(squares[r], dims) : 0.0;
        if (s->weighted)
            t->weights[r] = declared ? s->data[class_weights_at(s) + (uint64_t) label] : 1.0;
        t->lengths[r] = s->clip <= DBL_MAX ? sqrt(squares[r]) : 0.0;
        good += t->scales[r] > 0.0;
    }
    if (good == n)
        add_rows(s, t, 0, n);
    else
        for (int r = 0; r < n; r++)
            if (t->scales[r] > 0.0)
                add_rows(s, t, r, 1);
}

INLINE void scan(struct objective_state *s, const float *rows, size_t n_rows)
{
    double local[TILE * (TILE_STRIDE + 2 * TILE_VECTORS)];
    const size_t stride = stride_of(s), width = 1 + s->dims;
    const int tiled = stride <= TILE_STRIDE && vectors(s) <= TILE_VECTORS;
    struct tile t = {.x = tiled ? local : array_of(s, ARRAYS)};
    t.scores = t.x + (tiled ? TILE : 1) * stride;
    for (size_t i = 0; i < n_rows;) {
        const int n = tiled && i + TILE <= n_rows && s->waiting + TILE <= OBJECTIVE_SUMMED_ROWS ? TILE : 1;
        if (n == TILE)
            add_tile(s, &t, rows + i * width, TILE);
        else
            add_tile(s, &t, rows + i * width, 1);
        i += n;
        s->waiting += n;
        if (s->waiting == OBJECTIVE_SUMMED_ROWS)
            fold(s);
    }
}

static void scan_portable(struct objective_state *s, const float *rows, size_t n_rows)
{
    scan(s, rows, n_rows);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void scan_avx2(struct objective_state *s, const float *rows, size_t n_rows)
{
    scan(s, rows, n_rows);
}
#endif

int objective_add(void *state, size_t bytes, const float *rows, size_t n_rows, int build)
{
    const int code = objective_check(state, bytes);
    if (code != SGD_OK)
        return code;
    if (!sgd_has_build(build))
        return SGD_BAD_BUILD;
    if ((uintptr_t) rows % sizeof(float) != 0)
        return SGD_UNALIGNED;
#if defined(__x86_64__)
    if (build != SGD_PORTABLE && sgd_has_build(SGD_AVX2)) {
        scan_avx2(state, rows, n_rows);
        return SGD_OK;
    }
#endif
    scan_portable(state, rows, n_rows);
    return SGD_OK;
}

/* A number of the sum, wherever its rows are by now. */
static double number_at(const struct objective_state *s, uint64_t at)
{
    double total = s->data[place_of(s, TOTAL) + at], lost = s->data[place_of(s, LOST) + at];
    add_exactly(&total, &lost, s->data[place_of(s, PARTIAL) + at]);
    return total + lost;
}

int objective_sum(const void *state, size_t bytes, double *out)
{
    const struct objective_state *s = state;
    const int code = objective_check(state, bytes);
    if (code != SGD_OK)
        return code;
    const uint64_t dims = s->dims, stride = stride_of(s), rows = s->kind == OBJECTIVE_HESSIAN ? dims : 1;
    for (uint64_t k = 0; k < vectors(s); k++)
        for (uint64_t i = 0; i < rows; i++)
            for (uint64_t j = 0; j < dims; j++) {
                const uint64_t row = i < j ? i : j, column = i < j ? j : i; /* left of the diagonal is as above it */
                *out++ = number_at(s, (k * rows + row) * stride + column);
            }
    return SGD_OK;
}
