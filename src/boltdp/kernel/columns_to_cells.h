/*
 * columns_to_cells.h: from the values of columns to the cells of packed rows (feature_map.h), by a plan made of the schema.
 *
 * A plan is compiled by encoding/compiled_plan.py. It is words of 8 bytes, numbers being int64 or double:
 *
 *     PLAN_MAGIC, the number of columns, and for each column, the label first,
 *         COLUMN_CLASS, COLUMN_CATEGORY   how values are matched, the number of entries, and for each its code and its
 *                                         number, or its length and its text (UTF-8, zeros up to a word)
 *         COLUMN_NUMBER                   low, high
 *         COLUMN_VECTOR                   low, high, the length
 *     then the bytes of the feature map by which rows are projected, or 0; and if so, the feature map, the number of
 *     features that come of it, and the matrix.
 *
 * A class or category is the code of the entry that its value matches; without one, a class is NaN and a category -1.
 * A number is scaled from its bounds to [-1, 1], and NaN if it is missing. A vector is `length` numbers. Nothing about a
 * value can fail.
 */
#ifndef BOLTDP_COLUMNS_TO_CELLS_H
#define BOLTDP_COLUMNS_TO_CELLS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "feature_map.h"

enum column_kind { COLUMN_CLASS, COLUMN_CATEGORY, COLUMN_NUMBER, COLUMN_VECTOR, COLUMN_KINDS };
enum column_match { MATCH_TEXT, MATCH_INTEGER, MATCH_FLOAT, MATCHES };

/* What a value may match. */
struct encoding_entry {
    uint64_t key;     /* the bits of a number, or the hash of a text */
    const char *text; /* NULL but for texts */
    uint64_t length;
    int32_t code;     /* -1 at empty places of a table */
};

/* The entries of a column, and once encoding_fill() has made it, the table in which they are found. */
struct encoding_lookup {
    uint64_t match; /* enum column_match */
    uint64_t count;
    struct encoding_entry *entries; /* as declared: the first of equal ones counts */
    uint64_t longest;               /* text */
    const int32_t *codes;           /* of `span` whole numbers from `base` on; NULL if they are too far apart */
    uint64_t base, span;
    struct encoding_entry *places;  /* else a hash table with at least as many empty places as entries */
    uint64_t mask;
};

struct encoding_column {
    uint64_t kind;                  /* enum column_kind */
    uint64_t at;                    /* where its cells stand in a row */
    double low, high, middle, half; /* of the bounds, half of their width */
    uint64_t length;                /* numbers of a vector */
    struct encoding_lookup lookup;
};

/* Whether it is a class or category, else numbers. */
static inline int encoding_is_matched(const struct encoding_column *column)
{
    return column->kind == COLUMN_CLASS || column->kind == COLUMN_CATEGORY;
}

struct encoding_plan {
    uint64_t n_columns;
    struct encoding_column *columns;
    uint64_t width;                /* of an encoded row, with its label */
    const struct feature_map *map; /* NULL without a projection */
    const double *matrix;
    uint64_t projected;            /* features that come of it */
};

/* Zeroed memory that is aligned to 8 bytes and lives as long as the plan, or NULL. */
typedef void *encoding_allocate(size_t bytes);

/* Read a plan, whose words must be aligned and outlive it, then fill its lookups; the result is an enum sgd_error. */
int encoding_open(struct encoding_plan *plan, const void *words, size_t bytes, encoding_allocate *allocate);
int encoding_fill(struct encoding_plan *plan, encoding_allocate *allocate);

/* The code of what a text or a key matches, -1 if there is nothing. The key of an integer is its bits. */
int32_t encoding_find(const struct encoding_lookup *lookup, uint64_t key);
int32_t encoding_find_text(const struct encoding_lookup *lookup, const char *text, size_t length);
uint64_t encoding_float_key(double number);

/* The cell of a code. */
static inline float encoding_code_cell(const struct encoding_column *c, int32_t code)
{
    return code < 0 && c->kind == COLUMN_CLASS ? NAN : (float) code;
}

/* The cell of a number, by its bounds, their middle and half their width. All NaNs become the same one. */
static inline float encoding_number_cell(double x, double low, double high, double middle, double half)
{
    float cell;
    x = x < low ? low : x;
    x = x > high ? high : x;
    cell = (float) ((x - middle) / half);
    /* The middle of bounds that have no number between them is one of them. */
    cell = cell < -1.0f ? -1.0f : cell;
    cell = cell > 1.0f ? 1.0f : cell;
    return cell == cell ? cell : NAN;
}

/* The cells of n numbers of a column. */
void encoding_scale(const struct encoding_column *column, const double *numbers, size_t n, float *cells);

/* The values of a column in memory, in the layout of Arrow. */
enum value_type {
    VALUE_INT8,
    VALUE_INT16,
    VALUE_INT32,
    VALUE_INT64,
    VALUE_UINT8,
    VALUE_UINT16,
    VALUE_UINT32,
    VALUE_UINT64,
    VALUE_FLOAT32,
    VALUE_FLOAT64,
    VALUE_BOOL, /* bits, the lowest of a byte first */
    VALUE_TEXT
};

struct encoding_values {
    uint64_t type;           /* enum value_type */
    const void *values;      /* of texts their bytes */
    const int32_t *ends;     /* of texts only: where each begins and the one before ends */
    const uint8_t *validity; /* bits; NULL if all are valid, as those of vectors must be */
    uint64_t offset;         /* of the first row: the number of rows before it in values, ends and validity */
    const int32_t *codes;    /* of a dictionary: values are indices of these `count` codes. NULL without one */
    uint64_t count;
};

/* Encode n rows, whose columns have types that the plan is for; else the result is SGD_BAD_ELEMENT. */
int encoding_pack(const struct encoding_plan *plan, const struct encoding_values *values, size_t n, float *out);

/* Rows that are best projected at once, and the numbers of scratch memory that this takes. */
#define PROJECTED_ROWS 32
size_t encoding_scratch(const struct encoding_plan *plan);

/* Project n encoded rows, if the plan has a projection. */
void encoding_project(const struct encoding_plan *plan, const float *rows, size_t n, double *scratch, float *out);

#endif
