/*
 * sum_state.h: sums over all rows, each one flat state that any engine can carry: derivatives of the loss
 * (loss_derivatives.h), errors of models (misclassification.h, number_errors.h), sums of features (feature_sums.h), rows
 * without a usable label (unusable_label_count.h) and labels that are numbers (label_histogram.h).
 *
 * Rows are packed float32 as in sgd.h. Sums are exact: rows may come in any order, in blocks of any length, and be
 * added to several states that are joined. A state is as sensitive as the rows.
 */
#ifndef BOLTDP_SUM_STATE_H
#define BOLTDP_SUM_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "feature_map.h"
#include "sgd.h"

/* What every state begins with. */
struct sum_state {
    uint64_t magic;     /* that of its kind */
    uint64_t bytes;     /* length of the whole block */
    uint64_t cells;     /* of a row: 1 .. SGD_MAX_DIMS */
    uint64_t map_bytes; /* bytes of the feature map, which is at the end; 0: none */
    uint64_t summed;    /* rows */
};

/* Everything that can be wrong with a block that claims to be a state. */
int sum_check(const void *state, size_t bytes);

/* Add packed float32 rows. */
int sum_add(void *state, size_t bytes, const float *rows, size_t n_rows, int build);

/* Add what another state of the same sum has: SGD_BAD_RECIPE if it is of another. */
int sum_join(void *state, size_t bytes, const void *other);

/* ---- for the kinds of sums ---------------------------------------------------------------------------------- */

/* What the functions above ask about the states of a kind. */
struct sum_kind {
    uint64_t magic;
    uint64_t max_rows;
    size_t header_bytes; /* of a state, before its arrays */
    size_t sums_at;      /* where in a state its sums begin, and */
    size_t (*sums_end)(const void *state);
    int (*is_sound)(const void *state, const struct feature_map *map); /* its own fields, and its length */
    void (*scan_portable)(void *state, const float *rows, size_t n_rows);
    void (*scan_avx2)(void *state, const float *rows, size_t n_rows);
    void (*join)(void *state, const void *other); /* the sums of a state with the same header, arrays and map */
};

extern const struct sum_kind derivatives_kind, misclassification_kind, number_errors_kind, feature_sums_kind,
    unusable_label_count_kind, label_histogram_kind;

/* Write what every state begins with, its feature map and zeros in between. `needed` is the length that it must have. */
int sum_init(void *state, size_t bytes, uint64_t needed, const struct sum_kind *kind, uint64_t cells,
             const struct feature_map *map);

/* The `join` of kinds whose sums are all whole numbers of 64 bits. */
void sum_join_counts(void *state, const void *other);

/* Whether rows of this many cells can be read by the map, or without one, NULL. */
static inline int sum_cells_fit(uint64_t cells, const struct feature_map *map)
{
    return cells >= 1 && cells <= SGD_MAX_DIMS && (map == NULL || map->cells == cells);
}

/* The feature map of a sound state, or NULL. */
static inline const struct feature_map *sum_map(const struct sum_state *s)
{
    return feature_map_at_end(s, s->bytes, s->map_bytes);
}

#define INLINE static inline __attribute__((always_inline))

/*
 * The kind of a file, by its functions sums_end, is_sound and `scan(state, rows, n_rows, wide)`: `wide`, known when it is
 * compiled, says that registers have four numbers. A magic is text in memory on a little-endian machine.
 */
#if defined(__x86_64__)
#define DEFINE_SCAN_AVX2                                                                             \
    __attribute__((target("avx2"))) static void scan_avx2(void *state, const float *rows, size_t n) \
    {                                                                                                \
        scan(state, rows, n, 1);                                                                     \
    }
#else
#define DEFINE_SCAN_AVX2
#define scan_avx2 NULL
#endif

#define DEFINE_KIND(name, its_magic, most_rows, first_sum, join_sums)   \
    static void scan_portable(void *state, const float *rows, size_t n) \
    {                                                                   \
        scan(state, rows, n, 0);                                        \
    }                                                                   \
    DEFINE_SCAN_AVX2                                                    \
    const struct sum_kind name##_kind = {                               \
        .magic = its_magic,                                             \
        .max_rows = most_rows,                                          \
        .header_bytes = sizeof(struct name##_state),                    \
        .sums_at = first_sum,                                           \
        .sums_end = sums_end,                                           \
        .is_sound = is_sound,                                           \
        .scan_portable = scan_portable,                                 \
        .scan_avx2 = scan_avx2,                                         \
        .join = join_sums,                                              \
    }

#endif
