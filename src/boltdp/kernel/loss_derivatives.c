/* loss_derivatives.c: derivatives of the loss summed over rows. loss_derivatives.h says what for. */
#include "loss_derivatives.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "hash_sampling.h"
#include "losses.h"

typedef uint64_t word4 __attribute__((vector_size(32), aligned(8), may_alias));

#define AT(p, i) (*(vec4 *) ((p) + (i)))
#define WORDS_AT(p, i) (*(word4 *) ((p) + (i)))
#define LANES(v) (((v)[0] + (v)[1]) + ((v)[2] + (v)[3]))

static uint64_t vectors(const struct derivatives_state *s)
{
    return loss_vectors(s->loss, s->classes);
}

/* How a row of numbers is made up. */
struct shape {
    uint64_t dims;   /* features */
    uint64_t dense;  /* slots of single numbers, */
    uint64_t groups; /* groups, */
    uint64_t slots;  /* and all slots */
    uint64_t first;  /* where those of groups begin */
    uint64_t stride;
};

static struct shape shape_of(uint64_t cells, const struct feature_map *r)
{
    struct shape shape = {.dims = cells, .dense = cells, .slots = cells};
    if (r != NULL) {
        shape.dims = r->dims;
        shape.dense = r->dense;
        shape.groups = r->groups;
        shape.slots = r->slots;
    }
    shape.first = pad_count(shape.dense);
    shape.stride = shape.first + pad_count(shape.slots - shape.dense);
    return shape;
}

#define TILE 4

/* The arrays of `data`, in their order. */
enum { PARTIAL, HIGH, LOW, WEIGHTS, DIRECTION, ROWS, ACTIVE, SCORES, CLASS_WEIGHTS };

/* Whether a matrix is summed for each weight vector, not a vector. */
static int sums_matrix(const struct derivatives_state *s)
{
    return s->kind >= DERIVATIVES_HESSIAN;
}

/* How many numbers are summed. */
static uint64_t numbers_of(const struct derivatives_state *s, const struct shape *shape)
{
    return vectors(s) * shape->stride * (sums_matrix(s) ? shape->stride : 1);
}

/* Where an array of `data` begins. */
static uint64_t place_of(const struct derivatives_state *s, const struct shape *shape, uint64_t array)
{
    const uint64_t numbers = numbers_of(s, shape), weights = vectors(s) * shape->stride;
    const uint64_t lengths[] = {numbers, numbers, numbers, weights, weights, TILE * shape->first,
                                TILE / 2 * shape->groups, /* two slots, of 32 bits, in a number */
                                2 * TILE * vectors(s)};
    uint64_t place = 0;
    for (uint64_t before = 0; before < array; before++)
        place += lengths[before];
    return place;
}

uint64_t derivatives_bytes(uint64_t loss, uint64_t cells, uint64_t classes, uint64_t positive, uint64_t kind,
                         uint64_t weighted, const void *map)
{
    const struct feature_map *r = map;
    const struct derivatives_state s = {.loss = loss, .classes = classes, .kind = kind};
    if (loss >= LOSS_COUNT || !sum_cells_fit(cells, r) || classes < 2 || classes > SGD_MAX_CLASSES ||
        positive >= classes || kind > DERIVATIVES_OUTER || weighted > 1 ||
        (kind == DERIVATIVES_OUTER && loss_facts(loss).is_joint))
        return 0;
    const struct shape shape = shape_of(cells, r);
    if (sums_matrix(&s) && shape.slots > DERIVATIVES_MAX_HESSIAN_SLOTS)
        return 0;
    return sizeof s + sizeof(double) * (place_of(&s, &shape, CLASS_WEIGHTS) + (weighted ? classes : 0)) +
           (r == NULL ? 0 : r->bytes);
}

static int is_sound(const void *state, const struct feature_map *r)
{
    const struct derivatives_state *s = state;
    if (!(s->parameter > 0.0 && s->parameter <= DBL_MAX && s->clip > 0.0) ||
        (s->kind != DERIVATIVES_GRADIENT && s->clip <= DBL_MAX) || s->share > UINT64_C(1) << 32 ||
        s->waiting >= DERIVATIVES_SUMMED_ROWS || s->unused[0] != 0 || s->unused[1] != 0 ||
        derivatives_bytes(s->loss, s->sum.cells, s->classes, s->positive, s->kind, s->weighted, r) != s->sum.bytes)
        return 0;
    const struct shape shape = shape_of(s->sum.cells, r);
    return !s->weighted || sgd_class_weights_are_sound(s->data + place_of(s, &shape, CLASS_WEIGHTS), s->classes);
}

/* Dense slots and those of groups, each from the start of a group of four. */
static void copy_slots(double *to, const double *from, const struct shape *shape)
{
    memcpy(to, from, shape->dense * sizeof *to);
    memcpy(to + shape->first, from + shape->dense, (shape->slots - shape->dense) * sizeof *to);
}

int derivatives_init(void *state, size_t bytes, uint64_t loss, uint64_t cells, uint64_t classes, uint64_t positive,
                   uint64_t kind, uint64_t weighted, const void *map, double parameter, double clip, uint64_t share,
                   const double *weights, const double *direction, const double *class_weights)
{
    struct derivatives_state *s = state;
    const uint64_t needed = derivatives_bytes(loss, cells, classes, positive, kind, weighted, map);
    if ((kind == DERIVATIVES_PRODUCT) != (direction != NULL) || (weighted != 0) != (class_weights != NULL))
        return SGD_BAD_RECIPE;
    const int code = sum_init(state, bytes, needed, &derivatives_kind, cells, map);
    if (code != SGD_OK)
        return code;
    s->loss = loss;
    s->classes = classes;
    s->positive = positive;
    s->kind = kind;
    s->parameter = parameter;
    s->clip = clip;
    s->weighted = weighted;
    s->share = share;
    const struct shape shape = shape_of(cells, map);
    if (class_weights != NULL)
        memcpy(s->data + place_of(s, &shape, CLASS_WEIGHTS), class_weights, classes * sizeof *class_weights);
    for (uint64_t k = 0; k < vectors(s); k++) {
        copy_slots(s->data + place_of(s, &shape, WEIGHTS) + k * shape.stride, weights + k * shape.slots, &shape);
        if (direction != NULL)
            copy_slots(s->data + place_of(s, &shape, DIRECTION) + k * shape.stride, direction + k * shape.slots,
                       &shape);
    }
    return is_sound(s, map) ? SGD_OK : SGD_BAD_RECIPE;
}

/*
 * Terms are below 2, and multiples of 2^-50: 6 plus a term is between 4 and 8, where doubles are 2^-50 apart, and its
 * bits, taken as a whole number, are those of 6 plus the term in this unit. Such whole numbers are added modulo 2^64:
 * 1024 of them, less as many times the bits of 6, have room. Then the sum is cut: its lower 32 bits go to `low`, the
 * others to `high`, both whole numbers too. So the three together are exactly the sum of all terms, and derivatives_sum
 * rounds it once.
 */
#define OFFSET 6.0
#define OFFSET_BITS UINT64_C(0x4018000000000000)
#define UNIT 0x1p-50

/*
 * What a matrix's terms are multiplied by before they are summed. The unit of a group's slot is below twice the length
 * of its features, so a term of two of them is below 4 times the curvature, or 4 times the squared slope.
 */
INLINE double hessian_factor(const struct derivatives_state *s)
{
    return s->kind == DERIVATIVES_OUTER || (s->kind == DERIVATIVES_HESSIAN && loss_facts(s->loss).max_curvature > 0.25)
               ? 0.25
               : 1.0;
}

INLINE uint64_t bits_of(double number)
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

/* The sum that waits in a number of `partial`: dense ones have the bits of 6 for every row. */
INLINE int64_t waiting_sum(const struct derivatives_state *s, const struct shape *shape, const uint64_t *partial,
                           uint64_t at)
{
    return (int64_t) (partial[at] - (at % shape->stride < shape->first ? s->waiting * OFFSET_BITS : 0));
}

/* Let the rows that wait join the sums. A number left of a Hessian's diagonal may be anything, and is never read. */
static void fold(struct derivatives_state *s, const struct shape *shape)
{
    uint64_t *partial = (uint64_t *) (void *) s->data;
    const uint64_t count = numbers_of(s, shape), offsets = s->waiting * OFFSET_BITS;
    uint64_t *high = partial + count, *low = high + count;
    for (uint64_t row = 0; row < count; row += shape->stride)
        for (uint64_t i = 0; i < shape->stride; i++) {
            const int64_t sum = (int64_t) (partial[row + i] - (i < shape->first ? offsets : 0));
            high[row + i] += (uint64_t) (sum >> 32);
            low[row + i] += (uint64_t) sum & UINT32_MAX;
            partial[row + i] = 0;
        }
    s->waiting = 0;
}

/*
 * Rows are taken several at a time, since their sums do not wait for each other: n of them, which the compiler knows.
 * Each has the same operations in the same order however many are taken, and so the same bits.
 */
struct tile {
    const struct shape *shape;
    const struct feature_map *map;
    const double *w, *direction, *class_weights; /* those of the state */
    struct label_reading reading;
    int weighted;         /* whether rows or their classes have weights */
    int downweights;      /* whether long rows do */
    int only_numbers;     /* are the cells that it reads, all of them in its first segment */
    const double *units;  /* of the slots of groups */
    uint64_t *partial;
    double *x;            /* the dense numbers of the rows, padded with zeros */
    uint32_t *active;     /* the slots of each row's groups */
    double *scores;       /* 2 * V numbers for each row */
    double signs[TILE], y[TILE]; /* of the labels */
    double scales[TILE];
    double weights[TILE]; /* of the rows and of their classes */
    double lengths[TILE]; /* where gradients are clipped */
    const uint32_t *places; /* of a sparse row, which is alone: those of the numbers in x, else NULL */
    size_t count;           /* of them */
    uint64_t numbers;       /* those that are summed */
};

/* Some of a tile's rows. */
struct part {
    const double *x, *signs, *y, *scales, *weights, *lengths;
    const uint32_t *active;
};

INLINE struct part part_from(const struct tile *t, int first)
{
    return (struct part){t->x + first * t->shape->first,
                         t->signs + first,
                         t->y + first,
                         t->scales + first,
                         t->weights + first,
                         t->lengths + first,
                         t->active + first * t->shape->groups};
}

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

/* The same by a feature map: the dense slots, and which slots of groups each row has. */
INLINE void read_tile(double *squares, const struct tile *t, const float *rows, size_t cells, int n)
{
    const size_t dense = t->shape->first, groups = t->shape->groups;
    for (int r = 0; r < n; r++)
        squares[r] = read_slots(t->map, rows + r * (1 + cells), t->x + r * dense, t->active + r * groups);
}

/* The same, where all cells are numbers: what they are read by is loaded once for all rows. */
INLINE void read_number_tile(double *squares, const struct tile *t, const float *rows, size_t cells, int n)
{
    const size_t dense = t->shape->first;
    const double *a = feature_map_a(t->map), *b = feature_map_b(t->map);
    double *x = t->x;
    vec4 sums[TILE] = {{0}};
    size_t i = 0;
    for (; i + 4 <= cells; i += 4)
        for (int r = 0; r < n; r++) {
            vec4 four;
            read_four(&four, rows + r * (1 + cells) + i, a + i, b + i);
            AT(x, r * dense + i) = four;
            sums[r] += four * four;
        }
    for (; i < dense; i += 4)
        for (int r = 0; r < n; r++) {
            double rest[4] = {0}; /* in registers: what is stored in parts is slow to load as a whole */
            for (size_t k = 0; k < 4; k++)
                if (i + k < t->shape->dense)
                    rest[k] = i + k < cells ? read_one(rows[r * (1 + cells) + i + k], a[i + k], b[i + k]) : a[i + k];
            const vec4 four = {rest[0], rest[1], rest[2], rest[3]};
            AT(x, r * dense + i) = four;
            sums[r] += four * four;
        }
    for (int r = 0; r < n; r++)
        squares[r] = LANES(sums[r]);
}

/* <a, x> for a sparse row x. */
INLINE double sparse_dot(const double *a, const struct tile *t)
{
    double lanes[4] = {0};
    for (size_t k = 0; k < t->count; k++)
        lanes[t->places[k] % 4] += a[t->places[k]] * t->x[k];
    return LANES(lanes);
}

/* out = <a, x> for each row x. */
INLINE void dots(double *out, const double *a, const struct tile *t, const struct part *p, int n)
{
    const size_t dense = t->shape->first, groups = t->shape->groups;
    vec4 sums[TILE] = {{0}};
    if (t->places != NULL) {
        out[0] = sparse_dot(a, t);
        return;
    }
    for (size_t i = 0; i < dense; i += 4)
        for (int r = 0; r < n; r++)
            sums[r] += AT(a, i) * AT(p->x, r * dense + i);
    for (int r = 0; r < n; r++) {
        double sum = LANES(sums[r]);
        for (size_t g = 0; g < groups; g++)
            sum += a[dense + p->active[r * groups + g]];
        out[r] = sum;
    }
}

/*
 * to += factor * x for a sparse row x. Its terms go past `partial`, where every row must have added to each number, and
 * what `low` carries to `high`.
 */
INLINE void add_sparse_multiple(uint64_t *to, double factor, const struct tile *t)
{
    uint64_t *high = to + t->numbers, *low = high + t->numbers;
    for (size_t k = 0; k < t->count; k++) {
        const int64_t term = (int64_t) (bits_of(factor * t->x[k] + OFFSET) - OFFSET_BITS);
        const uint64_t lower = low[t->places[k]] + ((uint64_t) term & UINT32_MAX);
        high[t->places[k]] += (uint64_t) (term >> 32) + (lower >> 32);
        low[t->places[k]] = lower & UINT32_MAX;
    }
}

/* to += factor * x for each row x, one after the other, from dense number `first` on. */
INLINE void add_multiples(uint64_t *to, const double *factors, const struct tile *t, const struct part *p, size_t first,
                          int n)
{
    const size_t dense = t->shape->first, groups = t->shape->groups;
    double own[TILE]; /* which no store to `to` can change */
    if (t->places != NULL) {
        add_sparse_multiple(to, factors[0], t);
        return;
    }
    memcpy(own, factors, n * sizeof *own);
    for (size_t i = first; i < dense; i += 4) {
        word4 sum = WORDS_AT(to, i);
        for (int r = 0; r < n; r++)
            sum += (word4) (own[r] * AT(p->x, r * dense + i) + OFFSET);
        WORDS_AT(to, i) = sum;
    }
    for (int r = 0; groups > 0 && r < n; r++)
        for (size_t g = 0; g < groups; g++) {
            const uint32_t slot = p->active[r * groups + g];
            to[dense + slot] += bits_of(own[r] * t->units[slot] + OFFSET) - OFFSET_BITS;
        }
}

/* hessian += factor * x * x^T for each row x, but for most of what is left of the diagonal, which is never read. */
INLINE void add_squares(uint64_t *hessian, const double *factors, const struct tile *t, const struct part *p, int n)
{
    const size_t stride = t->shape->stride, dense = t->shape->first, groups = t->shape->groups;
    for (size_t i = 0; i < t->shape->dense; i++) {
        double multiples[TILE];
        for (int r = 0; r < n; r++)
            multiples[r] = factors[r] * p->x[r * dense + i];
        add_multiples(hessian + i * stride, multiples, t, p, i / 4 * 4, n);
    }
    for (int r = 0; r < n; r++)
        for (size_t g = 0; g < groups; g++)
            for (size_t h = g; h < groups; h++) {
                const uint32_t row = p->active[r * groups + g], column = p->active[r * groups + h];
                hessian[(dense + row) * stride + dense + column] +=
                    bits_of(factors[r] * (t->units[row] * t->units[column]) + OFFSET) - OFFSET_BITS;
            }
}

/* Add the rows, each by its factor for weight vector k, to what is summed. */
INLINE void add_factors(const struct derivatives_state *s, size_t k, const double *factors, const struct tile *t,
                        const struct part *p, int n)
{
    const size_t stride = t->shape->stride;
    if (sums_matrix(s))
        add_squares(t->partial + k * stride * stride, factors, t, p, n);
    else
        add_multiples(t->partial + k * stride, factors, t, p, 0, n);
}

/* With s the guard's factor the row stands for s*x, and its score, with the label's sign, is sign*s*<w, x>. */
INLINE void add_margins(const struct derivatives_state *s, const struct tile *t, int first, int n)
{
    const struct part p = part_from(t, first);
    double factors[TILE], along[TILE] = {0};
    dots(factors, t->w, t, &p, n);
    if (s->kind == DERIVATIVES_PRODUCT)
        dots(along, t->direction, t, &p, n);
    for (int r = 0; r < n; r++) {
        const double scale = p.scales[r], signed_scale = p.signs[r] * scale;
        const double score = factors[r] * (signed_scale * loss_facts(s->loss).unit);
        const double bend = s->kind == DERIVATIVES_PRODUCT ? along[r] * scale : scale * hessian_factor(s);
        double slope, curvature = loss_curvature(s->loss, score, p.y[r], s->parameter, &slope);
        if (t->weighted) {
            slope *= p.weights[r];
            curvature *= p.weights[r];
        }
        if (s->clip <= DBL_MAX && fabs(slope) * (scale * p.lengths[r]) > s->clip)
            slope = copysign(s->clip / (scale * p.lengths[r]), slope);
        factors[r] = s->kind == DERIVATIVES_GRADIENT ? -slope * signed_scale
                     : s->kind == DERIVATIVES_OUTER  ? slope * slope * bend * scale
                                                     : curvature * bend * scale;
    }
    add_factors(s, 0, factors, t, &p, n);
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
 * Odds p_k of s * <w_k, x>. The factors are s times the class's weight times: p_k - [k is the label] for the gradient;
 * q_k * (a_k - <q, a>/Q), with a_k = s * <direction_k, x>, for a product; q_k * (1 - q_k/Q) * s for the Hessian. q is p,
 * and Q = 1; or, of a loss with kinks, q is 1 where p is above 0, else 0, and Q its sum.
 */
INLINE void add_joint(const struct derivatives_state *s, const struct tile *t, int first, int n)
{
    const size_t classes = s->classes, stride = t->shape->stride;
    const int kinks = loss_facts(s->loss).has_kinks;
    const double bend = hessian_factor(s);
    const struct part part = part_from(t, first);
    double *p = t->scores, *a = p + n * classes; /* of row r and class k at k * n + r */
    for (size_t k = 0; k < classes; k++)
        dots(p + k * n, t->w + k * stride, t, &part, n);
    for (size_t k = 0; s->kind == DERIVATIVES_PRODUCT && k < classes; k++)
        dots(a + k * n, t->direction + k * stride, t, &part, n);
    for (int r = 0; r < n; r++) {
        const double scale = part.scales[r];
        const double sum = loss_powers(s->loss, p + r, n, classes, scale, (size_t) part.y[r], s->parameter);
        const double weighted_scale = t->weighted ? scale * part.weights[r] : scale;
        double mean = 0.0, whole = 0.0, share = 1.0;
        for (size_t k = 0; k < classes; k++)
            p[k * n + r] /= sum;
        if (kinks && s->kind != DERIVATIVES_GRADIENT) {
            for (size_t k = 0; k < classes; k++)
                whole += p[k * n + r] = p[k * n + r] > 0.0 ? 1.0 : 0.0;
            share = 1.0 / whole;
        }
        for (size_t k = 0; s->kind == DERIVATIVES_PRODUCT && k < classes; k++)
            mean += p[k * n + r] * (a[k * n + r] *= scale);
        for (size_t k = 0; k < classes; k++) {
            const double odds = p[k * n + r];
            const double factor = s->kind == DERIVATIVES_GRADIENT  ? odds - (double) ((double) k == part.y[r])
                                  : s->kind == DERIVATIVES_PRODUCT ? odds * (a[k * n + r] - mean * share)
                                                                 : odds * (1.0 - odds * share) * scale * bend;
            p[k * n + r] = weighted_scale * factor;
        }
        if (s->clip <= DBL_MAX)
            clip_factors(p + r, n, classes, part.lengths[r], s->clip);
    }
    for (size_t k = 0; k < classes; k++)
        add_factors(s, k, p + k * n, t, &part, n);
}

INLINE void add_rows(const struct derivatives_state *s, const struct tile *t, int first, int n)
{
    if (loss_facts(s->loss).is_joint)
        add_joint(s, t, first, n);
    else
        add_margins(s, t, first, n);
}

/* Add n rows that were read, with their own weights, but those that are neutral; the result is how many. */
INLINE uint64_t add_read(struct derivatives_state *s, struct tile *t, const double *labels, const double *squares,
                         const int *sampled, int n)
{
    int good = 0;
    loss_labels(s->loss, labels, (size_t) n, &t->reading, t->signs, t->y);
    for (int r = 0; r < n; r++) {
        t->scales[r] = t->signs[r] != 0.0 && sampled[r] ? sgd_row_scale(squares[r], t->shape->dims) : 0.0;
        if (s->weighted)
            t->weights[r] *= label_weight(labels[r], s->classes, t->class_weights);
        if (t->downweights && t->scales[r] > 0.0 && t->scales[r] < 1.0) {
            t->weights[r] *= t->scales[r] * t->scales[r];
            t->scales[r] = 1.0;
        }
        t->lengths[r] = s->clip <= DBL_MAX ? sqrt(squares[r]) : 0.0;
        good += t->scales[r] > 0.0;
    }
    if (good == n)
        add_rows(s, t, 0, n);
    else
        for (int r = 0; r < n; r++)
            if (t->scales[r] > 0.0)
                add_rows(s, t, r, 1);
    s->sum.summed += (uint64_t) good;
    return (uint64_t) good;
}

/* Add n rows, but those that are neutral. */
INLINE void add_tile(struct derivatives_state *s, struct tile *t, const float *rows, int n)
{
    const size_t cells = s->sum.cells, width = 1 + cells;
    double squares[TILE], labels[TILE];
    int sampled[TILE], any = 0;
    for (int r = 0; r < n; r++)
        any |= sampled[r] = hash_selects(rows + r * width, width, s->share);
    if (!any)
        return;
    if (t->map == NULL)
        widen(squares, t->x, t->shape->first, rows + 1, cells, n);
    else if (t->only_numbers)
        read_number_tile(squares, t, rows + 1, cells, n);
    else
        read_tile(squares, t, rows + 1, cells, n);
    for (int r = 0; r < n; r++) {
        labels[r] = rows[r * width];
        t->weights[r] = feature_map_row_weight(t->map, rows + r * width + 1);
    }
    s->waiting += add_read(s, t, labels, squares, sampled, n);
}

#define ARRAY(name) (s->data + place_of(s, shape, name))

INLINE struct tile make_tile(struct derivatives_state *s, const struct shape *shape)
{
    const struct feature_map *map = sum_map(&s->sum);
    struct tile t = {.shape = shape, .map = map, .w = ARRAY(WEIGHTS), .direction = ARRAY(DIRECTION)};
    t.class_weights = ARRAY(CLASS_WEIGHTS);
    t.reading = read_labels_by(map, s->classes, s->positive);
    t.partial = (uint64_t *) (void *) s->data;
    t.downweights = map != NULL && map->downweights;
    t.weighted = s->weighted || t.downweights || (map != NULL && map->row_weights);
    t.only_numbers = map != NULL && feature_map_has_only_numbers(map);
    t.units = map == NULL ? NULL : feature_map_units(map);
    t.x = ARRAY(ROWS);
    t.active = (uint32_t *) (void *) ARRAY(ACTIVE);
    t.scores = ARRAY(SCORES);
    t.numbers = numbers_of(s, shape);
    return t;
}

/* Rows are as private after the scan as before it, and nobody needs them here. */
static void forget_rows(struct derivatives_state *s, const struct shape *shape)
{
    memset(ARRAY(ROWS), 0, (char *) ARRAY(CLASS_WEIGHTS) - (char *) ARRAY(ROWS));
}

INLINE void scan(struct derivatives_state *s, const float *rows, size_t n_rows, int wide)
{
    (void) wide;
    const struct shape shape = shape_of(s->sum.cells, sum_map(&s->sum));
    const size_t width = 1 + s->sum.cells;
    struct tile t = make_tile(s, &shape);
    for (size_t i = 0; i < n_rows;) {
        const int n = i + TILE <= n_rows ? TILE : 1;
        if (n == TILE)
            add_tile(s, &t, rows + i * width, TILE);
        else
            add_tile(s, &t, rows + i * width, 1);
        i += n;
        if (s->waiting + TILE > DERIVATIVES_SUMMED_ROWS)
            fold(s, &shape);
    }
    forget_rows(s, &shape);
}

static void scan_sparse(struct derivatives_state *s, const struct sparse_rows *rows)
{
    const struct feature_map *map = sum_map(&s->sum);
    const struct shape shape = shape_of(s->sum.cells, map);
    struct tile t = make_tile(s, &shape);
    uint32_t *places = (uint32_t *) (void *) (t.x + shape.first); /* where the next row of a tile would be */
    const int sampled = 1;
    t.places = places;
    for (uint64_t i = 0; i < rows->rows; i++) {
        const double label = rows->labels[i];
        double lanes[4] = {0};
        t.count = sparse_rows_features(rows, map, i, t.x, places);
        for (size_t k = 0; k < t.count; k++)
            lanes[places[k] % 4] += t.x[k] * t.x[k];
        t.weights[0] = 1.0;
        add_read(s, &t, &label, &(double){LANES(lanes)}, &sampled, 1);
    }
    forget_rows(s, &shape);
}

static size_t sums_end(const void *state)
{
    const struct derivatives_state *s = state;
    const struct shape shape = shape_of(s->sum.cells, sum_map(&s->sum));
    return sizeof *s + place_of(s, &shape, WEIGHTS) * sizeof *s->data;
}

static void join(void *state, const void *other)
{
    struct derivatives_state *s = state;
    const struct derivatives_state *o = other;
    const struct shape shape = shape_of(s->sum.cells, sum_map(&s->sum));
    const uint64_t count = numbers_of(s, &shape);
    uint64_t *partial = (uint64_t *) (void *) s->data;
    const uint64_t *others = (const uint64_t *) (const void *) o->data;
    fold(s, &shape);
    memcpy(partial, others, count * sizeof *partial);
    s->waiting = o->waiting;
    fold(s, &shape);
    for (uint64_t i = count; i < 3 * count; i++)
        partial[i] += others[i];
}

/* `high` and `low` have room for 2^33 rows. */
DEFINE_KIND(derivatives, UINT64_C(0x376a626f746c6f62) /* "boltobj7" */, UINT64_C(1) << 33,
            offsetof(struct derivatives_state, waiting), join);

int derivatives_add_sparse(void *state, size_t bytes, const struct sparse_rows *rows)
{
    struct derivatives_state *s = state;
    const int code = sum_check(state, bytes);
    if (code != SGD_OK)
        return code;
    if (s->sum.magic != derivatives_kind.magic || sums_matrix(s) || s->share <= UINT32_MAX)
        return SGD_BAD_RECIPE;
    if (!sparse_rows_fit(rows, sum_map(&s->sum)))
        return SGD_CORRUPT;
    if (rows->rows > derivatives_kind.max_rows - s->sum.summed)
        return SGD_FINISHED;
    scan_sparse(s, rows);
    return SGD_OK;
}

int derivatives_sum(const void *state, size_t bytes, double *out)
{
    const struct derivatives_state *s = state;
    const int code = sum_check(state, bytes);
    if (code != SGD_OK)
        return code;
    const struct shape shape = shape_of(s->sum.cells, sum_map(&s->sum));
    const uint64_t slots = shape.slots, rows = sums_matrix(s) ? slots : 1, count = numbers_of(s, &shape);
    const uint64_t *partial = (const uint64_t *) (const void *) s->data;
    const uint64_t *high = partial + count, *low = high + count;
    const uint64_t gap = shape.first - shape.dense;
    const double unit = UNIT / hessian_factor(s);
    for (uint64_t k = 0; k < vectors(s); k++)
        for (uint64_t i = 0; i < rows; i++)
            for (uint64_t j = 0; j < slots; j++) {
                /* Left of the diagonal is as above it. */
                const uint64_t upper = i < j || !sums_matrix(s) ? i : j, right = upper == i ? j : i;
                const uint64_t row = upper < shape.dense ? upper : upper + gap;
                const uint64_t column = right < shape.dense ? right : right + gap;
                const uint64_t of_vector = sums_matrix(s) ? k * shape.stride + row : k;
                const uint64_t at = of_vector * shape.stride + column;
                const __int128 whole = (__int128) (int64_t) high[at] * ((__int128) 1 << 32) + (__int128) low[at] +
                                       (__int128) waiting_sum(s, &shape, partial, at);
                *out++ = (double) whole * unit;
            }
    return SGD_OK;
}
