/* feature_sums.c: see feature_sums.h. */
#include "feature_sums.h"

#include <math.h>
#include <string.h>

#define AT(p, i) (*(vec4 *) (double *) ((p) + (i)))
#define WHOLE (1.5 * 0x1p52) /* adding and subtracting it rounds to a whole number */

uint64_t feature_sums_bytes(uint64_t cells, const void *map)
{
    const struct feature_map *r = map;
    if (!sum_cells_fit(cells, r) || (r != NULL && r->pairs > 0)) /* features of a pair are not all as high */
        return 0;
    const uint64_t scratch = pad_count(feature_map_dense(r, cells)) + (r == NULL ? 0 : (r->groups + 1) / 2);
    return sizeof(struct feature_sums_state) + sizeof(double) * (2 * feature_map_slots(r, cells) + scratch) +
           (r == NULL ? 0 : r->bytes);
}

static int is_sound(const void *state, const struct feature_map *r)
{
    const struct feature_sums_state *s = state;
    return s->radius > 0.0 && s->unused[0] == 0 && s->unused[1] == 0 &&
           feature_sums_bytes(s->sum.cells, r) == s->sum.bytes;
}

int feature_sums_init(void *state, size_t bytes, uint64_t cells, const void *map, double radius)
{
    struct feature_sums_state *s = state;
    const int code = sum_init(state, bytes, feature_sums_bytes(cells, map), &feature_sums_kind, cells, map);
    if (code != SGD_OK)
        return code;
    s->radius = radius;
    return is_sound(s, map) ? SGD_OK : SGD_BAD_RECIPE;
}

/* Clip the numbers of a row, those past the last being 0. */
INLINE void clip(double *x, size_t count)
{
    const vec4 one = {1.0, 1.0, 1.0, 1.0};
    for (size_t i = 0; i < count; i += 4) {
        const vec4 four = CHOOSE(AT(x, i) > one, one, AT(x, i));
        AT(x, i) = CHOOSE(four < -one, -one, four);
    }
}

INLINE double sum_of_squares(const double *x, size_t count)
{
    vec4 sum = {0};
    for (size_t i = 0; i < count; i += 4)
        sum += AT(x, i) * AT(x, i);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

INLINE void add_numbers(double *sums, double *squares, const double *x, size_t count, double scale)
{
    size_t i = 0;
    for (; i + 4 <= count; i += 4) {
        const vec4 value = AT(x, i) * scale;
        AT(sums, i) += (value * FEATURE_SUMS_UNIT + WHOLE) - WHOLE;
        AT(squares, i) += (value * value * FEATURE_SUMS_UNIT + WHOLE) - WHOLE;
    }
    for (; i < count; i++) {
        const double value = x[i] * scale;
        sums[i] += (value * FEATURE_SUMS_UNIT + WHOLE) - WHOLE;
        squares[i] += (value * value * FEATURE_SUMS_UNIT + WHOLE) - WHOLE;
    }
}

/* Of each group, what each of its features that is not 0 adds: all of them are as high. */
INLINE void add_groups(double *sums, double *squares, const struct feature_map *r, const uint32_t *active, double scale)
{
    const double *height = feature_map_b(r);
    for (uint64_t s = 0; s < r->segments; height += r->parts[s].count, s++) {
        if (r->parts[s].kind != SEGMENT_CATEGORY && r->parts[s].kind != SEGMENT_STEPS)
            continue;
        const double value = *height * scale;
        sums[*active] += (value * FEATURE_SUMS_UNIT + WHOLE) - WHOLE;
        squares[*active] += (value * value * FEATURE_SUMS_UNIT + WHOLE) - WHOLE;
        active++;
    }
}

INLINE void scan(struct feature_sums_state *s, const float *rows, size_t n_rows, int wide)
{
    (void) wide;
    const struct feature_map *r = sum_map(&s->sum);
    const uint64_t cells = s->sum.cells, slots = feature_map_slots(r, cells), dense = feature_map_dense(r, cells);
    const uint64_t wide_dense = pad_count(dense);
    double *sums = s->data, *squares = sums + slots, *x = squares + slots;
    uint32_t *active = (uint32_t *) (void *) (x + wide_dense);
    for (size_t i = 0; i < n_rows; i++, rows += 1 + cells) {
        double square = 0.0;
        if (r != NULL)
            read_slots(r, rows + 1, x, active);
        else
            for (uint64_t k = 0; k < dense; k++)
                x[k] = (double) rows[1 + k];
        for (uint64_t g = 0; r != NULL && g < r->groups; g++)
            square += feature_map_squares(r)[active[g]];
        clip(x, wide_dense);
        const double norm = sqrt(square + sum_of_squares(x, wide_dense));
        if (norm != norm)
            continue;
        const double scale = norm > s->radius ? s->radius / norm : 1.0;
        add_numbers(sums, squares, x, dense, scale);
        if (r != NULL && r->groups > 0)
            add_groups(sums + dense, squares + dense, r, active, scale);
    }
    s->sum.summed += n_rows;
    /* Rows are as private after the scan as before it, and nobody needs them here. */
    memset(x, 0, (wide_dense + (r == NULL ? 0 : (r->groups + 1) / 2)) * sizeof *x);
}

static uint64_t slots_of(const struct feature_sums_state *s)
{
    return feature_map_slots(sum_map(&s->sum), s->sum.cells);
}

static size_t sums_end(const void *state)
{
    return sizeof(struct feature_sums_state) + 2 * slots_of(state) * sizeof(double);
}

static void join(void *state, const void *other)
{
    struct feature_sums_state *s = state;
    const struct feature_sums_state *o = other;
    for (uint64_t i = 0; i < 2 * slots_of(s); i++)
        s->data[i] += o->data[i];
}

/* Sums of up to 2^33 rows are exact. */
DEFINE_KIND(feature_sums, UINT64_C(0x326d6f6d746c6f62) /* "boltmom2" */, UINT64_C(1) << 33,
            sizeof(struct feature_sums_state), join);
