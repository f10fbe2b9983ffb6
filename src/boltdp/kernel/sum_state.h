/*
 * sum_state.h: what the states of sums over rows share: feature sums, derivatives of the loss, errors. Each begins with
 * fields of its own, has its feature map at the end, if there is one, and says how many bytes both have.
 */
#ifndef BOLTDP_SUM_STATE_H
#define BOLTDP_SUM_STATE_H

#include <string.h>

#include "feature_map.h"
#include "sgd.h"

#define INLINE static inline __attribute__((always_inline))

/* The feature map of a sound state, or NULL. */
#define MAP_OF(s) feature_map_at_end(s, (s)->bytes, (s)->map_bytes)

/* Keep the feature map at the end of a new state. */
static inline void sum_state_put_map(void *state, size_t bytes, const struct feature_map *map, uint64_t *map_bytes)
{
    if (map != NULL) {
        *map_bytes = map->bytes;
        memcpy((char *) state + (bytes - map->bytes), map, map->bytes);
    }
}

/*
 * PREFIX_add, by `scan(state, rows, n_rows, wide)` of the file, compiled for each instruction set; `wide`, known when it is
 * compiled, says that registers have four numbers. ROWS_LEFT(state) more rows can be added.
 */
#if defined(__x86_64__)
#define SCAN_WIDE(PREFIX)                                                                                        \
    __attribute__((target("avx2"))) static void scan_avx2(struct PREFIX##_state *s, const float *rows, size_t n) \
    {                                                                                                            \
        scan(s, rows, n, 1);                                                                                     \
    }
#define RUN_WIDE(build, state, rows, n) \
    ((build) != SGD_PORTABLE && sgd_has_build(SGD_AVX2) ? (scan_avx2(state, rows, n), 1) : 0)
#else
#define SCAN_WIDE(PREFIX)
#define RUN_WIDE(build, state, rows, n) 0
#endif

#define DEFINE_ADD(PREFIX, ROWS_LEFT)                                                            \
    static void scan_portable(struct PREFIX##_state *s, const float *rows, size_t n)             \
    {                                                                                            \
        scan(s, rows, n, 0);                                                                     \
    }                                                                                            \
    SCAN_WIDE(PREFIX)                                                                            \
    int PREFIX##_add(void *state, size_t bytes, const float *rows, size_t n_rows, int build)     \
    {                                                                                            \
        const int code = PREFIX##_check(state, bytes);                                           \
        if (code != SGD_OK)                                                                      \
            return code;                                                                         \
        if (!sgd_has_build(build))                                                               \
            return SGD_BAD_BUILD;                                                                \
        if ((uintptr_t) rows % sizeof(float) != 0)                                               \
            return SGD_UNALIGNED;                                                                \
        if (n_rows > ROWS_LEFT((const struct PREFIX##_state *) state))                           \
            return SGD_FINISHED;                                                                 \
        if (!RUN_WIDE(build, state, rows, n_rows))                                               \
            scan_portable(state, rows, n_rows);                                                  \
        return SGD_OK;                                                                           \
    }

#endif
