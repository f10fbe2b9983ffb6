/* objective.c: derivatives of the loss summed over rows. objective.h says what for. */
#include "objective.h"

#include <string.h>

#include "sgd.h"

typedef double vec4 __attribute__((vector_size(32), aligned(8), may_alias));
typedef float vec4f __attribute__((vector_size(16), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))
#define AT(p, i) (*(vec4 *) ((p) + (i)))
#define LANES(v) (((v)[0] + (v)[1]) + ((v)[2] + (v)[3]))
#define UNITS_PER_NAT 0x1.71547652b82fep+8 /* 256 / ln 2: sgd_exp2_256ths counts in 256ths of a power of two */

static uint64_t vectors(const struct objective_state *s)
{
    return s->loss == SGD_MULTINOMIAL ? s->classes : 1;
}

static uint64_t stride_of(const struct objective_state *s)
{
    return (s->dims + 3) / 4 * 4;
}

/* Where each array of `data` begins. */
static uint64_t numbers(const struct objective_state *s)
{
    return vectors(s) * stride_of(s);
}

static double *array_of(struct objective_state *s, uint64_t which)
{
    return s->data + which * numbers(s);
}

enum { WEIGHTS, DIRECTION, PARTIAL, TOTAL, LOST, ARRAYS };

uint64_t objective_bytes(uint64_t loss, uint64_t dims, uint64_t classes, uint64_t positive)
{
    struct objective_state s = {.loss = loss, .dims = dims, .classes = classes};
    if ((loss != SGD_LOGISTIC && loss != SGD_MULTINOMIAL) || dims < 1 || dims > SGD_MAX_DIMS || classes < 2 ||
        classes > SGD_MAX_CLASSES || positive >= classes)
        return 0;
    return sizeof s + sizeof(double) * (ARRAYS * numbers(&s) + stride_of(&s) + 2 * vectors(&s));
}

int objective_check(const void *state, size_t bytes)
{
    const struct objective_state *s = state;
    if ((uintptr_t) state % sizeof(double) != 0)
        return SGD_UNALIGNED;
    if (bytes < sizeof *s || s->magic != OBJECTIVE_MAGIC || s->bytes != bytes || s->product > 1 ||
        s->waiting >= OBJECTIVE_SUMMED_ROWS || objective_bytes(s->loss, s->dims, s->classes, s->positive) != bytes)
        return SGD_CORRUPT;
    return SGD_OK;
}

int objective_init(void *state, size_t bytes, uint64_t loss, uint64_t dims, uint64_t classes, uint64_t positive,
                   const double *weights, const double *direction)
{
    struct objective_state *s = state;
    if (objective_bytes(loss, dims, classes, positive) != bytes)
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
    s->product = direction != NULL;
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

INLINE double dot(const double *a, const double *b, size_t count)
{
    vec4 even = {0}, odd = {0};
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        even += AT(a, i) * AT(b, i);
        odd += AT(a, i + 4) * AT(b, i + 4);
    }
    if (i < count)
        even += AT(a, i) * AT(b, i);
    even += odd;
    return LANES(even);
}

INLINE void add_multiple(double *to, double factor, const double *x, size_t count)
{
    for (size_t i = 0; i < count; i += 4)
        AT(to, i) += factor * AT(x, i);
}

/* Widen a row, padded with zeros, and return its sum of squares. */
INLINE double widen(double *x, const float *row, size_t dims)
{
    vec4 squares = {0};
    size_t i = 0;
    for (; i + 4 <= dims; i += 4) {
        const vec4 four = __builtin_convertvector(*(const vec4f *) (row + i), vec4);
        AT(x, i) = four;
        squares += four * four;
    }
    if (i < dims) {
        for (size_t j = i; j < dims; j++)
            x[j] = row[j];
        squares += AT(x, i) * AT(x, i);
    }
    return LANES(squares);
}

/* With s the guard's factor the row stands for s*x. slope = 1/(1 + exp(margin)), margin = y*s*<w, x>. */
INLINE void add_logistic(struct objective_state *s, const double *x, size_t stride, double label, double scale)
{
    const double signed_scale = label == (double) s->positive ? scale : -scale;
    const double *w = array_of(s, WEIGHTS);
    const double slope =
        1.0 / (1.0 + sgd_exp2_256ths(dot(w, x, stride) * (signed_scale * UNITS_PER_NAT)));
    double factor = -slope * signed_scale;
    if (s->product)
        factor = slope * (1.0 - slope) * (dot(array_of(s, DIRECTION), x, stride) * scale) * scale;
    add_multiple(array_of(s, PARTIAL), factor, x, stride);
}

/* p = softmax(s * <w_k, x>); factors p_k - [k is the label], or p_k * (a_k - <p, a>) with a_k = s * <direction_k, x>. */
INLINE void add_multinomial(struct objective_state *s, const double *x, size_t stride, double label, double scale)
{
    const size_t classes = s->classes;
    double *p = array_of(s, ARRAYS) + stride, *a = p + classes;
    double largest = 0.0, sum = 0.0, mean = 0.0;
    for (size_t k = 0; k < classes; k++) {
        p[k] = dot(array_of(s, WEIGHTS) + k * stride, x, stride) * (scale * UNITS_PER_NAT);
        largest = k == 0 || p[k] > largest ? p[k] : largest;
    }
    for (size_t k = 0; k < classes; k++)
        sum += p[k] = sgd_exp2_256ths(p[k] - largest);
    for (size_t k = 0; k < classes; k++)
        p[k] /= sum;
    if (s->product)
        for (size_t k = 0; k < classes; k++) {
            a[k] = dot(array_of(s, DIRECTION) + k * stride, x, stride) * scale;
            mean += p[k] * a[k];
        }
    for (size_t k = 0; k < classes; k++) {
        const double factor = s->product ? p[k] * (a[k] - mean) : p[k] - (double) ((double) k == label);
        add_multiple(array_of(s, PARTIAL) + k * stride, factor * scale, x, stride);
    }
}

INLINE void scan(struct objective_state *s, const float *rows, size_t n_rows)
{
    const size_t dims = s->dims, stride = stride_of(s);
    double *x = array_of(s, ARRAYS);
    for (size_t i = 0; i < n_rows; i++) {
        const float *row = rows + i * (1 + dims);
        const double label = row[0], scale = sgd_row_scale(widen(x, row + 1, dims), dims);
        if (scale > 0.0 && label >= 0.0 && label < (double) s->classes && (double) (uint64_t) label == label) {
            if (s->loss == SGD_MULTINOMIAL)
                add_multinomial(s, x, stride, label, scale);
            else
                add_logistic(s, x, stride, label, scale);
        }
        if (++s->waiting == OBJECTIVE_SUMMED_ROWS)
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

int objective_combine(void *state, size_t bytes, const void *other, size_t other_bytes)
{
    struct objective_state *s = state;
    int code = objective_check(state, bytes);
    if (code == SGD_OK)
        code = objective_check(other, other_bytes);
    if (code != SGD_OK)
        return code;
    const struct objective_state *o = other;
    const size_t same = 2 * numbers(s) * sizeof(double); /* weights and direction */
    if (bytes != other_bytes || s->loss != o->loss || s->dims != o->dims || s->classes != o->classes ||
        s->positive != o->positive || s->product != o->product || memcmp(s->data, o->data, same) != 0)
        return SGD_CORRUPT;
    const double *from = o->data;
    double *total = array_of(s, TOTAL), *lost = array_of(s, LOST);
    fold(s);
    for (uint64_t i = 0; i < numbers(s); i++) {
        add_exactly(total + i, lost + i, from[PARTIAL * numbers(s) + i]);
        add_exactly(total + i, lost + i, from[TOTAL * numbers(s) + i]);
        lost[i] += from[LOST * numbers(s) + i];
    }
    return SGD_OK;
}

int objective_sum(const void *state, size_t bytes, double *out)
{
    const struct objective_state *s = state;
    const int code = objective_check(state, bytes);
    if (code != SGD_OK)
        return code;
    const uint64_t all = numbers(s);
    for (uint64_t k = 0; k < vectors(s); k++)
        for (uint64_t i = 0; i < s->dims; i++) {
            const uint64_t at = k * stride_of(s) + i;
            double total = s->data[TOTAL * all + at], lost = s->data[LOST * all + at];
            add_exactly(&total, &lost, s->data[PARTIAL * all + at]);
            *out++ = total + lost;
        }
    return SGD_OK;
}
