/*
 * sgd_loops.h: the loops over rows. sgd.c includes it once for each instruction set, with NAME to give the functions
 * their suffix, TARGET to let the compiler use the instructions, and the operations that it would not find by itself.
 * What is computed is the same to the bit.
 *
 * Loading numbers, not adding them, is what takes the time, so a number once loaded is used as often as it can be. All
 * vectors are padded with zeros to a multiple of four numbers.
 *
 * The association of every sum of products: groups of four are dealt in turn to two accumulators of four lanes, eight
 * partial sums in all; then  s = a0 + a1  lane by lane, and  (s0 + s1) + (s2 + s3).
 */

#define INLINE static inline __attribute__((always_inline)) TARGET
#define AT(x, i) (*(vec4 *) ((x) + (i)))

/*
 * GROUP(k, i) for the groups of four numbers at i = 0, 4, 8, ... with k = 0, 1, 0, 1, ... Four at a time, since
 * processors foresee the end of a loop only if it is near.
 */
#define DEAL(count, GROUP)                     \
    do {                                       \
        size_t i_ = 0;                         \
        for (; i_ + 16 <= (count); i_ += 16) { \
            GROUP(0, i_)                       \
            GROUP(1, i_ + 4)                   \
            GROUP(0, i_ + 8)                   \
            GROUP(1, i_ + 12)                  \
        }                                      \
        if ((count) & 8) {                     \
            GROUP(0, i_)                       \
            GROUP(1, i_ + 4)                   \
            i_ += 8;                           \
        }                                      \
        if ((count) & 4) {                     \
            GROUP(0, i_)                       \
        }                                      \
    } while (0)

/* <x, x> */
INLINE double NAME(sum_of_squares)(const double *x, size_t count)
{
    vec4 a0 = {0}, a1 = {0};
#define GROUP(k, i) a##k += AT(x, i) * AT(x, i);
    DEAL(count, GROUP);
#undef GROUP
    a0 += a1;
    return (a0[0] + a0[1]) + (a0[2] + a0[3]);
}

/* dots[k] = <x, y[k]> */
INLINE void NAME(four_dots)(double *dots, const double *x, const double *const y[4], size_t count)
{
    const double *y0 = y[0], *y1 = y[1], *y2 = y[2], *y3 = y[3];
    vec4 a0 = {0}, a1 = {0}, b0 = {0}, b1 = {0}, c0 = {0}, c1 = {0}, d0 = {0}, d1 = {0};
#define GROUP(k, i)              \
    {                            \
        vec4 four = AT(x, i);    \
        IN_REGISTER(four);       \
        a##k += four * AT(y0, i);\
        b##k += four * AT(y1, i);\
        c##k += four * AT(y2, i);\
        d##k += four * AT(y3, i);\
    }
    DEAL(count, GROUP);
#undef GROUP
    a0 += a1, b0 += b1, c0 += c1, d0 += d1;
    AT(dots, 0) = FOUR_SUMS(a0, b0, c0, d0);
}

/* w = keep * w + f * x */
INLINE void NAME(move)(double *w, double keep, double f, const double *x, size_t count)
{
#define GROUP(k, i) AT(w, i) = keep * AT(w, i) + f * AT(x, i);
    DEAL(count, GROUP);
#undef GROUP
}

/* w = w + f[0]*x[0] + f[1]*x[1] + ..., from left to right, with n terms, 1 to 4 */
INLINE void NAME(move_by_up_to_four)(double *w, const double f[4], const double *const x[4], size_t n, size_t count)
{
    if (n < 4) {
        for (size_t j = 0; j < n; j++)
            NAME(move)(w, 1.0, f[j], x[j], count);
        return;
    }
    const double *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3], f0 = f[0], f1 = f[1], f2 = f[2], f3 = f[3];
#define GROUP(k, i) AT(w, i) = (((AT(w, i) + f0 * AT(x0, i)) + f1 * AT(x1, i)) + f2 * AT(x2, i)) + f3 * AT(x3, i);
    DEAL(count, GROUP);
#undef GROUP
}

/* w = (keep * w + f0*x0) + f1*x1 */
INLINE void NAME(move_by_two)(double *w, double keep, double f0, const double *x0, double f1, const double *x1,
                              size_t count)
{
#define GROUP(k, i) AT(w, i) = (keep * AT(w, i) + f0 * AT(x0, i)) + f1 * AT(x1, i);
    DEAL(count, GROUP);
#undef GROUP
}

/* dots[0] = <w, y0>, dots[1] = <w, y1>, dots[2] = <y0, y1> */
INLINE void NAME(pair_dots)(vec4 *dots, const double *w, const double *y0, const double *y1, size_t count)
{
    vec4 a0 = {0}, a1 = {0}, b0 = {0}, b1 = {0}, c0 = {0}, c1 = {0};
#define GROUP(k, i)                                      \
    {                                                    \
        vec4 u = AT(w, i), v0 = AT(y0, i), v1 = AT(y1, i);\
        IN_REGISTER(v0);                                 \
        IN_REGISTER(v1);                                 \
        IN_REGISTER(u);                                  \
        a##k += u * v0;                                  \
        b##k += u * v1;                                  \
        c##k += v0 * v1;                                 \
    }
    DEAL(count, GROUP);
#undef GROUP
    a0 += a1, b0 += b1, c0 += c1;
    *dots = FOUR_SUMS(a0, b0, c0, c0);
}

/* Both of these, in one go over w; y0 and y1 follow x1. */
INLINE void NAME(move_by_two_and_pair_dots)(vec4 *dots, double *w, double keep, double f0, const double *x0,
                                            double f1, const double *x1, size_t count)
{
    const double *y0 = x1 + count, *y1 = y0 + count;
    vec4 a0 = {0}, a1 = {0}, b0 = {0}, b1 = {0}, c0 = {0}, c1 = {0};
#define GROUP(k, i)                                                                  \
    {                                                                                \
        vec4 u = (KEPT(AT(w, i)) + f0 * AT(x0, i)) + f1 * AT(x1, i), v0 = AT(y0, i), v1 = AT(y1, i); \
        IN_REGISTER(v0);                                                             \
        IN_REGISTER(v1);                                                             \
        AT(w, i) = u;                                                                \
        a##k += u * v0;                                                              \
        b##k += u * v1;                                                              \
        c##k += v0 * v1;                                                             \
    }
#define KEPT(w) (w)
    if (keep == 1.0)
        DEAL(count, GROUP);
#undef KEPT
#define KEPT(w) (keep * (w))
    else
        DEAL(count, GROUP);
#undef KEPT
#undef GROUP
    a0 += a1, b0 += b1, c0 += c1;
    *dots = FOUR_SUMS(a0, b0, c0, c0);
}

/* While row i of a block is worked on, row i of the next is read: there is time, and memory never idles. */
#define READ_AHEAD(i)    \
    if ((i) < ahead->n)  \
    NAME(read)(ahead, i, element)

/* Number i of a row, or numbers i .. i+3, as doubles; those past `dims` are 0. */
#define ONE(x, i) (element == SGD_FLOAT32 ? (double) ((const float *) (x))[i] : ((const double *) (x))[i])
#define FOUR(x, i) (element == SGD_FLOAT32 ? WIDEN((const float *) (x) + (i)) : AT((double *) (x), i))
#define UP_TO_FOUR(x, i)                                                         \
    ((i) + 4 <= dims ? FOUR(x, i)                                                \
                     : (vec4){ONE(x, i), (i) + 1 < dims ? ONE(x, (i) + 1) : 0.0, \
                              (i) + 2 < dims ? ONE(x, (i) + 2) : 0.0, 0.0})

/* Where row `r` of a block's rows is. */
INLINE const char *NAME(place)(const struct block *b, size_t r, int element)
{
    const size_t bytes = (1 + b->cells) * (element == SGD_FLOAT32 ? sizeof(float) : sizeof(double));
    if (b->positions == NULL)
        return b->source + r * bytes;
    return b->positions[r] == SGD_BATCH_END ? b->neutral : b->source + (size_t) b->positions[r] * bytes;
}

/*
 * Read row `r` of a block's rows by its feature map and sum its squares, lane by lane, as is done with one that is only
 * widened. Where all cells are numbers, as most rows' are, both are done at once as far as that goes. Not inlined: it
 * is long, and called where there is time.
 */
TARGET static __attribute__((noinline)) void NAME(read_by)(struct block *b, size_t r)
{
    const struct feature_map *by = b->map;
    const size_t dims = b->dims, numbers = feature_map_has_only_numbers(by) ? by->cells : 0;
    const char *row = NAME(place)(b, r, SGD_FLOAT32), *later = row + FETCH_AHEAD;
    const float *x = (const float *) (const void *) row + 1;
    const double *from = feature_map_a(by), *times = feature_map_b(by);
    double *wide = b->rows + r * b->stride;
    vec4 a0 = {0}, a1 = {0}, four;
    size_t i = 0;
    if (b->positions != NULL)
        later = NAME(place)(b, r + ROWS_AHEAD < b->left ? r + ROWS_AHEAD : r, SGD_FLOAT32);
    for (size_t at = 0; at < (1 + b->cells) * sizeof(float); at += 64)
        __builtin_prefetch(later + at);
/* Features i .. i+3, in a register: what is stored in parts is slow to load as a whole. */
#define SINGLE(i) ((i) < numbers ? read_one(x[i], from[i], times[i]) : (i) < dims ? from[i] : 0.0)
#define PRODUCT(i) ((WIDEN(x + (i)) - AT(from, i)) * AT(times, i))
#define READ_FOUR(i)                                                                                                   \
    ((i) + 4 <= numbers ? (four = PRODUCT(i), (vec4) ((mask4) four & (four == four))) /* 0 where it is no number */    \
                        : (vec4){SINGLE(i), SINGLE((i) + 1), SINGLE((i) + 2), SINGLE((i) + 3)})
    if (numbers > 0) {
        for (; i + 16 <= dims; i += 16) {
            four = READ_FOUR(i), AT(wide, i) = four, a0 += four * four;
            four = READ_FOUR(i + 4), AT(wide, i + 4) = four, a1 += four * four;
            four = READ_FOUR(i + 8), AT(wide, i + 8) = four, a0 += four * four;
            four = READ_FOUR(i + 12), AT(wide, i + 12) = four, a1 += four * four;
        }
        for (; i < dims; i += 4)
            four = READ_FOUR(i), AT(wide, i) = four, a0 += four * four;
    } else {
        read_features(by, x, wide);
        for (size_t k = dims; k < b->stride; k++)
            wide[k] = 0.0;
        for (; i + 16 <= dims; i += 16) {
            a0 += AT(wide, i) * AT(wide, i);
            a1 += AT(wide, i + 4) * AT(wide, i + 4);
            a0 += AT(wide, i + 8) * AT(wide, i + 8);
            a1 += AT(wide, i + 12) * AT(wide, i + 12);
        }
        for (; i < dims; i += 4)
            a0 += AT(wide, i) * AT(wide, i);
    }
    AT(b->lanes, 4 * r) = a0 + a1;
    b->label[r] = (double) *(const float *) (const void *) row;
    b->weight[r] = feature_map_row_weight(by, x);
}

/* Widen row `r` of a block's rows and sum its squares, lane by lane. */
INLINE void NAME(read)(struct block *b, size_t r, int element)
{
    if (element == SGD_FLOAT32 && b->map != NULL) {
        NAME(read_by)(b, r);
        return;
    }
    const size_t dims = b->dims, size = element == SGD_FLOAT32 ? sizeof(float) : sizeof(double);
    const char *row = NAME(place)(b, r, element), *x = row + size, *later = x + FETCH_AHEAD;
    double *wide = b->rows + r * b->stride;
    vec4 a0 = {0}, a1 = {0}, four;
    size_t i = 0;
    if (b->positions != NULL) {
        later = NAME(place)(b, r + ROWS_AHEAD < b->left ? r + ROWS_AHEAD : r, element);
        __builtin_prefetch(later + dims * size); /* its last number, which the loop may not get to */
    }
    for (; i + 16 <= dims; i += 16) {
        __builtin_prefetch(later + i * size);
        four = FOUR(x, i), AT(wide, i) = four, a0 += four * four;
        four = FOUR(x, i + 4), AT(wide, i + 4) = four, a1 += four * four;
        four = FOUR(x, i + 8), AT(wide, i + 8) = four, a0 += four * four;
        four = FOUR(x, i + 12), AT(wide, i + 12) = four, a1 += four * four;
    }
    for (; i < dims; i += 4)
        four = UP_TO_FOUR(x, i), AT(wide, i) = four, a0 += four * four;
    AT(b->lanes, 4 * r) = a0 + a1;
    b->label[r] = ONE(row, 0);
    b->weight[r] = 1.0;
}

/* The guard's judgement of the block's rows, four at a time; what it makes of those past the last is not used. */
INLINE void NAME(judge)(struct block *b)
{
    const vec4 none = {0}, one = {1.0, 1.0, 1.0, 1.0};
    const double margin = guard_margin(b->dims);
    for (size_t r = 0; r < b->n; r += 4) {
        const double *lanes = b->lanes + 4 * r;
        const vec4 squares = FOUR_SUMS(AT(lanes, 0), AT(lanes, 4), AT(lanes, 8), AT(lanes, 12));
        const vec4 scaled = row_scale_numerator(margin) / SQUARE_ROOTS(squares);
        const vec4 scale = CHOOSE(squares <= row_scale_threshold(margin), one, scaled);
        AT(b->scale, r) = CHOOSE(squares <= MAX_SQUARES, scale, none);
    }
    for (size_t r = 0; r < b->n; r++)
        if (b->scale[r] == 0.0) /* a neutral row is all zeros, which then need no special case anywhere */
            memset(b->rows + r * b->stride, 0, b->stride * sizeof *b->rows);
}

/*
 * Batches of one row, each an update. A row's score needs the weights that the row before changes, and waiting for
 * those would be most of the time of a row. So rows go in pairs, by their position in the pass: with
 * w_1 = keep * w + f*x,
 *
 *     <w_1, x'> = keep * <w, x'> + f * <x, x'>
 *
 * and all three products of vectors of a pair are made together, while the weights are moved by the pair before. At a
 * cut inside a pair its first row waits in `step`, with its scale, weight and y in `aside`: a cut changes nothing. The
 * last row of an odd number goes alone.
 */
INLINE void NAME(feed_single_rows)(struct sgd_state *s, const struct block *b, double *scale, double *weight,
                                   double *y, struct block *ahead, int loss, int element)
{
    const struct sgd_recipe r = s->recipe;
    const size_t stride = b->stride, waited = s->row % 2, n = waited + b->n;
    const uint64_t unaveraged = unaveraged_updates(&r);
    double *w = s->data, *total = total_of(s), *waiting = step_of(s), *aside = aside_of(s);
    double gain[MAX_BLOCK + 2], rate[MAX_BLOCK + 2], keep[MAX_BLOCK + 2];
    uint64_t update = s->updates - waited, row = s->row - waited;

    /* The row that waited goes in front of the others: there is room for it. */
    const double *x = b->rows - waited * stride;
    if (waited) {
        memcpy(b->rows - stride, waiting, stride * sizeof *waiting);
        memset(waiting, 0, stride * sizeof *waiting);
        *--scale = aside[0];
        *--weight = aside[1];
        *--y = aside[2];
        aside[0] = aside[1] = aside[2] = 0.0;
    }
    for (size_t i = 0; i < n; i++) {
        const double eta = step_size(&r, update + 1 + i);
        gain[i] = scale[i] * loss_facts(loss).unit;
        rate[i] = scale[i] * weight[i] * eta;
        keep[i] = decay_of(&r, eta);
    }

    for (size_t i = 0; i < n;) {
        const size_t rest = r.rows - row < n - i ? r.rows - row : n - i, end = i + rest / 2 * 2;
        vec4 dots = {0};
        if (i < end)
            NAME(pair_dots)(&dots, w, x, x + stride, stride);
        for (; i < end; i += 2, x += 2 * stride) {
            const double *x1 = x + stride, kept = keep[i] * keep[i + 1];
            const double f0 = loss_factor(loss, dots[0] * gain[i], y[i], r.parameter, rate[i]);
            READ_AHEAD(i - waited); /* the next factor has to wait for this one: time to read */
            READ_AHEAD(i + 1 - waited);
            const double score = keep[i] * (dots[1] * gain[i + 1]) + f0 * (dots[2] * gain[i + 1]);
            const double f1 = loss_factor(loss, score, y[i + 1], r.parameter, rate[i + 1]);
            update += 2;
            if (update > unaveraged) {
                const double first = update - 1 > unaveraged;
                NAME(move)(total, 1.0, first * keep[i] + kept, w, stride);
                NAME(move_by_two)(total, 1.0, first * f0 + f0 * keep[i + 1], x, f1, x1, stride);
            }
            if (i + 2 < end)
                NAME(move_by_two_and_pair_dots)(&dots, w, kept, f0 * keep[i + 1], x, f1, x1, stride);
            else
                NAME(move_by_two)(w, kept, f0 * keep[i + 1], x, f1, x1, stride);
        }
        row += rest;
        if (rest % 2 == 1) {
            READ_AHEAD(i - waited);
            update++;
            if (row == r.rows) {
                NAME(pair_dots)(&dots, w, x, x, stride);
                const double f = loss_factor(loss, dots[0] * gain[i], y[i], r.parameter, rate[i]);
                NAME(move)(w, keep[i], f, x, stride);
                if (update > unaveraged)
                    NAME(move)(total, 1.0, 1.0, w, stride);
            } else {
                memcpy(waiting, x, stride * sizeof *waiting);
                aside[0] = scale[i];
                aside[1] = weight[i];
                aside[2] = y[i];
            }
            i++;
            x += stride;
        }
        row = row == r.rows ? 0 : row;
    }
    s->updates = update;
    s->row = row;
}

/* factors[k] = rate * s * ([k is the label] - p_k), with the odds p of s * <w_k, x>. */
INLINE void NAME(joint_factors)(const struct sgd_recipe *r, double *factors, const double *w, const double *x,
                                size_t stride, size_t label, double scale, double rate)
{
    const size_t classes = r->classes;
    for (size_t k = 0; k < classes; k += 4) {
        const double *y[4];
        for (size_t j = 0; j < 4; j++)
            y[j] = w + (k + j < classes ? k + j : k) * stride;
        NAME(four_dots)(factors + k, x, y, stride);
    }
    const double sum = loss_powers(r->loss, factors, 1, classes, scale, label, r->parameter);
    for (size_t k = 0; k < classes; k++)
        factors[k] = rate * scale * ((double) (k == label) - factors[k] / sum);
}

/* Add what `n` rows (1 to 4) of a batch contribute to `step`; x has four, of which only the first n count. */
INLINE void NAME(add_margins)(const struct sgd_recipe *r, const double *w, double *step, const double *const x[4],
                              const double *scale, const double *weight, const double *y, double rate, size_t n,
                              size_t stride)
{
    double f[4];
    NAME(four_dots)(f, w, x, stride);
    for (size_t j = 0; j < n; j++)
        f[j] = loss_factor(r->loss, f[j] * (scale[j] * loss_facts(r->loss).unit), y[j], r->parameter,
                           rate * (scale[j] * weight[j]));
    NAME(move_by_up_to_four)(step, f, x, n, stride);
}

INLINE void NAME(add_joint)(const struct sgd_recipe *r, const double *w, double *step, double *factors,
                            const double *const x[4], const double *scale, const double *weight, const double *y,
                            double rate, size_t n, size_t stride)
{
    const size_t classes = r->classes, width = pad_count(classes);
    for (size_t j = 0; j < n; j++)
        NAME(joint_factors)(r, factors + j * width, w, x[j], stride, (size_t) y[j], scale[j], rate * weight[j]);
    for (size_t k = 0; k < classes; k++) {
        const double f[4] = {factors[k], factors[width + k], factors[2 * width + k], factors[3 * width + k]};
        NAME(move_by_up_to_four)(step + k * stride, f, x, n, stride);
    }
}

/* Subtract from each of the vectors their mean: what is left sums to zero. */
INLINE void NAME(subtract_mean)(double *w, size_t vectors, size_t stride)
{
    for (size_t i = 0; i < stride; i += 4) {
        vec4 sum = {0};
        for (size_t k = 0; k < vectors; k++)
            sum += AT(w, k * stride + i);
        sum /= (double) vectors;
        for (size_t k = 0; k < vectors; k++)
            AT(w, k * stride + i) -= sum;
    }
}

/*
 * Independent standard normal variables, a multiple of four of them. Each has a word of its own; what it needs more if
 * it is rejected (one in 67) comes from words that no other one has: first those left over from the first chunk, then
 * further ones.
 */
INLINE void NAME(fill_with_normals)(struct stream *s, double *out, size_t count)
{
    uint64_t words[CHUNK];
    size_t rejected[CHUNK];
    s->spare = (CHUNK - count % CHUNK) % CHUNK;
    for (size_t first = s->spare; count > 0; first = 0) {
        size_t n_rejected = 0;
        next_chunk(s, words);
        memcpy(s->words, words, first * sizeof *words);
        for (size_t i = first; i < CHUNK; i += 4, out += 4, count -= 4) {
            const double *a = &EDGES[LAYER_OF(words[i])], *b = &EDGES[LAYER_OF(words[i + 1])],
                         *c = &EDGES[LAYER_OF(words[i + 2])], *d = &EDGES[LAYER_OF(words[i + 3])];
            const vec4 edge = {a[0], b[0], c[0], d[0]}, next_edge = {a[1], b[1], c[1], d[1]};
            const word4 four = *(const word4 *) (words + i);
            /* 1 + column / 2^52, put together from its bits, less 1 - 2^-53: exact */
            const vec4 x = ((vec4) (COLUMN_OF(four) | UINT64_C(0x3ff0000000000000)) - (1.0 - 0x1p-53)) * edge;
            AT(out, 0) = (vec4) ((word4) x | SIGN_OF(four));
            for (unsigned lanes = LANES_SET(x >= next_edge); lanes != 0; lanes &= lanes - 1)
                rejected[n_rejected++] = i + (size_t) __builtin_ctz(lanes);
        }
        for (size_t k = 0; k < n_rejected; k++)
            out[(ptrdiff_t) rejected[k] - CHUNK] = normal_from(s, words[rejected[k]]);
    }
}

/* Begin a batch: `step` becomes - eta * noise. Not inlined, for the other loops to stay as they are. */
TARGET static __attribute__((noinline)) void NAME(draw_noise)(struct sgd_state *s, double eta)
{
    const struct sgd_recipe *r = &s->recipe;
    const size_t n = vectors(r), stride = pad_count(r->dims), count = n * stride;
    double *step = step_of(s), length = 1.0;
    struct stream stream;
    open_stream(&stream, NAME(chacha20), s->key, s->updates);
    do {
        NAME(fill_with_normals)(&stream, step, count);
        for (size_t k = 0; k < n; k++)
            for (size_t i = r->dims; i < stride; i++)
                step[k * stride + i] = 0.0;
        if (loss_facts(r->loss).is_joint)
            NAME(subtract_mean)(step, n, stride);
        if (r->noise == SGD_SPHERICAL)
            length = sqrt(NAME(sum_of_squares)(step, count));
    } while (length == 0.0); /* no direction */
    const double dimensions = (double) ((loss_facts(r->loss).is_joint ? n - 1 : 1) * r->dims);
    const double wanted = r->noise == SGD_SPHERICAL ? next_gamma(&stream, dimensions) : 1.0;
    NAME(move)(step, -eta * (r->deviation * (wanted / length)), 0.0, step, count);
    s->drawn = 1;
}

/* Rows from the i-th up to the end of a batch, or of the block. */
INLINE size_t NAME(rows_to_batch_end)(const struct block *b, size_t i)
{
    size_t end = b->positions == NULL ? b->n : i;
    while (end < b->n && b->positions[end] != SGD_BATCH_END)
        end++;
    return end - i;
}

/*
 * Batches of any size: rows add to `step`, in fours where there are four, and a full batch moves the weights by it.
 * `plain`, known when this is compiled, says that there is no noise, and that batches have the recipe's sizes.
 */
INLINE void NAME(feed_batches)(struct sgd_state *s, const struct block *b, const double *scale, const double *weight,
                               const double *y, struct block *ahead, int element, int plain)
{
    const struct sgd_recipe r = s->recipe;
    const int marked = !plain && r.marked, noisy = !plain && r.noise;
    const size_t stride = b->stride, count = weight_count(&r);
    double *w = s->data, *total = total_of(s), *step = step_of(s), *aside = aside_of(s);

    for (size_t i = 0; i < b->n;) {
        const double eta = step_size(&r, s->updates + 1);
        const double rows = marked ? (double) r.rows / (double) r.batches : (double) batch_size(&r, s->carry);
        const double rate = eta / rows;
        const size_t rest = b->n - i;
        const size_t take = marked ? NAME(rows_to_batch_end)(b, i) : s->left < rest ? s->left : rest;
        const size_t end = i + take;
        if (noisy && !s->drawn)
            NAME(draw_noise)(s, eta);
        while (i < end) {
            const size_t n = end - i < 4 ? end - i : 4;
            const double *x[4];
            for (size_t j = 0; j < 4; j++)
                x[j] = b->rows + (j < n ? i + j : i) * stride;
            for (size_t j = 0; j < n; j++)
                READ_AHEAD(i + j);
            if (loss_facts(r.loss).is_joint)
                NAME(add_joint)(&r, w, step, aside, x, scale + i, weight + i, y + i, rate, n, stride);
            else
                NAME(add_margins)(&r, w, step, x, scale + i, weight + i, y + i, rate, n, stride);
            i += n;
        }
        s->row += take;
        if (marked) {
            if (i == b->n)
                break;
            READ_AHEAD(i);
            i++;
        } else {
            s->left -= take;
            if (s->left > 0)
                break;
        }

        NAME(move)(w, decay_of(&r, eta), 1.0, step, count);
        memset(step, 0, count * sizeof *step);
        if (r.radius <= DBL_MAX) {
            const double norm = sqrt(NAME(sum_of_squares)(w, count));
            if (norm > r.radius)
                NAME(move)(w, r.radius / norm, 0.0, w, count);
        }
        s->updates++;
        if (s->updates > unaveraged_updates(&r))
            NAME(move)(total, 1.0, 1.0, w, count);
        if (noisy)
            s->drawn = 0;
        if (marked) {
            s->row = s->updates % r.batches == 0 ? 0 : s->row;
        } else {
            s->row = s->row == r.rows ? 0 : s->row;
            s->carry = next_carry(&r, s->carry);
            s->left = batch_size(&r, s->carry);
        }
    }
    memset(aside, 0, aside_count(&r) * sizeof *aside);
}

/* Once for both elements, to be compiled sooner: what such a model waits for is its noise, or its sampled rows. */
TARGET static __attribute__((noinline)) void NAME(feed_noisy_or_marked)(struct sgd_state *s, const struct block *b,
                                                                        const double *scale, const double *weight,
                                                                        const double *y, struct block *ahead,
                                                                        int element)
{
    NAME(feed_batches)(s, b, scale, weight, y, ahead, element, 0);
}

/* The next row waits for the slope of the loss, so that a copy for each loss is faster; this one is compiled sooner. */
TARGET static __attribute__((noinline)) void NAME(feed_single_rows_of_any_loss)(struct sgd_state *s,
                                                                                const struct block *b, double *scale,
                                                                                double *weight, double *y,
                                                                                struct block *ahead, int loss,
                                                                                int element)
{
    NAME(feed_single_rows)(s, b, scale, weight, y, ahead, loss, element);
}

/* Feed the block's rows to one model, and meanwhile read the rows ahead, if any. */
INLINE void NAME(feed)(struct sgd_state *s, const struct block *b, struct block *ahead, int element)
{
    /* The guard's factor, times the label's sign, or 0 where the label is not known; room for one row in front. */
    double scales[1 + MAX_BLOCK], *scale = scales + 1;
    double weights[1 + MAX_BLOCK], *weight = weights + 1;
    double targets[1 + MAX_BLOCK], *y = targets + 1;
    const struct sgd_recipe *r = &s->recipe;
    const struct label_reading reading = read_labels_by(b->map, r->classes, r->positive);
    loss_labels(r->loss, b->label, b->n, &reading, scale, y);
    for (size_t i = 0; i < b->n; i++) {
        scale[i] *= b->scale[i];
        weight[i] = b->weight[i];
    }
    for (size_t i = 0; r->weighted && i < b->n; i++)
        weight[i] *= label_weight(b->label[i], r->classes, s->data + class_weights_at(r));
    if (has_single_rows(r)) {
#ifdef A_COPY_FOR_EACH_LOSS
        if (element == SGD_FLOAT32)
#define CASE(number, name, form, target, slope, link, unit)                                                            \
    IF_MARGIN_##form(case number : NAME(feed_single_rows)(s, b, scale, weight, y, ahead, number, element); break;)
            switch (r->loss) {
                LOSSES(CASE)
            }
#undef CASE
        else
#endif
            NAME(feed_single_rows_of_any_loss)(s, b, scale, weight, y, ahead, (int) r->loss, element);
    } else if (r->noise || r->marked)
        NAME(feed_noisy_or_marked)(s, b, scale, weight, y, ahead, element);
    else
        NAME(feed_batches)(s, b, scale, weight, y, ahead, element, 1);
}

/* Rows go through the cache once: a block of them is fed to every model, the last of which reads the next block. */
INLINE void NAME(scan_elements)(void *const *states, size_t n_states, struct block *now, struct block *ahead,
                                size_t size, int element)
{
    const size_t bytes = (1 + now->cells) * (element == SGD_FLOAT32 ? sizeof(float) : sizeof(double));
    now->n = size < now->left ? size : now->left;
    for (size_t i = 0; i < now->n; i++)
        NAME(read)(now, i, element);
    while (now->n > 0) {
        ahead->left = now->left - now->n;
        ahead->n = size < ahead->left ? size : ahead->left;
        ahead->source = now->positions == NULL ? now->source + now->n * bytes : now->source;
        ahead->positions = now->positions == NULL ? NULL : now->positions + now->n;
        NAME(judge)(now);
        struct block nothing = {.n = 0};
        for (size_t k = 0; k < n_states; k++)
            NAME(feed)(states[k], now, k + 1 < n_states ? &nothing : ahead, element);
        struct block *read = ahead;
        ahead = now;
        now = read;
    }
}

TARGET static void NAME(scan)(void *const *states, size_t n_states, struct block *now, struct block *ahead,
                              size_t size, int element)
{
    if (element == SGD_FLOAT32)
        NAME(scan_elements)(states, n_states, now, ahead, size, SGD_FLOAT32);
    else
        NAME(scan_elements)(states, n_states, now, ahead, size, SGD_FLOAT64);
}

#undef INLINE
#undef AT
#undef DEAL
#undef READ_AHEAD
#undef ONE
#undef FOUR
#undef UP_TO_FOUR
#undef SINGLE
#undef PRODUCT
#undef READ_FOUR
