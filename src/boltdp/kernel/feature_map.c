/* feature_map.c: see feature_map.h. */
#include "feature_map.h"

#include <float.h>
#include <math.h>

#include "sgd.h"
#include "sparse_rows.h"

/* Whether the axes can be followed, and their features are as many as the map says. */
static int axes_are_sound(const struct feature_map *r)
{
    const struct feature_axis *axis = feature_map_axes(r);
    uint64_t dims = 0;
    for (uint64_t i = 0; i < r->axes; i++, axis++) {
        if (axis->kind >= AXIS_KINDS || axis->cell >= r->cells - r->row_weights || axis->count < 1 ||
            axis->count > SGD_MAX_DIMS || axis->first != dims ||
            (axis->levels != axis->count + 1 && (axis->kind == AXIS_STEPS || axis->levels != axis->count)))
            return 0;
        dims += axis->count;
    }
    return dims == r->axis_dims;
}

int feature_map_check(const void *map, size_t bytes)
{
    const struct feature_map *r = map;
    if ((uintptr_t) map % sizeof(double) != 0)
        return SGD_UNALIGNED;
    if (bytes < sizeof *r || r->bytes != bytes || r->dims < 1 || r->dims > SGD_MAX_DIMS || r->segments < 1 ||
        r->segments > r->dims || r->row_weights > 1 || r->downweights > 1 ||
        r->axes > FEATURE_MAP_MAX_AXES || r->pairs > r->segments || r->cells < 1 + r->row_weights ||
        (bytes - sizeof *r) / sizeof *r->parts < r->segments)
        return SGD_CORRUPT;
    const uint64_t heads =
        r->segments * sizeof *r->parts + r->axes * sizeof(struct feature_axis) + r->pairs * sizeof(struct feature_pair);
    if (bytes - sizeof *r < heads || !axes_are_sound(r))
        return SGD_CORRUPT;
    uint64_t cells = 0, dims = 0, dense = 0, slots = 0, groups = 0, places = 0, pairs = 0;
    for (uint64_t s = 0; s < r->segments; s++) {
        const struct feature_segment *part = r->parts + s;
        if (part->kind >= SEGMENT_KINDS || part->count < 1 || part->count > r->dims - dims)
            return SGD_CORRUPT;
        const int is_group = part->kind != SEGMENT_NUMBERS && part->kind != SEGMENT_CONSTANT;
        if (part->kind == SEGMENT_STEPS && (s == 0 || part[-1].kind != SEGMENT_NUMBERS))
            return SGD_CORRUPT;
        if (part->kind == SEGMENT_PAIR) {
            const struct feature_axis *axes = feature_map_axes(r);
            const struct feature_pair *pair = feature_map_pairs(r) + pairs;
            if (pairs++ >= r->pairs || pair->first >= r->axes || pair->second >= r->axes ||
                part->count != axes[pair->first].count * axes[pair->second].count)
                return SGD_CORRUPT;
            slots += 1 + axes[pair->first].levels * axes[pair->second].levels - part->count;
        }
        dims += part->count;
        cells += part->kind == SEGMENT_CATEGORY ? 1 : part->kind == SEGMENT_NUMBERS ? part->count : 0;
        places += part->kind == SEGMENT_STEPS ? part->count : 0;
        dense += is_group ? 0 : part->count;
        slots += part->count + (part->kind == SEGMENT_CATEGORY ? 1 : part->kind == SEGMENT_STEPS ? 2 : 0);
        groups += is_group;
    }
    if (pairs != r->pairs || cells < 1 || cells + r->row_weights != r->cells || dims != r->dims || dense != r->dense || slots != r->slots ||
        groups != r->groups)
        return SGD_CORRUPT;
    const uint64_t numbers = 2 * (dims + (slots - dense)) + places + 3 * r->axis_dims + pairs;
    return sizeof *r + heads + sizeof(double) * numbers == bytes ? SGD_OK : SGD_CORRUPT;
}

int feature_map_is_finite(const struct feature_map *r)
{
    const double *numbers = feature_map_a(r), *end = (const void *) ((const char *) r + r->bytes);
    if (!(fabs(r->label_center) <= DBL_MAX && r->label_factor > 0.0 && r->label_factor <= DBL_MAX))
        return 0;
    for (; numbers < end; numbers++)
        if (!(fabs(*numbers) <= DBL_MAX))
            return 0;
    return 1;
}

WIDEST void feature_map_features(const struct feature_map *r, const float *rows, size_t n_rows, double *out)
{
    for (size_t i = 0; i < n_rows; i++, rows += 1 + r->cells, out += 1 + r->dims) {
        out[0] = (double) rows[0];
        read_features(r, rows + 1, out + 1);
    }
}

WIDEST void feature_map_scores(const struct feature_map *r, uint64_t cells, const float *rows, size_t n_rows,
                           const double *weights, size_t vectors, double *room, double *out, double *norms)
{
    const size_t dense = feature_map_dense(r, cells), slots = feature_map_slots(r, cells);
    const size_t groups = r == NULL ? 0 : r->groups;
    uint32_t *active = (uint32_t *) (void *) (room + dense);
    for (size_t i = 0; i < n_rows; i++, rows += 1 + cells) {
        double square = 0.0;
        if (r != NULL)
            square = read_slots(r, rows + 1, room, active);
        else
            for (size_t k = 0; k < dense; k++) {
                room[k] = (double) rows[1 + k];
                square += room[k] * room[k];
            }
        const double length = square > 1.0 && !(r != NULL && r->downweights) ? sqrt(square) : 1.0;
        if (norms != NULL)
            norms[i] = square < 1.0 ? sqrt(square) : 1.0;
        for (size_t v = 0; v < vectors; v++) {
            const double *w = weights + v * slots;
            double sums[8] = {0}, sum = 0.0;
            for (size_t k = 0; k < dense; k++)
                sums[k % 8] += w[k] * room[k];
            for (size_t g = 0; g < groups; g++)
                sum += w[dense + active[g]];
            for (size_t k = 0; k < 8; k++)
                sum += sums[k];
            *out++ = sum / length;
        }
    }
}

int feature_map_sparse_scores(const struct feature_map *r, const struct sparse_rows *rows, const double *weights,
                              size_t vectors, double *room, double *out, double *norms)
{
    if (!sparse_rows_fit(rows, r))
        return SGD_CORRUPT;
    const uint64_t fours = r->cells / 4 * 4;
    uint32_t *places = (uint32_t *) (void *) (room + r->dims);
    for (uint64_t i = 0; i < rows->rows; i++) {
        const size_t count = sparse_rows_features(rows, r, i, room, places);
        double lanes[4] = {0}, square = 0.0;
        for (size_t k = 0; k < count; k++)
            *(places[k] < fours ? lanes + places[k] % 4 : &square) += room[k] * room[k];
        square = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + square;
        const double length = square > 1.0 && !r->downweights ? sqrt(square) : 1.0;
        if (norms != NULL)
            norms[i] = square < 1.0 ? sqrt(square) : 1.0;
        for (size_t v = 0; v < vectors; v++) {
            double sums[8] = {0}, sum = 0.0;
            for (size_t k = 0; k < count; k++)
                sums[places[k] % 8] += weights[v * r->dims + places[k]] * room[k];
            for (size_t k = 0; k < 8; k++)
                sum += sums[k];
            *out++ = sum / length;
        }
    }
    return SGD_OK;
}
