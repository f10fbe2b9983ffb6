/* misclassification.c: counting the errors of models. misclassification.h says what counts as one. */
#include "misclassification.h"

#include <string.h>

#include "losses.h"

typedef double vec2 __attribute__((vector_size(16), aligned(8), may_alias));
typedef uint32_t bits32 __attribute__((may_alias));

#define AT(p, i) (*(const vec4 *) ((p) + (i)))

#define GROUP 8

/* Numbers of scratch that rows are read into. */
static uint64_t scratch_of(const struct feature_map *r)
{
    return r == NULL ? 0 : 2 * GROUP * r->dense + GROUP / 2 * r->groups;
}

uint64_t misclassification_bytes(uint64_t cells, uint64_t classes, uint64_t models, uint64_t vectors, const void *map)
{
    const struct feature_map *r = map;
    if (!sum_cells_fit(cells, r) || classes < 2 || classes > SGD_MAX_CLASSES || (vectors != 1 && vectors != classes) ||
        models < 1 || models > MISCLASSIFICATION_MAX_VECTORS / vectors)
        return 0;
    return sizeof(struct misclassification_state) + sizeof(uint64_t) * models +
           sizeof(double) * (models * vectors * feature_map_slots(r, cells) + scratch_of(r)) + (r == NULL ? 0 : r->bytes);
}

static int is_sound(const void *state, const struct feature_map *r)
{
    const struct misclassification_state *s = state;
    return misclassification_bytes(s->sum.cells, s->classes, s->models, s->vectors, r) == s->sum.bytes;
}

int misclassification_init(void *state, size_t bytes, uint64_t cells, uint64_t classes, uint64_t models, uint64_t vectors,
                const void *map, const double *weights)
{
    struct misclassification_state *s = state;
    const uint64_t needed = misclassification_bytes(cells, classes, models, vectors, map);
    const int code = sum_init(state, bytes, needed, &misclassification_kind, cells, map);
    if (code != SGD_OK)
        return code;
    s->classes = classes;
    s->models = models;
    s->vectors = vectors;
    memcpy(s->data + models, weights, models * vectors * feature_map_slots(map, cells) * sizeof *weights);
    return SGD_OK;
}

/*
 * Eight rows, in the lanes of two vectors, times four weight vectors: eight sums, as many as keep the processor busy,
 * and every number that is loaded is used four or eight times. So rows are widened into groups of eight, feature after
 * feature, and as many groups as the cache holds meet each panel of four weight vectors.
 */
#define PANEL 4
#define TILE_ROWS 64
#define TILE_NUMBERS 8192 /* widened at once: 64 KiB. Of wider rows only these first, then the next, for each panel */
#define MAX_GROUPS (TILE_ROWS / GROUP)

struct tile {
    double x[TILE_NUMBERS] __attribute__((aligned(64)));
    double labels[TILE_ROWS] __attribute__((aligned(64)));
    int64_t present[TILE_ROWS] __attribute__((aligned(64))); /* -1, and 0 past the last row */
    const float *rows[TILE_ROWS];                            /* their features */
    size_t n;
};

/* Widen features first .. first+count-1 of the group's rows; where rows are missing the first stands in. */
INLINE void widen(double *x, const struct tile *t, size_t group, size_t first, size_t count)
{
    for (size_t r = 0; r < GROUP; r++) {
        const size_t at = group * GROUP + r;
        const float *row = t->rows[at < t->n ? at : 0] + first;
        for (size_t i = 0; i < count; i++)
            x[GROUP * i + r] = row[i];
    }
}

/* The sums of two vectors of rows, from row `at` of the group on, go into registers, and back once they are done. */
#define IN(VECTOR, p) (*(VECTOR *) (p))
#define MULTIPLY(VECTOR, at)                                                     \
    do {                                                                         \
        const size_t next = (at) + sizeof(VECTOR) / sizeof(double);              \
        VECTOR a0 = IN(VECTOR, sums[0] + (at)), a1 = IN(VECTOR, sums[0] + next); \
        VECTOR b0 = IN(VECTOR, sums[1] + (at)), b1 = IN(VECTOR, sums[1] + next); \
        VECTOR c0 = IN(VECTOR, sums[2] + (at)), c1 = IN(VECTOR, sums[2] + next); \
        VECTOR d0 = IN(VECTOR, sums[3] + (at)), d1 = IN(VECTOR, sums[3] + next); \
        for (size_t i = 0; i < count; i++) {                                     \
            const VECTOR x0 = IN(const VECTOR, x + GROUP * i + (at));            \
            const VECTOR x1 = IN(const VECTOR, x + GROUP * i + next);            \
            a0 += w0[i] * x0, a1 += w0[i] * x1;                                  \
            b0 += w1[i] * x0, b1 += w1[i] * x1;                                  \
            c0 += w2[i] * x0, c1 += w2[i] * x1;                                  \
            d0 += w3[i] * x0, d1 += w3[i] * x1;                                  \
        }                                                                        \
        IN(VECTOR, sums[0] + (at)) = a0, IN(VECTOR, sums[0] + next) = a1;        \
        IN(VECTOR, sums[1] + (at)) = b0, IN(VECTOR, sums[1] + next) = b1;        \
        IN(VECTOR, sums[2] + (at)) = c0, IN(VECTOR, sums[2] + next) = c1;        \
        IN(VECTOR, sums[3] + (at)) = d0, IN(VECTOR, sums[3] + next) = d1;        \
    } while (0)

/* sums[j] += w[j][i] * x[i], feature after feature. `wide`, known when this is compiled: four numbers a register. */
INLINE void multiply(double sums[PANEL][GROUP], const double *x, const double *const w[PANEL], size_t first,
                     size_t count, int wide)
{
    const double *w0 = w[0] + first, *w1 = w[1] + first, *w2 = w[2] + first, *w3 = w[3] + first;
    if (wide)
        MULTIPLY(vec4, 0);
    else
        for (size_t half = 0; half < GROUP; half += GROUP / 2)
            MULTIPLY(vec2, half);
}

/* The class that has won so far, and its margin, for the rows of a group. */
struct race {
    vec4 best[2], choice[2];
};

/* How many of the rows are there and have not this choice. */
INLINE uint64_t wrong_rows(const vec4 choice[2], const struct tile *t, size_t group)
{
    mask4 wrong = {0};
    for (size_t h = 0; h < 2; h++) {
        const size_t at = group * GROUP + 4 * h;
        wrong += (choice[h] != AT(t->labels, at)) & *(const mask4 *) (t->present + at);
    }
    return (uint64_t) -((wrong[0] + wrong[1]) + (wrong[2] + wrong[3])); /* a true lane is -1 */
}

/* Let the margins of vectors v .. v+n-1 join the race of their models, and count where one ends. */
INLINE void judge(struct misclassification_state *s, struct race *race, double sums[PANEL][GROUP], const struct tile *t,
                  size_t group, uint64_t v, uint64_t n)
{
    uint64_t model = v / s->vectors, k = v % s->vectors;
    for (uint64_t j = 0; j < n; j++) {
        for (int h = 0; h < 2; h++) {
            const vec4 margin = AT(sums[j], 4 * h), none = {0}, one = {1.0, 1.0, 1.0, 1.0};
            if (s->vectors == 1) {
                race->choice[h] = CHOOSE(margin > none, one, none);
            } else if (k == 0) {
                race->best[h] = margin;
                race->choice[h] = none;
            } else {
                const mask4 better = margin > race->best[h];
                race->best[h] = CHOOSE(better, margin, race->best[h]);
                race->choice[h] = CHOOSE(better, (double) k * one, race->choice[h]);
            }
        }
        if (++k == s->vectors) {
            s->data[model++] += wrong_rows(race->choice, t, group);
            k = 0;
        }
    }
}

/* Read up to eight rows by a feature map: their dense slots, feature after feature, and those of their groups. */
INLINE void read_group(double *x, uint32_t *active, const struct tile *t, const struct feature_map *r)
{
    double *row = x + GROUP * r->dense;
    for (size_t i = 0; i < GROUP; i++) {
        read_slots(r, t->rows[i < t->n ? i : 0], row, active + i * r->groups);
        for (size_t k = 0; k < r->dense; k++)
            x[GROUP * k + i] = row[k];
    }
}

/* Count the errors of the tile's rows, of which there are up to eight where they are read by a feature map. */
INLINE void count_tile(struct misclassification_state *s, struct tile *t, const struct feature_map *r, int wide)
{
    const size_t slots = feature_map_slots(r, s->sum.cells), dense = feature_map_dense(r, slots);
    const size_t groups = (t->n + GROUP - 1) / GROUP;
    const size_t part = r != NULL || dense * groups * GROUP <= TILE_NUMBERS ? dense : TILE_NUMBERS / GROUP;
    const uint64_t all = s->models * s->vectors;
    double *weights = (double *) (s->data + s->models), *scratch = weights + all * slots;
    double *x = r == NULL ? t->x : scratch;
    uint32_t *active = (uint32_t *) (void *) (scratch + 2 * GROUP * dense);
    struct race races[MAX_GROUPS];
    for (size_t i = 0; i < groups * GROUP; i++) {
        t->present[i] = -(int64_t) (i < t->n);
        t->labels[i] = i < t->n ? t->labels[i] : 0.0;
    }
    if (r != NULL)
        read_group(x, active, t, r);
    else
        for (size_t g = 0; part == dense && g < groups; g++)
            widen(x + g * GROUP * dense, t, g, 0, dense);
    for (uint64_t v = 0; v < all; v += PANEL) {
        const uint64_t n = all - v < PANEL ? all - v : PANEL;
        const double *w[PANEL];
        for (uint64_t j = 0; j < PANEL; j++)
            w[j] = weights + (v + (j < n ? j : 0)) * slots;
        for (size_t g = 0; g < groups; g++) {
            double sums[PANEL][GROUP] __attribute__((aligned(64))) = {{0}};
            if (part == dense)
                multiply(sums, x + g * GROUP * dense, w, 0, dense, wide);
            for (size_t i = 0; part < dense && i < dense; i += part) {
                const size_t count = dense - i < part ? dense - i : part;
                widen(x, t, g, i, count);
                multiply(sums, x, w, i, count, wide);
            }
            for (uint64_t j = 0; r != NULL && j < n; j++)
                for (size_t i = 0; i < GROUP; i++)
                    for (size_t k = 0; k < r->groups; k++)
                        sums[j][i] += w[j][dense + active[i * r->groups + k]];
            judge(s, races + g, sums, t, g, v, n);
        }
    }
    t->n = 0;
}

/* Whether all cells are finite. */
INLINE int is_finite(const float *cells, size_t count)
{
    const bits32 *bits = (const bits32 *) cells;
    uint32_t unsound = 0;
    for (size_t i = 0; i < count; i++)
        unsound |= (bits[i] & UINT32_C(0x7f800000)) == UINT32_C(0x7f800000);
    return !unsound;
}

/* Rows that are read by a feature map have features whatever their cells are. */
INLINE void scan(struct misclassification_state *s, const float *rows, size_t n_rows, int wide)
{
    const struct feature_map *r = sum_map(&s->sum);
    const size_t cells = s->sum.cells, fitting = TILE_NUMBERS / cells / GROUP * GROUP;
    const size_t most = r != NULL || fitting == 0 ? GROUP : fitting > TILE_ROWS ? TILE_ROWS : fitting;
    uint64_t unsound = 0;
    struct tile t;
    t.n = 0;
    for (size_t i = 0; i < n_rows; i++, rows += 1 + cells) {
        if (!label_is_class(rows[0], (double) s->classes) || (r == NULL && !is_finite(rows + 1, cells))) {
            unsound++;
            continue;
        }
        t.rows[t.n] = rows + 1;
        t.labels[t.n++] = rows[0];
        if (t.n == most)
            count_tile(s, &t, r, wide);
    }
    if (t.n > 0)
        count_tile(s, &t, r, wide);
    for (uint64_t model = 0; model < s->models; model++)
        s->data[model] += unsound;
    s->sum.summed += n_rows;
    /* Rows are as private after the scan as before it, and nobody needs them here. */
    memset((char *) s + (s->sum.bytes - s->sum.map_bytes) - scratch_of(r) * sizeof(double), 0,
           scratch_of(r) * sizeof(double));
}

static size_t sums_end(const void *state)
{
    return sizeof(struct misclassification_state) + ((const struct misclassification_state *) state)->models * sizeof(uint64_t);
}

DEFINE_KIND(misclassification, UINT64_C(0x33727265746c6f62) /* "bolterr3" */, UINT64_C(1) << 62,
            sizeof(struct misclassification_state), sum_join_counts);
