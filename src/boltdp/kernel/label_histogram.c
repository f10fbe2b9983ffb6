/* label_histogram.c: see label_histogram.h. */
#include "label_histogram.h"

#include "losses.h"

uint64_t label_histogram_bytes(uint64_t cells, uint64_t bins, const void *map)
{
    if (!sum_cells_fit(cells, NULL) || bins < 2 || bins > LABEL_HISTOGRAM_MAX_BINS || (bins & (bins - 1)) != 0 ||
        map != NULL)
        return 0;
    return sizeof(struct label_histogram_state) + sizeof(uint64_t) * bins;
}

static int is_sound(const void *state, const struct feature_map *map)
{
    const struct label_histogram_state *s = state;
    return label_histogram_bytes(s->sum.cells, s->bins, map) == s->sum.bytes;
}

int label_histogram_init(void *state, size_t bytes, uint64_t cells, uint64_t bins, const void *map)
{
    const uint64_t needed = label_histogram_bytes(cells, bins, map);
    const int code = sum_init(state, bytes, needed, &label_histogram_kind, cells, NULL);
    if (code == SGD_OK)
        ((struct label_histogram_state *) state)->bins = bins;
    return code;
}

INLINE void scan(struct label_histogram_state *s, const float *rows, size_t n_rows, int wide)
{
    (void) wide;
    const int64_t half = (int64_t) s->bins / 2;
    for (size_t i = 0; i < n_rows; i++, rows += 1 + s->sum.cells) {
        if (!label_is_number(rows[0]))
            continue;
        /* The product is exact, and so is its floor: a cast rounds towards zero. */
        const double place = (double) rows[0] * (double) half;
        const int64_t whole = (int64_t) place, bin = half + whole - (place < (double) whole);
        s->counts[bin < 2 * half ? bin : 2 * half - 1]++;
    }
    s->sum.summed += n_rows;
}

static size_t sums_end(const void *state)
{
    return ((const struct sum_state *) state)->bytes;
}

DEFINE_KIND(label_histogram, UINT64_C(0x31736968746c6f62) /* "bolthis1" */, UINT64_C(1) << 62,
            offsetof(struct label_histogram_state, counts), sum_join_counts);
