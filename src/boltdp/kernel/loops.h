/*
 * loops.h: the loops over rows. sgd.c includes it once for each instruction set: NAME gives the functions their suffix,
 * TARGET gives the compiler its permission, and what is computed is the same to the bit.
 *
 * The association of every sum of products, with d numbers: whole groups of four are dealt in turn to four
 * accumulators of four lanes, sixteen partial sums in all; the last d mod 4 products are added one by one to a
 * seventeenth. Then  s = (a0 + a1) + (a2 + a3)  lane by lane, and  ((s0 + s2) + (s1 + s3)) + rest.
 */

#define INLINE static inline __attribute__((always_inline)) TARGET

/* Numbers i .. i+3, or number i, of x. The element type is a constant wherever these expand: one side remains. */
#define FOUR(x, i, element)                                                                                  \
    ((element) == SGD_FLOAT32 ? __builtin_convertvector(*(const vec4f *) ((const float *) (x) + (i)), vec4) \
                              : *(const vec4 *) ((const double *) (x) + (i)))
#define ONE(x, i, element) ((element) == SGD_FLOAT32 ? (double) ((const float *) (x))[i] : ((const double *) (x))[i])
#define STORE(w, i, four) (*(vec4 *) ((w) + (i)) = (four))

/* <x, y>, in the association above. */
INLINE double NAME(dot)(const void *x, int x_element, const void *y, int y_element, size_t d)
{
    vec4 a0 = {0}, a1 = {0}, a2 = {0}, a3 = {0};
    size_t i = 0;
    for (; i + 16 <= d; i += 16) {
        a0 += FOUR(x, i, x_element) * FOUR(y, i, y_element);
        a1 += FOUR(x, i + 4, x_element) * FOUR(y, i + 4, y_element);
        a2 += FOUR(x, i + 8, x_element) * FOUR(y, i + 8, y_element);
        a3 += FOUR(x, i + 12, x_element) * FOUR(y, i + 12, y_element);
    }
    if (d & 8) {
        a0 += FOUR(x, i, x_element) * FOUR(y, i, y_element);
        a1 += FOUR(x, i + 4, x_element) * FOUR(y, i + 4, y_element);
        i += 8;
        if (d & 4) {
            a2 += FOUR(x, i, x_element) * FOUR(y, i, y_element);
            i += 4;
        }
    } else if (d & 4) {
        a0 += FOUR(x, i, x_element) * FOUR(y, i, y_element);
        i += 4;
    }
    double rest = 0;
    for (; i < d; i++)
        rest += ONE(x, i, x_element) * ONE(y, i, y_element);
    vec4 s = (a0 + a1) + (a2 + a3);
    return ((s[0] + s[2]) + (s[1] + s[3])) + rest;
}

/* w = decay * w + factor * x */
INLINE void NAME(move)(double *w, double decay, double factor, const void *x, int element, size_t d)
{
    size_t i = 0;
    if (decay == 1.0) {
        for (; i + 4 <= d; i += 4)
            STORE(w, i, FOUR(w, i, SGD_FLOAT64) + factor * FOUR(x, i, element));
        for (; i < d; i++)
            w[i] += factor * ONE(x, i, element);
    } else {
        for (; i + 4 <= d; i += 4)
            STORE(w, i, decay * FOUR(w, i, SGD_FLOAT64) + factor * FOUR(x, i, element));
        for (; i < d; i++)
            w[i] = decay * w[i] + factor * ONE(x, i, element);
    }
}

/* w = factor * w */
INLINE void NAME(scale)(double *w, double factor, size_t d)
{
    for (size_t i = 0; i < d; i++)
        w[i] *= factor;
}

/* The guard of `n` rows. A label that is not a whole number >= 0 makes a row neutral here; one too large, in each model. */
INLINE void NAME(guard)(struct guarded *g, const char *rows, size_t n, size_t dims, int element)
{
    size_t size = element == SGD_FLOAT32 ? sizeof(float) : sizeof(double);
    double margin = guard_margin(dims);
    for (size_t i = 0; i < n; i++) {
        const char *row = rows + i * (1 + dims) * size, *x = row + size;
        double label = ONE(row, 0, element);
        double scale = row_scale(NAME(dot)(x, element, x, element, dims), margin);
        int declared = label >= 0 && label < (double) SGD_MAX_CLASSES && label == (double) (int32_t) label;
        g->label[i] = label;
        g->scale[i] = declared ? scale : 0.0;
    }
}

/*
 * What the row adds to the weights is factor * x for each vector. `rate` is eta/|B|, `scale` the guard's s: the row
 * stands for s*x, so its score is s*<w, x> and its gradient s times the slope times x.
 */
INLINE double NAME(binary_factor)(const struct sgd_recipe *r, const double *w, const void *x, double label, double scale,
                                  double rate, int element)
{
    double signed_scale = label == (double) r->positive ? scale : -scale;
    double score = NAME(dot)(x, element, w, SGD_FLOAT64, r->dims);
    if (r->loss == SGD_LOGISTIC) {
        /* -slope = 1/(1 + exp(y*z)); the denominator is at least 1, so |slope| <= 1 holds exactly. */
        double rest, whole = exp2_64ths(score * (signed_scale * UNITS_PER_NAT), &rest);
        return rate * signed_scale / ((1.0 + whole) + rest);
    }
    /* -slope = (1 + h - y*z) / 2h between 0 and 1 */
    double slope = (1.0 + r->width - score * signed_scale) / (2.0 * r->width);
    slope = slope > 0.0 ? slope : 0.0;
    slope = slope < 1.0 ? slope : 1.0;
    return rate * signed_scale * slope;
}

/* factors[k] = rate * s * ([k is the label] - p_k), with p = softmax(s * <w_k, x>). */
INLINE void NAME(multinomial_factors)(const struct sgd_recipe *r, const double *w, const void *x, double label, double scale,
                                      double rate, int element, double *factors)
{
    size_t classes = r->classes, dims = r->dims;
    double largest = -HUGE_VAL, sum = 0.0, units = scale * UNITS_PER_NAT;
    for (size_t k = 0; k < classes; k++) {
        factors[k] = units * NAME(dot)(x, element, w + k * dims, SGD_FLOAT64, dims);
        largest = factors[k] > largest ? factors[k] : largest;
    }
    for (size_t k = 0; k < classes; k++) {
        factors[k] = sgd_exp2_64ths(factors[k] - largest);
        sum += factors[k];
    }
    rate *= scale;
    for (size_t k = 0; k < classes; k++) {
        double p = factors[k] / sum; /* at most 1: the sum only grew from this term */
        factors[k] = rate * ((k == (size_t) label ? 1.0 : 0.0) - p);
    }
}

/* After each update: back into the ball, and into the sum of the iterates. */
INLINE void NAME(project)(double *w, double radius, size_t count)
{
    double norm = sqrt(NAME(dot)(w, SGD_FLOAT64, w, SGD_FLOAT64, count));
    if (norm > radius)
        NAME(scale)(w, radius / norm, count);
}

/* Feed `n` guarded rows to one model. */
INLINE void NAME(feed)(struct sgd_state *s, const struct guarded *g, const char *rows, size_t n, int element)
{
    const struct sgd_recipe *r = &s->recipe;
    const size_t dims = r->dims, size = element == SGD_FLOAT32 ? sizeof(float) : sizeof(double);
    const size_t count = weight_count(r);
    const uint64_t whole = r->rows / r->batches, extra = r->rows % r->batches;
    const uint64_t unaveraged = r->averaged == 1 ? UINT64_MAX : r->batches * r->passes - r->averaged;
    const int multinomial = r->loss == SGD_MULTINOMIAL, projected = r->radius <= DBL_MAX;
    double *w = s->data, *step = w + count, *total = step + count, *factors = total + count;
    uint64_t updates = s->updates, row = s->row, left = s->left, carry = s->carry;

    for (size_t i = 0; i < n;) {
        const uint64_t batch = whole + (carry + extra >= r->batches);
        const double eta = step_size(r, updates + 1), rate = eta / (double) batch, decay = 1.0 - eta * r->lambda;
        const size_t take = left < n - i ? left : n - i;
        /* A batch of one row needs no accumulator; 0 + its step is its step, so the bits are the same. */
        double *target = batch == 1 ? w : step;
        const double target_decay = batch == 1 ? decay : 1.0;

        for (size_t end = i + take; i < end; i++) {
            const char *x = rows + (i * (1 + dims) + 1) * size;
            if (g->scale[i] == 0.0 || g->label[i] >= (double) r->classes) {
                if (target_decay != 1.0)
                    NAME(scale)(target, target_decay, count);
            } else if (multinomial) {
                NAME(multinomial_factors)(r, w, x, g->label[i], g->scale[i], rate, element, factors);
                for (size_t k = 0; k < r->classes; k++)
                    NAME(move)(target + k * dims, target_decay, factors[k], x, element, dims);
            } else {
                double factor = NAME(binary_factor)(r, w, x, g->label[i], g->scale[i], rate, element);
                NAME(move)(target, target_decay, factor, x, element, dims);
            }
        }
        row += take;
        left -= take;
        if (left > 0)
            break;

        if (batch > 1) {
            NAME(move)(w, decay, 1.0, step, SGD_FLOAT64, count);
            memset(step, 0, count * sizeof *step);
        }
        if (projected)
            NAME(project)(w, r->radius, count);
        if (updates >= unaveraged)
            NAME(move)(total, 1.0, 1.0, w, SGD_FLOAT64, count);
        updates++;
        row = row == r->rows ? 0 : row;
        carry = carry + extra >= r->batches ? carry + extra - r->batches : carry + extra;
        left = whole + (carry + extra >= r->batches);
    }
    s->updates = updates;
    s->row = row;
    s->left = left;
    s->carry = carry;
}

/* Rows go through the cache once: a block of them is guarded, then fed to every model. */
INLINE void NAME(scan_elements)(void *const *states, size_t n_states, const char *rows, size_t n_rows, int element)
{
    const size_t dims = ((const struct sgd_state *) states[0])->recipe.dims;
    const size_t stride = (1 + dims) * (element == SGD_FLOAT32 ? sizeof(float) : sizeof(double));
    size_t block = 16384 / stride;
    block = block < 1 ? 1 : block > MAX_BLOCK ? MAX_BLOCK : block;
    struct guarded g;
    for (size_t i = 0; i < n_rows; i += block) {
        const size_t n = block < n_rows - i ? block : n_rows - i;
        NAME(guard)(&g, rows + i * stride, n, dims, element);
        for (size_t k = 0; k < n_states; k++)
            NAME(feed)(states[k], &g, rows + i * stride, n, element);
    }
}

TARGET static void NAME(scan)(void *const *states, size_t n_states, const void *rows, size_t n_rows, int element)
{
    if (element == SGD_FLOAT32)
        NAME(scan_elements)(states, n_states, rows, n_rows, SGD_FLOAT32);
    else
        NAME(scan_elements)(states, n_states, rows, n_rows, SGD_FLOAT64);
}

#undef INLINE
#undef FOUR
#undef ONE
#undef STORE
