/* misclassification.c: counting the errors of models. misclassification.h says what counts as one. */
#include "misclassification.h"

#include <string.h>

#include "losses.h"
#include "feature_map.h"
#include "sgd.h"
#include "sum_state.h"

typedef double vec4 __attribute__((vector_size(32), aligned(8), may_alias));
typedef double vec2 __attribute__((vector_size(16), aligned(8), may_alias));
typedef int64_t mask4 __attribute__((vector_size(32), aligned(8), may_alias)); /* lanes of all ones or all zeros */
typedef uint32_t bits32 __attribute__((may_alias));

#define AT(p, i) (*(const vec4 *) ((p) + (i)))
#define CHOOSE(mask, yes, no) ((vec4) (((mask) & (mask4) (yes)) | (~(mask) & (mask4) (no))))

#define GROUP 8

/* Numbers of scratch that rows are read into. */
static uint64_t scratch_of(const struct feature_map *r)
{
    return r == NULL ? 0 : 2 * GROUP * r->dense + GROUP / 2 * r->groups;
}

uint64_t misclassification_bytes(uint64_t cells, uint64_t classes, uint64_t models, uint64_t vectors, const void *map)
{
    const struct feature_map *r = map;
    if (cells < 1 || cells > SGD_MAX_DIMS || classes < 2 || classes > SGD_MAX_CLASSES ||
        (vectors != 1 && vectors != classes) || models < 1 || models > MISCLASSIFICATION_MAX_VECTORS / vectors ||
        (r != NULL && r->cells != cells))
        return 0;
    return sizeof(struct misclassification_state) + sizeof(uint64_t) * models +
           sizeof(double) * (models * vectors * feature_map_slots(r, cells) + scratch_of(r)) + (r == NULL ? 0 : r->bytes);
}

int misclassification_check(const void *state, size_t bytes)
{
    const struct misclassification_state *s = state;
    if ((uintptr_t) state % sizeof(double) != 0)
        return SGD_UNALIGNED;
    if (bytes < sizeof *s || s->magic != MISCLASSIFICATION_MAGIC || s->bytes != bytes || s->unused != 0 ||
        s->map_bytes > bytes - sizeof *s || s->map_bytes % sizeof(double) != 0)
        return SGD_CORRUPT;
    const struct feature_map *r = MAP_OF(s);
    if ((r != NULL && feature_map_check(r, s->map_bytes) != SGD_OK) ||
        misclassification_bytes(s->cells, s->classes, s->models, s->vectors, r) != bytes)
        return SGD_CORRUPT;
    return SGD_OK;
}

int misclassification_init(void *state, size_t bytes, uint64_t cells, uint64_t classes, uint64_t models, uint64_t vectors,
                const void *map, const double *weights)
{
    struct misclassification_state *s = state;
    const struct feature_map *r = map;
    if (bytes == 0 || misclassification_bytes(cells, classes, models, vectors, map) != bytes)
        return SGD_BAD_RECIPE;
    if ((uintptr_t) state % sizeof(double) != 0)
        return SGD_UNALIGNED;
    memset(s, 0, bytes);
    s->magic = MISCLASSIFICATION_MAGIC;
    s->bytes = bytes;
    s->cells = cells;
    s->classes = classes;
    s->models = models;
    s->vectors = vectors;
    sum_state_put_map(state, bytes, r, &s->map_bytes);
    memcpy(s->data + models, weights, models * vectors * feature_map_slots(r, cells) * sizeof *weights);
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

/* Count the errors of the tile's rows. */
INLINE void count_tile(struct misclassification_state *s, struct tile *t, int wide)
{
    const size_t dims = s->cells, groups = (t->n + GROUP - 1) / GROUP;
    const size_t part = dims * groups * GROUP <= TILE_NUMBERS ? dims : TILE_NUMBERS / GROUP;
    const uint64_t all = s->models * s->vectors;
    const double *weights = (const double *) (s->data + s->models);
    struct race races[MAX_GROUPS];
    for (size_t r = 0; r < groups * GROUP; r++) {
        t->present[r] = -(int64_t) (r < t->n);
        t->labels[r] = r < t->n ? t->labels[r] : 0.0;
    }
    for (size_t g = 0; part == dims && g < groups; g++)
        widen(t->x + g * GROUP * dims, t, g, 0, dims);
    for (uint64_t v = 0; v < all; v += PANEL) {
        const uint64_t n = all - v < PANEL ? all - v : PANEL;
        const double *w[PANEL];
        for (uint64_t j = 0; j < PANEL; j++)
            w[j] = weights + (v + (j < n ? j : 0)) * dims;
        for (size_t g = 0; g < groups; g++) {
            double sums[PANEL][GROUP] __attribute__((aligned(64))) = {{0}};
            if (part == dims)
                multiply(sums, t->x + g * GROUP * dims, w, 0, dims, wide);
            for (size_t i = 0; part < dims && i < dims; i += part) {
                const size_t count = dims - i < part ? dims - i : part;
                widen(t->x, t, g, i, count);
                multiply(sums, t->x, w, i, count, wide);
            }
            judge(s, races + g, sums, t, g, v, n);
        }
    }
    t->n = 0;
}

/* Whether a row has a class that is declared and nothing but finite features. */
INLINE int is_sound(const struct misclassification_state *s, const float *row)
{
    const double label = row[0];
    const bits32 *features = (const bits32 *) (row + 1);
    uint32_t unsound = !label_is_class(label, (double) s->classes);
    for (size_t i = 0; i < s->cells; i++)
        unsound |= (features[i] & UINT32_C(0x7f800000)) == UINT32_C(0x7f800000);
    return !unsound;
}

/* Count the errors of up to eight rows that are read by a feature map. */
INLINE void count_group(struct misclassification_state *s, struct tile *t, const struct feature_map *r, int wide)
{
    const size_t dense = r->dense, groups = r->groups, slots = r->slots;
    const uint64_t all = s->models * s->vectors;
    const double *weights = (const double *) (s->data + s->models);
    double *x = (double *) (s->data + s->models) + all * slots, *row = x + GROUP * dense;
    uint32_t *active = (uint32_t *) (void *) (row + GROUP * dense);
    struct race race = {{{0}}, {{0}}};
    for (size_t i = 0; i < GROUP; i++) {
        t->present[i] = -(int64_t) (i < t->n);
        t->labels[i] = i < t->n ? t->labels[i] : 0.0;
        read_slots(r, t->rows[i < t->n ? i : 0], row, active + i * groups);
        for (size_t j = 0; j < dense; j++)
            x[GROUP * j + i] = row[j];
    }
    for (uint64_t v = 0; v < all; v += PANEL) {
        const uint64_t n = all - v < PANEL ? all - v : PANEL;
        double sums[PANEL][GROUP] __attribute__((aligned(64))) = {{0}};
        const double *w[PANEL];
        for (uint64_t j = 0; j < PANEL; j++)
            w[j] = weights + (v + (j < n ? j : 0)) * slots;
        multiply(sums, x, w, 0, dense, wide);
        for (uint64_t j = 0; j < n; j++)
            for (size_t i = 0; i < GROUP; i++)
                for (size_t g = 0; g < groups; g++)
                    sums[j][i] += w[j][dense + active[i * groups + g]];
        judge(s, &race, sums, t, 0, v, n);
    }
    t->n = 0;
}

/* Rows that are read by a feature map: whatever their cells are, they have features. */
INLINE void scan_by(struct misclassification_state *s, const struct feature_map *r, const float *rows, size_t n_rows, int wide)
{
    uint64_t unsound = 0;
    struct tile t;
    t.n = 0;
    for (size_t i = 0; i < n_rows; i++, rows += 1 + s->cells) {
        if (!label_is_class(rows[0], (double) s->classes)) {
            unsound++;
            continue;
        }
        t.rows[t.n] = rows + 1;
        t.labels[t.n++] = rows[0];
        if (t.n == GROUP)
            count_group(s, &t, r, wide);
    }
    if (t.n > 0)
        count_group(s, &t, r, wide);
    for (uint64_t model = 0; model < s->models; model++)
        s->data[model] += unsound;
    /* Rows are as private after the scan as before it, and nobody needs them here. */
    memset(s->data + s->models + s->models * s->vectors * r->slots, 0, scratch_of(r) * sizeof(double));
}

INLINE void scan(struct misclassification_state *s, const float *rows, size_t n_rows, int wide)
{
    if (s->map_bytes != 0) {
        scan_by(s, MAP_OF(s), rows, n_rows, wide);
        return;
    }
    const size_t fitting = TILE_NUMBERS / s->cells / GROUP * GROUP;
    const size_t most = fitting > TILE_ROWS ? TILE_ROWS : fitting > 0 ? fitting : GROUP;
    uint64_t unsound = 0;
    struct tile t;
    t.n = 0;
    for (size_t i = 0; i < n_rows; i++, rows += 1 + s->cells) {
        if (!is_sound(s, rows)) {
            unsound++;
            continue;
        }
        t.rows[t.n] = rows + 1;
        t.labels[t.n++] = rows[0];
        if (t.n == most)
            count_tile(s, &t, wide);
    }
    if (t.n > 0)
        count_tile(s, &t, wide);
    for (uint64_t model = 0; model < s->models; model++)
        s->data[model] += unsound;
}

#define ROWS_LEFT(s) ((void) (s), SIZE_MAX)
DEFINE_ADD(misclassification, ROWS_LEFT)

int misclassification_join(void *state, size_t bytes, const void *other)
{
    struct misclassification_state *s = state;
    const struct misclassification_state *o = other;
    int code = misclassification_check(state, bytes);
    if (code == SGD_OK)
        code = misclassification_check(other, bytes);
    if (code != SGD_OK)
        return code;
    const size_t counts = (const char *) (s->data + s->models) - (const char *) s;
    if (memcmp(s, o, sizeof *s) != 0 || memcmp((const char *) s + counts, (const char *) o + counts, bytes - counts) != 0)
        return SGD_BAD_RECIPE;
    for (uint64_t model = 0; model < s->models; model++)
        s->data[model] += o->data[model];
    return SGD_OK;
}
