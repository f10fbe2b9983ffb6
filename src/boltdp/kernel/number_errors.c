/* number_errors.c: see number_errors.h. */
#include "number_errors.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "losses.h"

#define ONE (UINT64_C(1) << NUMBER_ERROR_BITS)

/* Numbers of a row's dense slots and groups. */
static uint64_t row_numbers(uint64_t cells, const struct feature_map *r)
{
    return feature_map_dense(r, cells) + (r == NULL ? 0 : (r->groups + 1) / 2);
}

uint64_t number_errors_bytes(uint64_t cells, uint64_t loss, uint64_t models, const void *map)
{
    const struct feature_map *r = map;
    if (!sum_cells_fit(cells, r) || loss >= LOSS_COUNT || !loss_facts(loss).has_label || models < 1 ||
        models > NUMBER_ERRORS_MAX_MODELS)
        return 0;
    return sizeof(struct number_errors_state) +
           sizeof(double) * (models * (2 + feature_map_slots(r, cells)) + row_numbers(cells, r)) +
           (r == NULL ? 0 : r->bytes);
}

static int is_sound(const void *state, const struct feature_map *r)
{
    const struct number_errors_state *s = state;
    return s->parameter > 0.0 && s->parameter <= DBL_MAX && s->whole > 0.0 && s->whole <= DBL_MAX &&
           number_errors_bytes(s->sum.cells, s->loss, s->models, r) == s->sum.bytes;
}

int number_errors_init(void *state, size_t bytes, uint64_t cells, uint64_t loss, uint64_t models, const void *map,
                       double parameter, double whole, const double *weights)
{
    struct number_errors_state *s = state;
    const uint64_t needed = number_errors_bytes(cells, loss, models, map);
    const int code = sum_init(state, bytes, needed, &number_errors_kind, cells, map);
    if (code != SGD_OK)
        return code;
    s->loss = loss;
    s->models = models;
    s->parameter = parameter;
    s->whole = whole;
    memcpy(s->data + models, weights, models * feature_map_slots(map, cells) * sizeof *weights);
    return is_sound(s, map) ? SGD_OK : SGD_BAD_RECIPE;
}

INLINE void scan(struct number_errors_state *s, const float *rows, size_t n_rows, int wide)
{
    (void) wide;
    const struct feature_map *r = sum_map(&s->sum);
    const uint64_t cells = s->sum.cells, slots = feature_map_slots(r, cells), room = row_numbers(cells, r);
    const struct label_reading reading = read_labels_by(r, 2, 1);
    double *weights = (double *) (s->data + s->models), *row = weights + s->models * slots, *scores = row + room;
    for (size_t i = 0; i < n_rows; i++, rows += 1 + cells) {
        const struct label label = number_label(rows[0], &reading);
        if (label.sign != 0.0)
            feature_map_scores(r, cells, rows, 1, weights, s->models, row, scores, NULL);
        for (uint64_t model = 0; model < s->models; model++) {
            double error = 1.0;
            if (label.sign != 0.0)
                error = loss_error(s->loss, scores[model], label.y, s->parameter) / s->whole;
            s->data[model] += error < 1.0 ? (uint64_t) (error * ONE) : ONE; /* NaN is an error too */
        }
    }
    s->sum.summed += n_rows;
    /* Rows are as private after the scan as before it, and nobody needs them here. */
    memset(row, 0, (room + s->models) * sizeof *row);
}

static size_t sums_end(const void *state)
{
    return sizeof(struct number_errors_state) + ((const struct number_errors_state *) state)->models * sizeof(uint64_t);
}

DEFINE_KIND(number_errors, UINT64_C(0x316d756e746c6f62) /* "boltnum1" */, UINT64_C(1) << 40,
            sizeof(struct number_errors_state), sum_join_counts);
