/* unusable_label_count.c: see unusable_label_count.h. */
#include "unusable_label_count.h"

#include <string.h>

#include "losses.h"

uint64_t unusable_label_count_bytes(uint64_t cells, uint64_t classes, const void *map)
{
    if (!sum_cells_fit(cells, NULL) || classes > SGD_MAX_CLASSES || map != NULL)
        return 0;
    return sizeof(struct unusable_label_count_state) + sizeof(float) * (cells + cells % 2);
}

static int is_sound(const void *state, const struct feature_map *map)
{
    const struct unusable_label_count_state *s = state;
    return s->skip_neutral <= 1 && s->count <= s->sum.summed &&
           unusable_label_count_bytes(s->sum.cells, s->classes, map) == s->sum.bytes;
}

int unusable_label_count_init(void *state, size_t bytes, uint64_t cells, uint64_t classes, const void *map,
                              const float *neutral)
{
    struct unusable_label_count_state *s = state;
    const uint64_t needed = unusable_label_count_bytes(cells, classes, map);
    const int code = sum_init(state, bytes, needed, &unusable_label_count_kind, cells, NULL);
    if (code != SGD_OK)
        return code;
    s->classes = classes;
    s->skip_neutral = neutral != NULL;
    if (neutral != NULL)
        memcpy(s->neutral, neutral, cells * sizeof *neutral);
    return SGD_OK;
}

/* Whether a row has the cells of a neutral one. */
static int is_neutral(const struct unusable_label_count_state *s, const float *cells)
{
    for (uint64_t i = 0; i < s->sum.cells; i++)
        if (cells[i] != s->neutral[i] && (cells[i] == cells[i] || s->neutral[i] == s->neutral[i]))
            return 0;
    return 1;
}

static int is_unusable(const struct unusable_label_count_state *s, float label)
{
    return !(s->classes == 0 ? label_is_number(label) : label_is_class(label, (double) s->classes));
}

INLINE void scan(struct unusable_label_count_state *s, const float *rows, size_t n_rows, int wide)
{
    (void) wide;
    for (size_t i = 0; i < n_rows; i++, rows += 1 + s->sum.cells)
        if (is_unusable(s, rows[0]) && !(s->skip_neutral && is_neutral(s, rows + 1)))
            s->count++;
    s->sum.summed += n_rows;
}

static size_t sums_end(const void *state)
{
    (void) state;
    return offsetof(struct unusable_label_count_state, neutral);
}

DEFINE_KIND(unusable_label_count, UINT64_C(0x3162616c746c6f62) /* "boltlab1" */, UINT64_C(1) << 62,
            offsetof(struct unusable_label_count_state, count), sum_join_counts);

int unusable_label_count_add_labels(void *state, size_t bytes, const float *labels, size_t n)
{
    struct unusable_label_count_state *s = state;
    const int code = sum_check(state, bytes);
    if (code != SGD_OK)
        return code;
    if (s->sum.magic != unusable_label_count_kind.magic || s->skip_neutral)
        return SGD_BAD_RECIPE;
    if (n > unusable_label_count_kind.max_rows - s->sum.summed)
        return SGD_FINISHED;
    for (size_t i = 0; i < n; i++)
        s->count += (uint64_t) is_unusable(s, labels[i]);
    s->sum.summed += n;
    return SGD_OK;
}
