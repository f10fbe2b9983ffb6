/*
 * feature_map.h: how the cells of a packed row are read as features.
 *
 * A packed row is a label and its cells: a number between -1 and 1 for each number of a column, and one whole number
 * for each column of few values, whatever its features are. So a row is as long as its columns are many, and what is
 * learned later (centres, scales) needs no new rows. A feature map is a list of segments, in the order of the features:
 *
 *     SEGMENT_NUMBERS   `count` cells, each a feature  (cell - a) * b;  a cell that is NaN is missing, and the feature 0
 *     SEGMENT_CATEGORY  one cell, the index of a category: `count` features, each b where it is the cell's and a elsewhere.
 *                    A cell that is no index is none of them: all are a
 *     SEGMENT_STEPS     no cell of its own but the last of the numbers before it: `count` features, b for as many first
 *                    ones as there are places at or below the cell, a for the others. All are 0 where the cell is NaN
 *     SEGMENT_CONSTANT  no cell, `count` features a
 *     SEGMENT_PAIR   no cell of its own, but two axes (below): `count` features, each the product of a feature of the first
 *                    and one of the second, times a factor; those of the second axis vary fastest. All are 0 where either
 *                    axis is missing
 *
 * An AXIS reads a cell of any segment to a level, once for all pairs that have it: AXIS_STEPS, with places of its own, to
 * as many levels as there are steps, and one more; AXIS_CATEGORY to the index of a category, of which there may be one
 * without a feature at the end. Its features are a and b as those of steps and of a category.
 *
 * Whoever only sums over rows needs no features. A row has a few numbers, and of each category or steps, a group, one
 * of few vectors. So what is summed has a SLOT for each number and constant (the dense ones, which come first), and for
 * each vector of each group: count + 1 of a category, the first for a cell that is none of them; count + 2 of steps,
 * the first for a missing one, then those for 0, 1, .. count; of a pair one for each two levels, after the first for a
 * missing one. feature_map.py turns weights of features into weights of
 * slots, and sums of slots into sums of features. A slot of a group has a `square`, of its vector's length, and a
 * `unit`: the power of two that is at least this length, but less than twice as much, or 0. What is added to the slot
 * is multiplied by it, so that rounding it moves the features' sum by as little as rounding a number does.
 *
 * A label that is a number is read as (label - label_center) * label_factor (losses.h). Where rows have weights, the
 * last cell is no feature, but the weight: from -1, which is none, to 1.
 *
 * A row longer than 1 is shortened to 1, or downweighted: it keeps its length, and its loss is divided by the square of
 * it, so that its gradient is no longer than its slope, and its Hessian no larger than its curvature.
 *
 * The block is flat: this header, segments[], axes[], pairs[] (one for each segment of that kind, in their order), a[dims],
 * b[dims] (zeros of pairs), squares[], units[] (both for the slots of groups only), places[] (of all steps, each segment's
 * increasing), then a[], b[] and places[] (zeros of categories) of all features of axes, and a factor of each pair.
 */
#ifndef BOLTDP_FEATURE_MAP_H
#define BOLTDP_FEATURE_MAP_H

#include <stddef.h>
#include <stdint.h>

enum segment_kind { SEGMENT_NUMBERS, SEGMENT_CATEGORY, SEGMENT_STEPS, SEGMENT_CONSTANT, SEGMENT_PAIR, SEGMENT_KINDS };
enum axis_kind { AXIS_STEPS, AXIS_CATEGORY, AXIS_KINDS };

/* How many axes a map may have: their levels are kept beside the row. */
#define FEATURE_MAP_MAX_AXES 256

struct feature_segment {
    uint64_t kind; /* enum segment_kind */
    uint64_t count;
};

struct feature_axis {
    uint64_t kind;   /* enum axis_kind */
    uint64_t cell;   /* which cell of a row it reads */
    uint64_t count;  /* features */
    uint64_t levels; /* of AXIS_STEPS count + 1, of AXIS_CATEGORY count or count + 1 */
    uint64_t first;  /* where its features are among those of all axes */
};

struct feature_pair {
    uint64_t first, second; /* axes */
};

struct feature_map {
    uint64_t bytes;    /* of the whole block */
    uint64_t cells;    /* of a row, without its label */
    uint64_t dims;     /* features */
    uint64_t dense;    /* numbers and constants */
    uint64_t slots;    /* dense ones and those of groups */
    uint64_t groups;   /* categories, steps and pairs */
    uint64_t segments;
    double label_center;
    double label_factor; /* > 0 */
    uint64_t row_weights; /* 1 if rows have weights, else 0 */
    uint64_t downweights; /* 1 if long rows are downweighted, 0 if they are shortened */
    uint64_t axes;
    uint64_t pairs;
    uint64_t axis_dims; /* features of all axes */
    struct feature_segment parts[];
};

static inline const struct feature_axis *feature_map_axes(const struct feature_map *r)
{
    return (const struct feature_axis *) (const void *) (r->parts + r->segments);
}

static inline const struct feature_pair *feature_map_pairs(const struct feature_map *r)
{
    return (const struct feature_pair *) (const void *) (feature_map_axes(r) + r->axes);
}

static inline const double *feature_map_a(const struct feature_map *r)
{
    return (const double *) (const void *) (feature_map_pairs(r) + r->pairs);
}

static inline const double *feature_map_b(const struct feature_map *r)
{
    return feature_map_a(r) + r->dims;
}

static inline const double *feature_map_squares(const struct feature_map *r)
{
    return feature_map_b(r) + r->dims;
}

static inline const double *feature_map_units(const struct feature_map *r)
{
    return feature_map_squares(r) + (r->slots - r->dense);
}

static inline const double *feature_map_places(const struct feature_map *r)
{
    return feature_map_units(r) + (r->slots - r->dense);
}

/* The a of the features of axes, which are the last arrays but the factors of pairs. */
static inline const double *feature_map_axis_a(const struct feature_map *r)
{
    return (const double *) (const void *) ((const char *) r + r->bytes) - r->pairs - 3 * r->axis_dims;
}

static inline const double *feature_map_axis_b(const struct feature_map *r)
{
    return feature_map_axis_a(r) + r->axis_dims;
}

static inline const double *feature_map_axis_places(const struct feature_map *r)
{
    return feature_map_axis_b(r) + r->axis_dims;
}

static inline const double *feature_map_factors(const struct feature_map *r)
{
    return feature_map_axis_places(r) + r->axis_dims;
}

/* The feature map at the end of a block, or NULL if it has none. */
static inline const struct feature_map *feature_map_at_end(const void *block, uint64_t bytes, uint64_t map_bytes)
{
    return map_bytes == 0 ? NULL : (const void *) ((const char *) block + (bytes - map_bytes));
}

/* Slots of rows that are read by a map, or without one, NULL. */
static inline uint64_t feature_map_slots(const struct feature_map *r, uint64_t cells)
{
    return r == NULL ? cells : r->slots;
}

/* Dense slots of rows that are read by a map, or without one, NULL. */
static inline uint64_t feature_map_dense(const struct feature_map *r, uint64_t cells)
{
    return r == NULL ? cells : r->dense;
}

/* Whether all cells are numbers, which are the first features, and all others are constants. */
static inline int feature_map_has_only_numbers(const struct feature_map *r)
{
    return r->parts[0].kind == SEGMENT_NUMBERS && r->parts[0].count == r->cells && r->groups == 0;
}

/* The weight of a row, from 0 to 1; 0 where it is missing, 1 where rows have none or are read without a map, NULL. */
static inline double feature_map_row_weight(const struct feature_map *r, const float *cells)
{
    const double weight = r == NULL || r->row_weights == 0 ? 1.0 : 0.5 + 0.5 * (double) cells[r->cells - 1];
    return weight >= 0.0 && weight <= 1.0 ? weight : 0.0;
}

/* Whether a block can be followed; `numbers` of it may still be anything. */
int feature_map_check(const void *map, size_t bytes);

/* Whether all numbers of a sound block are finite. */
int feature_map_is_finite(const struct feature_map *map);

/* The features of packed rows, in double; `out` has n_rows * (1 + dims) numbers, the label first. */
void feature_map_features(const struct feature_map *map, const float *rows, size_t n_rows, double *out);

/*
 * <w, x> / max(1, ||x||), or <w, x> where long rows are downweighted, for each packed row and each of `vectors` vectors
 * of weights of slots, into out[n_rows * vectors]; and min(1, ||x||) of each row into `norms`, unless it is NULL. The
 * feature map may be NULL, if every cell is a feature. `room` has as many numbers as there are dense slots, and half as
 * many as there are groups, rounded up.
 */
void feature_map_scores(const struct feature_map *map, uint64_t cells, const float *rows, size_t n_rows,
                    const double *weights, size_t vectors, double *room, double *out, double *norms);

/*
 * The same of sparse rows (sparse_rows.h), with the same bits, if they fit the map; else SGD_CORRUPT. `room` has twice
 * as many numbers as there are features.
 */
struct sparse_rows;
int feature_map_sparse_scores(const struct feature_map *map, const struct sparse_rows *rows, const double *weights,
                              size_t vectors, double *room, double *out, double *norms);

/* ---- inside the loops --------------------------------------------------------------------------------------- */

typedef double vec4 __attribute__((vector_size(32), aligned(8), may_alias));
typedef int64_t mask4 __attribute__((vector_size(32), aligned(8), may_alias)); /* lanes of all ones or all zeros */

#define CHOOSE(mask, yes, no) ((vec4) (((mask) & (mask4) (yes)) | (~(mask) & (mask4) (no))))

/* Numbers with zeros up to whole groups of four. */
static inline uint64_t pad_count(uint64_t count)
{
    return (count + 3) / 4 * 4;
}

/* Four numbers: (cells - a) * b, or 0 where that is no number. */
static inline __attribute__((always_inline)) void read_four(vec4 *out, const float *cells, const double *a,
                                                            const double *b)
{
    const vec4 cell = {cells[0], cells[1], cells[2], cells[3]};
    const vec4 four = (cell - *(const vec4 *) a) * *(const vec4 *) b;
    *out = (vec4) ((mask4) four & (four == four));
}

static inline __attribute__((always_inline)) double read_one(float cell, double a, double b)
{
    const double one = ((double) cell - a) * b;
    return one == one ? one : 0.0;
}

static inline __attribute__((always_inline)) void read_numbers(double *x, const float *cells, const double *a,
                                                               const double *b, size_t count)
{
    size_t i = 0;
    for (; i + 4 <= count; i += 4)
        read_four((vec4 *) (x + i), cells + i, a + i, b + i);
    for (; i < count; i++)
        x[i] = read_one(cells[i], a[i], b[i]);
}

/* Which of its slots a category's cell has. */
static inline size_t read_category(float cell, size_t count)
{
    return cell >= 0.0f && cell < (float) count ? 1 + (size_t) cell : 0;
}

/* Which of their slots steps have, by the cell of their number. */
static inline __attribute__((always_inline)) size_t read_steps(float cell, const double *places, size_t count)
{
    const double number = cell;
    size_t value = number == number;
    for (size_t i = 0; i < count; i++)
        value += number >= places[i];
    return value;
}

/* The level of each axis, from 1; 0 where it is missing. */
static inline __attribute__((always_inline)) void read_axes(const struct feature_map *r, const float *cells,
                                                            uint32_t *levels)
{
    const double *places = feature_map_axis_places(r);
    for (uint64_t i = 0; i < r->axes; i++) {
        const struct feature_axis *axis = feature_map_axes(r) + i;
        const float cell = cells[axis->cell];
        levels[i] = (uint32_t) (axis->kind == AXIS_STEPS ? read_steps(cell, places + axis->first, axis->count)
                                                         : read_category(cell, axis->levels));
    }
}

/* Feature i of an axis at a level that is not 0. */
static inline double axis_feature(const struct feature_map *r, const struct feature_axis *axis, size_t level, size_t i)
{
    const int present = axis->kind == AXIS_STEPS ? i + 1 < level : i + 1 == level;
    return (present ? feature_map_axis_b(r) : feature_map_axis_a(r))[axis->first + i];
}

/* The features of pair `p`, by the levels of all axes. */
static inline void read_pair(const struct feature_map *r, uint64_t p, const uint32_t *levels, double *x)
{
    const struct feature_pair *pair = feature_map_pairs(r) + p;
    const struct feature_axis *first = feature_map_axes(r) + pair->first, *second = feature_map_axes(r) + pair->second;
    const uint32_t row = levels[pair->first], column = levels[pair->second];
    const double factor = feature_map_factors(r)[p];
    for (size_t i = 0; i < first->count; i++) {
        const double multiple = row > 0 && column > 0 ? factor * axis_feature(r, first, row, i) : 0.0;
        for (size_t j = 0; j < second->count; j++)
            *x++ = column > 0 ? multiple * axis_feature(r, second, column, j) : 0.0;
    }
}

/* Which of its slots pair `p` has, by the levels of all axes; `count` becomes how many it has. */
static inline size_t read_pair_slot(const struct feature_map *r, uint64_t p, const uint32_t *levels, size_t *count)
{
    const struct feature_pair *pair = feature_map_pairs(r) + p;
    const struct feature_axis *axes = feature_map_axes(r);
    const size_t row = levels[pair->first], column = levels[pair->second], wide = axes[pair->second].levels;
    *count = 1 + axes[pair->first].levels * wide;
    return row > 0 && column > 0 ? 1 + (row - 1) * wide + (column - 1) : 0;
}

/* The features of a row. */
static inline __attribute__((always_inline)) void read_features(const struct feature_map *r, const float *cells, double *x)
{
    const double *a = feature_map_a(r), *b = feature_map_b(r), *places = feature_map_places(r);
    uint32_t levels[FEATURE_MAP_MAX_AXES];
    uint64_t pair = 0;
    read_axes(r, cells, levels);
    for (uint64_t s = 0; s < r->segments; s++) {
        const struct feature_segment *part = r->parts + s;
        const size_t count = part->count;
        if (part->kind == SEGMENT_NUMBERS) {
            read_numbers(x, cells, a, b, count);
            cells += count;
        } else if (part->kind == SEGMENT_CONSTANT) {
            for (size_t i = 0; i < count; i++)
                x[i] = a[i];
        } else if (part->kind == SEGMENT_CATEGORY) {
            const size_t value = read_category(*cells++, count);
            for (size_t i = 0; i < count; i++)
                x[i] = a[i];
            if (value > 0)
                x[value - 1] = b[value - 1];
        } else if (part->kind == SEGMENT_PAIR) {
            read_pair(r, pair++, levels, x);
        } else {
            const size_t value = read_steps(cells[-1], places, count);
            for (size_t i = 0; i < count; i++)
                x[i] = value == 0 ? 0.0 : i + 1 < value ? b[i] : a[i];
            places += count;
        }
        a += count;
        b += count;
        x += count;
    }
}

/*
 * The dense features of a row, and of each group the slot that it has, counted from the first slot of groups; returns
 * the sum of the squares of all features.
 */
static inline __attribute__((always_inline)) double read_slots(const struct feature_map *r, const float *cells, double *x,
                                                               uint32_t *active)
{
    const double *a = feature_map_a(r), *b = feature_map_b(r), *squares = feature_map_squares(r);
    const double *places = feature_map_places(r);
    vec4 lanes = {0};
    double square = 0.0;
    uint32_t levels[FEATURE_MAP_MAX_AXES];
    uint64_t first = 0, pair = 0;
    read_axes(r, cells, levels);
    for (const struct feature_segment *part = r->parts, *end = part + r->segments; part < end; part++) {
        const size_t count = part->count;
        if (part->kind == SEGMENT_NUMBERS) {
            size_t i = 0;
            for (; i + 4 <= count; i += 4) {
                vec4 four;
                read_four(&four, cells + i, a + i, b + i);
                *(vec4 *) (x + i) = four;
                lanes += four * four;
            }
            for (; i < count; i++) {
                x[i] = read_one(cells[i], a[i], b[i]);
                square += x[i] * x[i];
            }
            cells += count;
            x += count;
        } else if (part->kind == SEGMENT_CONSTANT) {
            for (size_t i = 0; i < count; i++) {
                *x++ = a[i];
                square += a[i] * a[i];
            }
        } else {
            uint64_t slot;
            if (part->kind == SEGMENT_CATEGORY) {
                slot = first + read_category(*cells++, count);
                first += count + 1;
            } else if (part->kind == SEGMENT_PAIR) {
                size_t own;
                slot = first + read_pair_slot(r, pair++, levels, &own);
                first += own;
            } else {
                slot = first + read_steps(cells[-1], places, count);
                first += count + 2;
                places += count;
            }
            square += squares[slot];
            *active++ = (uint32_t) slot;
        }
        a += count;
        b += count;
    }
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + square;
}

#endif
