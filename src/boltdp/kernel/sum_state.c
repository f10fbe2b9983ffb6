/* sum_state.c: what all kinds of sums have in common. */
#include "sum_state.h"

#include <string.h>

static const struct sum_kind *const KINDS[] = {&derivatives_kind, &misclassification_kind, &number_errors_kind,
                                               &feature_sums_kind, &unusable_label_count_kind, &label_histogram_kind};

/* The kind of a state, or NULL if its magic is that of none. */
static const struct sum_kind *kind_of(const struct sum_state *s)
{
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (KINDS[i]->magic == s->magic)
            return KINDS[i];
    return NULL;
}

void sum_join_counts(void *state, const void *other)
{
    const struct sum_kind *kind = kind_of(state);
    uint64_t *sums = state;
    const uint64_t *others = other;
    for (size_t i = kind->sums_at / sizeof *sums; i < kind->sums_end(state) / sizeof *sums; i++)
        sums[i] += others[i];
}

int sum_init(void *state, size_t bytes, uint64_t needed, const struct sum_kind *kind, uint64_t cells,
             const struct feature_map *map)
{
    struct sum_state *s = state;
    if (bytes == 0 || bytes != needed)
        return SGD_BAD_RECIPE;
    if ((uintptr_t) state % sizeof(double) != 0)
        return SGD_UNALIGNED;
    memset(s, 0, bytes);
    s->magic = kind->magic;
    s->bytes = bytes;
    s->cells = cells;
    if (map != NULL) {
        s->map_bytes = map->bytes;
        memcpy((char *) state + (bytes - map->bytes), map, map->bytes);
    }
    return SGD_OK;
}

int sum_check(const void *state, size_t bytes)
{
    const struct sum_state *s = state;
    if ((uintptr_t) state % sizeof(double) != 0)
        return SGD_UNALIGNED;
    const struct sum_kind *kind = bytes < sizeof *s ? NULL : kind_of(s);
    if (kind == NULL || bytes < kind->header_bytes || s->bytes != bytes || s->map_bytes > bytes - kind->header_bytes ||
        s->map_bytes % sizeof(double) != 0 || s->summed > kind->max_rows)
        return SGD_CORRUPT;
    const struct feature_map *map = sum_map(s);
    if ((map != NULL && feature_map_check(map, s->map_bytes) != SGD_OK) || !sum_cells_fit(s->cells, map))
        return SGD_CORRUPT;
    return kind->is_sound(state, map) ? SGD_OK : SGD_CORRUPT;
}

int sum_add(void *state, size_t bytes, const float *rows, size_t n_rows, int build)
{
    const struct sum_state *s = state;
    const int code = sum_check(state, bytes);
    if (code != SGD_OK)
        return code;
    if (!sgd_has_build(build))
        return SGD_BAD_BUILD;
    if ((uintptr_t) rows % sizeof(float) != 0)
        return SGD_UNALIGNED;
    const struct sum_kind *kind = kind_of(s);
    if (n_rows > kind->max_rows - s->summed)
        return SGD_FINISHED;
    (build != SGD_PORTABLE && sgd_has_build(SGD_AVX2) ? kind->scan_avx2 : kind->scan_portable)(state, rows, n_rows);
    return SGD_OK;
}

/* Whether two blocks have the same bytes from `first` up to `last`. */
static int are_alike(const void *one, const void *other, size_t first, size_t last)
{
    return memcmp((const char *) one + first, (const char *) other + first, last - first) == 0;
}

int sum_join(void *state, size_t bytes, const void *other)
{
    struct sum_state *s = state;
    const struct sum_state *o = other;
    int code = sum_check(state, bytes);
    if (code == SGD_OK)
        code = sum_check(other, bytes);
    if (code != SGD_OK)
        return code;
    const struct sum_kind *kind = kind_of(s);
    if (!are_alike(s, o, 0, offsetof(struct sum_state, summed)) || !are_alike(s, o, sizeof *s, kind->sums_at) ||
        !are_alike(s, o, kind->sums_end(s), bytes))
        return SGD_BAD_RECIPE;
    if (o->summed > kind->max_rows - s->summed)
        return SGD_FINISHED;
    kind->join(s, o);
    s->summed += o->summed;
    return SGD_OK;
}
