/* columns_to_cells.c: see columns_to_cells.h. */
#include "columns_to_cells.h"

#include <string.h>

#include "hash_sampling.h"
#include "row_projection.h"
#include "sgd.h"

/* ---- reading a plan ----------------------------------------------------------------------------------------- */

#define PLAN_MAGIC UINT64_C(0x326e6c70746c6f62) /* "boltpln2" in memory on a little-endian machine */
#define WORD sizeof(uint64_t)

#define INLINE static inline __attribute__((always_inline))

/* What is left of a plan. After an error nothing is left, and all that is taken is 0. */
struct cursor {
    const char *at;
    size_t left;
    int error;
    encoding_allocate *allocate;
};

static void require(struct cursor *cursor, int condition, int error)
{
    if (!condition && cursor->error == SGD_OK) {
        cursor->error = error;
        cursor->left = 0;
    }
}

static void *allocate(struct cursor *cursor, size_t count, size_t size)
{
    void *memory = cursor->allocate((count + 1) * size);
    require(cursor, memory != NULL, SGD_NO_MEMORY);
    return memory;
}

/* Bytes, up to the next word; NULL if there are fewer. */
static const void *take(struct cursor *cursor, size_t bytes)
{
    const char *taken = cursor->at;
    require(cursor, bytes <= cursor->left, SGD_CORRUPT); /* which is whole words */
    if (cursor->error != SGD_OK)
        return NULL;
    bytes = (bytes + WORD - 1) / WORD * WORD;
    cursor->at += bytes;
    cursor->left -= bytes;
    return taken;
}

static uint64_t take_word(struct cursor *cursor)
{
    const uint64_t *word = take(cursor, WORD);
    return word == NULL ? 0 : *word;
}

static uint64_t take_count(struct cursor *cursor, uint64_t least, uint64_t most)
{
    const uint64_t count = take_word(cursor);
    require(cursor, count >= least && count <= most, SGD_CORRUPT);
    return cursor->error == SGD_OK ? count : 0;
}

static double take_number(struct cursor *cursor)
{
    const uint64_t word = take_word(cursor);
    double number;
    memcpy(&number, &word, sizeof number);
    require(cursor, isfinite(number), SGD_CORRUPT);
    return number;
}

static void take_lookup(struct cursor *cursor, struct encoding_lookup *lookup)
{
    lookup->match = take_count(cursor, 0, MATCHES - 1);
    lookup->count = take_count(cursor, 0, cursor->left / (2 * WORD));
    lookup->entries = allocate(cursor, lookup->count, sizeof *lookup->entries);
    for (uint64_t i = 0; i < lookup->count && cursor->error == SGD_OK; i++) {
        struct encoding_entry *entry = lookup->entries + i;
        entry->code = (int32_t) take_count(cursor, 0, SGD_MAX_DIMS);
        if (lookup->match == MATCH_INTEGER)
            entry->key = take_word(cursor);
        else if (lookup->match == MATCH_FLOAT)
            entry->key = encoding_float_key(take_number(cursor));
        else {
            entry->length = take_count(cursor, 0, cursor->left);
            entry->text = take(cursor, entry->length);
        }
    }
}

static void take_column(struct cursor *cursor, struct encoding_plan *plan, struct encoding_column *column)
{
    column->kind = take_count(cursor, 0, COLUMN_KINDS - 1);
    column->at = plan->width++;
    /* The label is the first column and has one cell: a class or a number; no other column is a class. */
    require(cursor, column == plan->columns ? column->kind == COLUMN_CLASS || column->kind == COLUMN_NUMBER
                                            : column->kind != COLUMN_CLASS, SGD_CORRUPT);
    if (encoding_is_matched(column)) {
        take_lookup(cursor, &column->lookup);
        return;
    }
    column->low = take_number(cursor);
    column->high = take_number(cursor);
    column->middle = (column->low + column->high) / 2.0;
    column->half = (column->high - column->low) / 2.0;
    if (column->kind == COLUMN_VECTOR) {
        column->length = take_count(cursor, 1, SGD_MAX_DIMS);
        plan->width += column->length - 1;
    }
    require(cursor, column->low < column->high && plan->width <= 1 + SGD_MAX_DIMS, SGD_CORRUPT);
}

static void take_projection(struct cursor *cursor, struct encoding_plan *plan)
{
    const size_t bytes = take_count(cursor, 0, cursor->left);
    plan->map = bytes == 0 ? NULL : take(cursor, bytes);
    if (plan->map == NULL)
        return;
    require(cursor, feature_map_check(plan->map, bytes) == SGD_OK && plan->map->cells == plan->width - 1, SGD_CORRUPT);
    plan->projected = take_count(cursor, 1, SGD_MAX_DIMS);
    plan->matrix = take(cursor, plan->projected == 0 ? 0 : plan->map->dims * plan->projected * sizeof *plan->matrix);
}

int encoding_open(struct encoding_plan *plan, const void *words, size_t bytes, encoding_allocate *allocate_zeros)
{
    struct cursor cursor = {words, bytes, bytes % WORD == 0 ? SGD_OK : SGD_CORRUPT, allocate_zeros};
    memset(plan, 0, sizeof *plan);
    require(&cursor, take_word(&cursor) == PLAN_MAGIC, SGD_CORRUPT);
    plan->n_columns = take_count(&cursor, 1, cursor.left / (3 * WORD));
    plan->columns = allocate(&cursor, plan->n_columns, sizeof *plan->columns);
    for (uint64_t i = 0; i < plan->n_columns && cursor.error == SGD_OK; i++)
        take_column(&cursor, plan, plan->columns + i);
    take_projection(&cursor, plan);
    require(&cursor, cursor.left == 0, SGD_CORRUPT);
    return cursor.error;
}

/* ---- lookups ------------------------------------------------------------------------------------------------ */

/* The widest range of whole numbers whose codes are in an array. */
#define MAX_SPAN (UINT64_C(1) << 16)

/* The bits of a number by which it is found: those of 0 for both zeros. */
uint64_t encoding_float_key(double number)
{
    uint64_t key;
    number = number == 0.0 ? 0.0 : number;
    memcpy(&key, &number, sizeof key);
    return key;
}

INLINE uint64_t hash_text(const char *text, size_t length)
{
    uint64_t hash = length, word;
    for (; length >= sizeof word; length -= sizeof word, text += sizeof word) {
        memcpy(&word, text, sizeof word);
        hash = hash_mix(hash, word);
    }
    word = 0;
    for (size_t i = 0; i < length; i++)
        word = word << 8 | (unsigned char) text[i];
    return hash_mix(hash, word);
}

/* Where in the hash table a key and its text are, or the empty place where they would be. */
INLINE const struct encoding_entry *place_of(const struct encoding_lookup *lookup, uint64_t key, const char *text,
                                             size_t length)
{
    for (uint64_t at = hash_mix(0, key);; at++) {
        const struct encoding_entry *entry = lookup->places + (at & lookup->mask);
        if (entry->code < 0 || (entry->key == key && entry->length == length &&
                                (length == 0 || memcmp(entry->text, text, length) == 0)))
            return entry;
    }
}

INLINE int32_t find(const struct encoding_lookup *lookup, uint64_t key)
{
    if (lookup->codes != NULL)
        return key - lookup->base < lookup->span ? lookup->codes[key - lookup->base] : -1;
    return place_of(lookup, key, NULL, 0)->code;
}

int32_t encoding_find(const struct encoding_lookup *lookup, uint64_t key)
{
    return find(lookup, key);
}

int32_t encoding_find_text(const struct encoding_lookup *lookup, const char *text, size_t length)
{
    return place_of(lookup, hash_text(text, length), text, length)->code;
}

/* Make an array of the codes of whole numbers, unless they are too far apart. */
static int fill_codes(struct encoding_lookup *lookup, encoding_allocate *allocate)
{
    int64_t least = lookup->count > 0 ? INT64_MAX : 0, most = lookup->count > 0 ? INT64_MIN : 0;
    for (uint64_t i = 0; i < lookup->count; i++) {
        const int64_t number = (int64_t) lookup->entries[i].key;
        least = number < least ? number : least;
        most = number > most ? number : most;
    }
    if ((uint64_t) most - (uint64_t) least >= MAX_SPAN)
        return SGD_OK;
    lookup->base = (uint64_t) least;
    lookup->span = (uint64_t) most - (uint64_t) least + 1;
    int32_t *codes = allocate(lookup->span * sizeof *codes);
    if (codes == NULL)
        return SGD_NO_MEMORY;
    memset(codes, 0xff, lookup->span * sizeof *codes); /* -1 */
    for (uint64_t i = lookup->count; i-- > 0;)
        codes[lookup->entries[i].key - lookup->base] = lookup->entries[i].code;
    lookup->codes = codes;
    return SGD_OK;
}

static int fill_lookup(struct encoding_lookup *lookup, encoding_allocate *allocate)
{
    const int code = lookup->match == MATCH_INTEGER ? fill_codes(lookup, allocate) : SGD_OK;
    if (code != SGD_OK || lookup->codes != NULL)
        return code;
    uint64_t size = 4;
    while (size < 2 * lookup->count)
        size *= 2;
    lookup->mask = size - 1;
    lookup->places = allocate(size * sizeof *lookup->places);
    if (lookup->places == NULL)
        return SGD_NO_MEMORY;
    for (uint64_t i = 0; i < size; i++)
        lookup->places[i].code = -1;
    for (struct encoding_entry *entry = lookup->entries; entry < lookup->entries + lookup->count; entry++) {
        if (lookup->match == MATCH_TEXT)
            entry->key = hash_text(entry->text, entry->length);
        const struct encoding_entry *place = place_of(lookup, entry->key, entry->text, entry->length);
        if (place->code < 0)
            lookup->places[place - lookup->places] = *entry;
        lookup->longest = entry->length > lookup->longest ? entry->length : lookup->longest;
    }
    return SGD_OK;
}

int encoding_fill(struct encoding_plan *plan, encoding_allocate *allocate)
{
    int code = SGD_OK;
    for (struct encoding_column *c = plan->columns; c < plan->columns + plan->n_columns && code == SGD_OK; c++)
        if (encoding_is_matched(c))
            code = fill_lookup(&c->lookup, allocate);
    return code;
}

/* ---- cells -------------------------------------------------------------------------------------------------- */

/* Rows packed at a time, at most; fewer where they are long, so that those being written stay in the cache. */
#define TILE 256
#define TILE_BYTES (UINT64_C(1) << 18)

INLINE int bit(const uint8_t *bits, uint64_t i)
{
    return bits[i / 8] >> i % 8 & 1;
}

#define EACH_INTEGER_TYPE(DO)                                                                                          \
    DO(VALUE_INT8, int8_t)                                                                                             \
    DO(VALUE_INT16, int16_t)                                                                                           \
    DO(VALUE_INT32, int32_t)                                                                                           \
    DO(VALUE_INT64, int64_t)                                                                                           \
    DO(VALUE_UINT8, uint8_t)                                                                                           \
    DO(VALUE_UINT16, uint16_t)                                                                                         \
    DO(VALUE_UINT32, uint32_t)                                                                                         \
    DO(VALUE_UINT64, uint64_t)

#define LOAD(TYPE, TO)                                                                                                 \
    case TYPE:                                                                                                         \
        for (size_t i = 0; i < n; i++)                                                                                 \
            x[i] = ((const TO *) v->values)[first + i];                                                                \
        break;
#define LOAD_BITS                                                                                                      \
    default:                                                                                                           \
        for (size_t i = 0; i < n; i++)                                                                                 \
            x[i] = bit(v->values, first + i);

/* n values from the `first` on, as doubles, NaN where they are missing. */
INLINE void load_numbers(const struct encoding_values *v, uint64_t first, size_t n, double *x)
{
    switch (v->type) {
        EACH_INTEGER_TYPE(LOAD)
        LOAD(VALUE_FLOAT32, float)
        LOAD(VALUE_FLOAT64, double)
        LOAD_BITS
    }
    if (v->validity)
        for (size_t i = 0; i < n; i++)
            x[i] = bit(v->validity, first + i) ? x[i] : NAN;
}

/* n whole numbers from the `first` on, by their bits. */
INLINE void load_keys(const struct encoding_values *v, uint64_t first, size_t n, uint64_t *x)
{
    switch (v->type) {
        EACH_INTEGER_TYPE(LOAD)
        LOAD_BITS
    }
}

WIDEST void encoding_scale(const struct encoding_column *c, const double *numbers, size_t n, float *cells)
{
    const double low = c->low, high = c->high, middle = c->middle, half = c->half;
    for (size_t i = 0; i < n; i++)
        cells[i] = encoding_number_cell(numbers[i], low, high, middle, half);
}

/* The codes of n values from the `first` on. */
INLINE void find_codes(const struct encoding_column *c, const struct encoding_values *v, uint64_t first, size_t n,
                       float *cells)
{
    const struct encoding_lookup dictionary = {.codes = v->codes, .span = v->count};
    const struct encoding_lookup *lookup = v->codes ? &dictionary : &c->lookup;
    const float missing = encoding_code_cell(c, -1);
    uint64_t keys[TILE];
    double x[TILE];
    if (v->type == VALUE_TEXT)
        for (size_t i = 0; i < n; i++) {
            const int32_t begin = v->ends[first + i], end = v->ends[first + i + 1];
            const char *text = (const char *) v->values + begin;
            cells[i] = encoding_code_cell(c, encoding_find_text(lookup, text, (size_t) (end - begin)));
        }
    else {
        if (v->type == VALUE_FLOAT32 || v->type == VALUE_FLOAT64) {
            load_numbers(v, first, n, x);
            for (size_t i = 0; i < n; i++)
                keys[i] = encoding_float_key(x[i]);
        } else
            load_keys(v, first, n, keys);
        for (size_t i = 0; i < n; i++) {
            const int32_t code = find(lookup, keys[i]);
            cells[i] = code < 0 ? missing : (float) code;
        }
    }
    if (v->validity)
        for (size_t i = 0; i < n; i++)
            cells[i] = bit(v->validity, first + i) ? cells[i] : missing;
}

static int suits(const struct encoding_column *c, const struct encoding_values *v)
{
    const int is_float = v->type == VALUE_FLOAT32 || v->type == VALUE_FLOAT64;
    if (!encoding_is_matched(c))
        return v->type < VALUE_TEXT && (c->kind == COLUMN_NUMBER || v->validity == NULL);
    if (v->codes != NULL || c->lookup.match == MATCH_INTEGER)
        return v->type < VALUE_TEXT && !is_float;
    return c->lookup.match == MATCH_FLOAT ? is_float : v->type == VALUE_TEXT;
}

INLINE void scatter(const float *cells, size_t n, float *out, size_t stride)
{
    for (size_t i = 0; i < n; i++)
        out[i * stride] = cells[i];
}

/* Cells of n rows from the `first` on, at most TILE. */
INLINE void pack_column(const struct encoding_column *c, const struct encoding_values *v, uint64_t first, size_t n,
                        float *out, size_t stride)
{
    double x[TILE];
    float cells[TILE];
    if (c->kind == COLUMN_VECTOR) {
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < c->length; k += TILE) {
                const size_t some = c->length - k < TILE ? c->length - k : TILE;
                load_numbers(v, (first + i) * c->length + k, some, x);
                encoding_scale(c, x, some, out + i * stride + k);
            }
    } else if (c->kind == COLUMN_NUMBER) {
        load_numbers(v, first, n, x);
        encoding_scale(c, x, n, cells);
        scatter(cells, n, out, stride);
    } else {
        find_codes(c, v, first, n, cells);
        scatter(cells, n, out, stride);
    }
}

WIDEST int encoding_pack(const struct encoding_plan *plan, const struct encoding_values *values, size_t n, float *out)
{
    const size_t stride = plan->width, fitting = TILE_BYTES / (sizeof *out * stride);
    const size_t tile = fitting < 16 ? 16 : fitting < TILE ? fitting : TILE;
    for (size_t k = 0; k < plan->n_columns; k++)
        if (!suits(plan->columns + k, values + k))
            return SGD_BAD_ELEMENT;
    for (size_t start = 0; start < n; start += tile) {
        const size_t n_rows = n - start < tile ? n - start : tile;
        for (size_t k = 0; k < plan->n_columns; k++)
            pack_column(plan->columns + k, values + k, values[k].offset + start, n_rows,
                        out + start * stride + plan->columns[k].at, stride);
    }
    return SGD_OK;
}

/* ---- projection --------------------------------------------------------------------------------------------- */

/* Features in double of one row, and in float of all. */
size_t encoding_scratch(const struct encoding_plan *plan)
{
    return plan->map == NULL ? 0 : (1 + plan->map->dims) * (1 + PROJECTED_ROWS / 2);
}

void encoding_project(const struct encoding_plan *plan, const float *rows, size_t n, double *scratch, float *out)
{
    const size_t width = 1 + plan->map->dims;
    float *features = (float *) (void *) (scratch + width);
    for (size_t start = 0; start < n; start += PROJECTED_ROWS) {
        const size_t n_rows = n - start < PROJECTED_ROWS ? n - start : PROJECTED_ROWS;
        for (size_t i = 0; i < n_rows; i++) {
            feature_map_features(plan->map, rows + (start + i) * plan->width, 1, scratch);
            for (size_t k = 0; k < width; k++)
                features[i * width + k] = (float) scratch[k];
        }
        project_features(features, n_rows, plan->map->dims, plan->matrix, plan->projected,
                         out + start * (1 + plan->projected));
    }
}
