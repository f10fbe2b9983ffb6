/*
 * sparse_rows.h: packed rows most of whose cells are 0, as the cells that are not.
 *
 * Row i has labels[i], and cells[k] at places[k] for each k from starts[i] up to starts[i + 1]; all its other cells are
 * 0. The feature map that reads them has only numbers and constants, and every `a` of its numbers is 0: the feature of
 * such a cell is 0 too. Whatever is computed then adds the same numbers in the same order as from the rows in full, but
 * for zeros, and has the same bits.
 */
#ifndef BOLTDP_SPARSE_ROWS_H
#define BOLTDP_SPARSE_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "feature_map.h"

struct sparse_rows {
    const float *labels;
    const int64_t *starts; /* one more than there are rows */
    const int32_t *places;
    const float *cells;
    uint64_t rows;
    uint64_t stored; /* places and cells */
};

/* Whether a map reads rows of numbers alone, and the places of each row are ascending, and those of its cells. */
static inline int sparse_rows_fit(const struct sparse_rows *rows, const struct feature_map *r)
{
    if (r == NULL || !feature_map_has_only_numbers(r))
        return 0;
    for (uint64_t i = 0; i < rows->rows; i++) {
        const int64_t start = rows->starts[i], stop = rows->starts[i + 1];
        if (start < 0 || start > stop || (uint64_t) stop > rows->stored)
            return 0;
        int64_t last = -1;
        for (int64_t k = start; k < stop; k++) {
            if (rows->places[k] <= last || (uint64_t) rows->places[k] >= r->cells)
                return 0;
            last = rows->places[k];
        }
    }
    return 1;
}

/* The features of row i that may be other than 0, and where they are among all: the result is how many. */
static inline size_t sparse_rows_features(const struct sparse_rows *rows, const struct feature_map *r, uint64_t i,
                                          double *x, uint32_t *places)
{
    const double *a = feature_map_a(r), *b = feature_map_b(r);
    size_t count = 0;
    for (int64_t k = rows->starts[i]; k < rows->starts[i + 1]; k++, count++) {
        places[count] = (uint32_t) rows->places[k];
        x[count] = read_one(rows->cells[k], a[places[count]], b[places[count]]);
    }
    for (uint64_t constant = r->cells; constant < r->dims; constant++, count++) {
        places[count] = (uint32_t) constant;
        x[count] = a[constant];
    }
    return count;
}

#endif
