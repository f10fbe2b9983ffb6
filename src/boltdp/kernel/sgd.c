/*
 * sgd.c: the state and the row guard. The loops over rows are in sgd_loops.h and ChaCha20 is in chacha.h, once for each
 * instruction set; the losses are in losses.h, exp in exp.h, the samplers in gaussian_noise.h.
 */
#include "sgd.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "exp.h"
#include "losses.h"
#include "feature_map.h"

#if defined(__FAST_MATH__) || FLT_EVAL_METHOD != 0
#error "sgd.c needs plain IEEE arithmetic: no -ffast-math, no x87"
#endif

typedef char weights_start_at_256_bytes[sizeof(struct sgd_state) == 256 ? 1 : -1];

double sgd_exp2_256ths(double u)
{
    double rest, whole = exp2_256ths(u, &rest);
    return whole + rest;
}

/* ---- the row guard ----------------------------------------------------------------------------------------- */

/*
 * Let u = 2^-53, S the exact sum of squares of the row and q the computed one. Every term of q is a product (one
 * rounding) that goes through at most dims additions, so |q - S| <= (dims+2)*u*S to first order, and with g =
 * (dims+16)*u, which is below 2^-28, safely  S*(1-g) <= q <= S*(1+g). (Squares that underflow add less than dims *
 * 2^-1074.) Where a feature map has the squares of a group of k features added up in advance, its terms go through at
 * most k + 2 additions there and then through one for each other number or group: dims + 4 in all. A pair's k = k1*k2
 * squares are a product of two such sums, and of its squared factor: at most k1 + k2 + 5 <= k + 6, dims + 6 in all.
 *
 * - q <= 1 - 4g: s = 1, and ||s*x||^2 = S <= (1-4g)/(1-g) < 1 - 2g, so ||s*x|| < 1 - g.
 * - else s is (1-2g)/sqrt(q) with at most four roundings, so ||s*x|| = s*sqrt(S) <= (1-2g)*(1+5u)/sqrt(1-g) < 1 - g.
 *
 * So the row that the update stands for has norm below 1 in exact arithmetic, with g >= 17u to spare. That margin also
 * pays for the roundings of the factor that multiplies the row (the step size over the batch's size, times s, times the
 * weight of the class, times the slope of the loss: at most 8u), so that a row's true contribution never exceeds
 * eta/|B| * L.
 *
 * A sum that is infinite or NaN (a value is, or its square overflows) means a neutral row, s = 0.
 */
static inline double guard_margin(uint64_t dims)
{
    return ((double) dims + 16.0) * 0x1p-53;
}

/* Beyond this a row is neutral. Far enough below DBL_MAX for products of two rows, in any order, not to overflow. */
#define MAX_SQUARES 1e300

static inline double row_scale_threshold(double g)
{
    return 1.0 - 4.0 * g;
}

static inline double row_scale_numerator(double g)
{
    return 1.0 - 2.0 * g;
}

double sgd_row_scale(double sum_of_squares, uint64_t dims)
{
    const double g = guard_margin(dims);
    if (!(sum_of_squares <= MAX_SQUARES))
        return 0.0;
    return sum_of_squares <= row_scale_threshold(g) ? 1.0 : row_scale_numerator(g) / sqrt(sum_of_squares);
}

/* ---- noise -------------------------------------------------------------------------------------------------- */

#include "gaussian_noise.h"

/* ---- the state --------------------------------------------------------------------------------------------- */

static uint64_t vectors(const struct sgd_recipe *r)
{
    return loss_vectors(r->loss, r->classes);
}

static uint64_t weight_count(const struct sgd_recipe *r)
{
    return vectors(r) * pad_count(r->dims);
}

/* eta_t. The binding's schedules compute the same operations in the same order, so the analysis sees the same bits. */
static inline double step_size(const struct sgd_recipe *r, uint64_t t)
{
    double growth, eta;
    if (r->growth == SGD_NONE)
        eta = r->scale;
    else {
        growth = r->growth == SGD_SQRT ? sqrt((double) t) : (double) t;
        eta = r->scale / (growth + r->offset);
    }
    return eta < r->cap ? eta : r->cap;
}

/* Rows of the batch whose carry this is: m/n, and one more whenever the carry overflows. */
static inline uint64_t batch_size(const struct sgd_recipe *r, uint64_t carry)
{
    return r->rows / r->batches + (carry + r->rows % r->batches >= r->batches);
}

/* Whether every batch is a single row and nothing is done to the weights in between: see sgd_loops.h. */
static int has_single_rows(const struct sgd_recipe *r)
{
    return r->batches == r->rows && !loss_facts(r->loss).is_joint && r->radius > DBL_MAX && !r->marked && !r->noise;
}

/* What an update leaves of the weights: 1 - eta*lambda. */
static inline double decay_of(const struct sgd_recipe *r, double eta)
{
    return 1.0 - eta * r->lambda;
}

static inline uint64_t next_carry(const struct sgd_recipe *r, uint64_t carry)
{
    carry += r->rows % r->batches;
    return carry >= r->batches ? carry - r->batches : carry;
}

/* How many first iterates stay out of the average; all of them when only the last counts. */
static inline uint64_t unaveraged_updates(const struct sgd_recipe *r)
{
    return r->averaged > 1 ? r->batches * r->passes - r->averaged : UINT64_MAX;
}

/* Numbers in the array `aside`. */
static uint64_t aside_count(const struct sgd_recipe *r)
{
    return loss_facts(r->loss).is_joint ? 4 * pad_count(r->classes) : 4;
}

static inline double *total_of(struct sgd_state *s)
{
    return s->data + weight_count(&s->recipe);
}

static inline double *step_of(struct sgd_state *s)
{
    return total_of(s) + weight_count(&s->recipe);
}

static inline double *aside_of(struct sgd_state *s)
{
    return step_of(s) + weight_count(&s->recipe);
}

/* Where in `data` the weights of the classes are, if the recipe is weighted. */
static inline uint64_t class_weights_at(const struct sgd_recipe *r)
{
    return 3 * weight_count(r) + aside_count(r);
}

/* Bytes without the feature map. */
static uint64_t own_bytes(const struct sgd_recipe *r)
{
    if (r->dims < 1 || r->dims > SGD_MAX_DIMS || r->classes < 2 || r->classes > SGD_MAX_CLASSES || r->weighted > 1)
        return 0;
    return sizeof(struct sgd_state) + sizeof(double) * (class_weights_at(r) + (r->weighted ? r->classes : 0));
}

uint64_t sgd_bytes(const struct sgd_recipe *r, const void *map)
{
    const struct feature_map *by = map;
    const uint64_t own = own_bytes(r);
    return by == NULL || own == 0 ? own : by->dims == r->dims && !by->downweights ? own + by->bytes : 0;
}

/* The feature map of a sound state, or NULL. */
static const struct feature_map *map_of(const struct sgd_state *s)
{
    return feature_map_at_end(s, s->bytes, s->map_bytes);
}

uint64_t sgd_cells(const void *state)
{
    const struct sgd_state *s = state;
    return s->map_bytes == 0 ? s->recipe.dims : map_of(s)->cells;
}

int sgd_class_weights_are_sound(const double *class_weights, uint64_t classes)
{
    for (uint64_t k = 0; k < classes; k++)
        if (!(class_weights[k] > 0.0 && class_weights[k] <= 1.0))
            return 0;
    return 1;
}

static int recipe_is_sound(const struct sgd_recipe *r)
{
    const uint64_t limit = UINT64_C(1) << 48;
    if (r->loss >= LOSS_COUNT || r->growth > SGD_SQRT || own_bytes(r) == 0 || r->positive >= r->classes)
        return 0;
    if (r->rows < 1 || r->rows > limit || r->batches < 1 || r->batches > r->rows || r->passes < 1)
        return 0;
    if (r->passes > (UINT64_C(1) << 53) / r->batches || r->passes > (UINT64_C(1) << 62) / r->rows)
        return 0;
    if (r->averaged < 1 || r->averaged > r->batches * r->passes)
        return 0;
    if (!(r->scale > 0 && r->scale <= DBL_MAX && r->offset >= 0 && r->offset <= DBL_MAX && r->cap > 0))
        return 0;
    if (!(r->parameter > 0 && r->parameter <= DBL_MAX && r->lambda >= 0 && r->lambda <= DBL_MAX && r->radius > 0))
        return 0;
    if (r->marked > 1 || r->noise > SGD_SPHERICAL || (r->noise ? !(r->deviation >= 1e-100) : r->deviation != 0))
        return 0;
    double eta = step_size(r, 1), way = eta * (double) (r->batches * r->passes); /* schedules never increase */
    return way <= 1e100 && way * (r->deviation * (double) weight_count(r)) <= 1e100 && eta * r->lambda <= 2.0;
}

/* Rows of a marked pass: more than any pass has, and few enough to be counted safely. */
#define MAX_ROWS_TO_MARK (UINT64_C(1) << 62)

/* Everything but the numbers in the arrays, which can be wrong but cannot lead astray. */
static int check_header(const void *state, size_t bytes)
{
    const struct sgd_state *s = state;
    if ((uintptr_t) state % sizeof(double) != 0)
        return SGD_UNALIGNED;
    if (bytes < sizeof *s || s->magic != SGD_MAGIC || s->version != SGD_VERSION || s->bytes != bytes)
        return SGD_CORRUPT;
    const struct sgd_recipe *r = &s->recipe;
    if (!recipe_is_sound(r) || s->map_bytes > bytes || s->map_bytes % sizeof(double) != 0 ||
        own_bytes(r) != bytes - s->map_bytes)
        return SGD_CORRUPT;
    if (s->map_bytes != 0 && (feature_map_check(map_of(s), s->map_bytes) != SGD_OK || map_of(s)->dims != r->dims ||
                              map_of(s)->downweights))
        return SGD_CORRUPT;
    if (s->updates > r->batches * r->passes || s->carry >= r->batches || s->drawn > (r->noise != SGD_NOISELESS))
        return SGD_CORRUPT;
    if (!r->noise && (s->key[0] | s->key[1] | s->key[2] | s->key[3]) != 0)
        return SGD_CORRUPT;
    if (r->marked) {
        const int finished = s->updates == r->batches * r->passes;
        return s->left != 0 || s->carry != 0 || s->row > (finished ? 0 : MAX_ROWS_TO_MARK) || s->drawn > s->row
                   ? SGD_CORRUPT
                   : SGD_OK;
    }
    if (s->row >= r->rows)
        return SGD_CORRUPT;
    uint64_t size = batch_size(r, s->carry);
    if (s->left < 1 || s->left > size || size - s->left > s->row || s->drawn != (r->noise && s->left < size))
        return SGD_CORRUPT;
    if (s->updates == r->batches * r->passes && (s->row != 0 || s->left != size))
        return SGD_CORRUPT;
    /* The batch starts at floor(j*m/n): start*n + carry = j*m. The products may need 96 bits: numbers that agree
     * modulo 2^64 and, as doubles, to within 2^63 are equal. */
    uint64_t start = s->row - (size - s->left), j = s->updates % r->batches;
    double apart = (double) start * (double) r->batches + (double) s->carry - (double) j * (double) r->rows;
    if (start * r->batches + s->carry != j * r->rows || !(fabs(apart) < 0x1p63))
        return SGD_CORRUPT;
    return SGD_OK;
}

int sgd_check(const void *state, size_t bytes)
{
    int code = check_header(state, bytes);
    if (code != SGD_OK)
        return code;
    const struct sgd_state *s = state;
    size_t count = (bytes - s->map_bytes - sizeof *s) / sizeof(double);
    for (size_t i = 0; i < count; i++)
        if (!(fabs(s->data[i]) <= DBL_MAX))
            return SGD_CORRUPT;
    const struct sgd_recipe *r = &s->recipe;
    if (r->weighted && !sgd_class_weights_are_sound(s->data + class_weights_at(r), r->classes))
        return SGD_CORRUPT;
    return s->map_bytes == 0 || feature_map_is_finite(map_of(s)) ? SGD_OK : SGD_CORRUPT;
}

int sgd_init(void *state, size_t bytes, const struct sgd_recipe *recipe, const void *key, const double *class_weights,
             const void *map)
{
    if (!recipe_is_sound(recipe) || bytes == 0 || sgd_bytes(recipe, map) != bytes ||
        (recipe->noise != SGD_NOISELESS) != (key != NULL))
        return SGD_BAD_RECIPE;
    if ((recipe->weighted != 0) != (class_weights != NULL) ||
        (class_weights != NULL && !sgd_class_weights_are_sound(class_weights, recipe->classes)))
        return SGD_BAD_RECIPE;
    if ((uintptr_t) state % sizeof(double) != 0)
        return SGD_UNALIGNED;
    struct sgd_state *s = state;
    memset(s, 0, bytes);
    s->magic = SGD_MAGIC;
    s->version = SGD_VERSION;
    s->bytes = bytes;
    s->recipe = *recipe;
    s->left = recipe->marked ? 0 : batch_size(recipe, 0);
    if (key != NULL)
        memcpy(s->key, key, sizeof s->key);
    if (class_weights != NULL)
        memcpy(s->data + class_weights_at(recipe), class_weights, recipe->classes * sizeof *class_weights);
    if (map != NULL) {
        s->map_bytes = bytes - own_bytes(recipe);
        memcpy((char *) state + own_bytes(recipe), map, s->map_bytes);
    }
    return SGD_OK;
}

int sgd_weights(const void *state, size_t bytes, double *out)
{
    int code = sgd_check(state, bytes);
    if (code != SGD_OK)
        return code;
    const struct sgd_state *s = state;
    const struct sgd_recipe *r = &s->recipe;
    const double *from = r->averaged == 1 ? s->data : s->data + weight_count(r);
    for (uint64_t k = 0; k < vectors(r); k++, from += pad_count(r->dims))
        for (uint64_t i = 0; i < r->dims; i++)
            *out++ = from[i] / (double) r->averaged;
    return SGD_OK;
}

/* ---- the loops, once for each instruction set --------------------------------------------------------------- */

typedef float vec4f __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint64_t word4 __attribute__((vector_size(32), aligned(8), may_alias));
typedef uint32_t vec8u __attribute__((vector_size(32), aligned(4), may_alias));

#define MAX_BLOCK 32       /* rows read together: even, so that pairs stay whole */
#define BLOCK_NUMBERS 2048 /* and the numbers they have together: 16 KiB, so that two blocks fit the cache */

#define FETCH_AHEAD 4096   /* bytes between what is read and what is asked of the memory for later */
#define ROWS_AHEAD 16      /* the same in rows, where they are drawn */

/* Rows on their way through the cache. It depends on no model, so all models of a scan share it. */
struct block {
    const char *source;          /* where its rows come from: one after the other, or */
    const int64_t *positions;    /* where in the source each is, or SGD_BATCH_END, for which */
    const char *neutral;         /* a neutral row is read */
    size_t left;                 /* rows from its first one to the end of the scan */
    size_t n, cells, dims;       /* how many it has, their cells and features */
    const struct feature_map *map;
    double *rows;                /* the features widened, each row padded with zeros to `stride` numbers */
    size_t stride;
    double lanes[4 * MAX_BLOCK]; /* partial sums of each row's squares */
    double scale[MAX_BLOCK];     /* the guard's factor; 0: a neutral row */
    double label[MAX_BLOCK];     /* as it is packed */
    double weight[MAX_BLOCK];    /* of the row, from 0 to 1 */
};

#define NAME(f) f##_portable
#define TARGET
#define WIDEN(p) __builtin_convertvector(*(const vec4f *) (p), vec4)
#define SQUARE_ROOTS(v) ((vec4){sqrt((v)[0]), sqrt((v)[1]), sqrt((v)[2]), sqrt((v)[3])})
#define LANES(v) (((v)[0] + (v)[1]) + ((v)[2] + (v)[3]))
#define FOUR_SUMS(a, b, c, d) ((vec4){LANES(a), LANES(b), LANES(c), LANES(d)})
#define IN_REGISTER(v) (void) 0
#define LANES_SET(m) (unsigned) (((m)[0] & 1) | ((m)[1] & 2) | ((m)[2] & 4) | ((m)[3] & 8))
#define ROTATE_16(v) ROTATE(v, 16)
#define ROTATE_8(v) ROTATE(v, 8)
/* The fastest build of the machine has a copy of its loop for each loss. */
#if !defined(__x86_64__)
#define A_COPY_FOR_EACH_LOSS
#endif
#include "chacha.h"
#include "sgd_loops.h"

#if defined(__x86_64__)
#define A_COPY_FOR_EACH_LOSS
#undef NAME
#undef TARGET
#undef WIDEN
#undef SQUARE_ROOTS
#undef FOUR_SUMS
#undef IN_REGISTER
#undef LANES_SET
#undef ROTATE_16
#undef ROTATE_8
#define NAME(f) f##_avx2
#define TARGET __attribute__((target("avx2")))
#define WIDEN(p) ((vec4) _mm256_cvtps_pd(_mm_loadu_ps(p)))
#define SQUARE_ROOTS(v) ((vec4) _mm256_sqrt_pd((__m256d) (v)))
/* (a0 + a1, b0 + b1, a2 + a3, b2 + b3), and the same LANES as above from two of these */
#define PAIRS(a, b)                                                              \
    _mm256_add_pd(_mm256_unpacklo_pd((__m256d) (a), (__m256d) (b)),              \
                  _mm256_unpackhi_pd((__m256d) (a), (__m256d) (b)))
#define FOUR_SUMS(a, b, c, d) four_sums(PAIRS(a, b), PAIRS(c, d))
TARGET static inline vec4 four_sums(__m256d ab, __m256d cd)
{
    return (vec4) _mm256_add_pd(_mm256_permute2f128_pd(ab, cd, 0x20), _mm256_permute2f128_pd(ab, cd, 0x31));
}
#define IN_REGISTER(v) __asm__("" : "+x"(v)) /* or GCC would load it again for every use */
#define LANES_SET(m) (unsigned) _mm256_movemask_pd((__m256d) (m))
/* Rotations by whole bytes, as a shuffle of the bytes in each word. */
#define SHUFFLED(v, a, b, c, d)                                                                               \
    ((vec8u) _mm256_shuffle_epi8((__m256i) (v), _mm256_setr_epi8(a, b, c, d, a + 4, b + 4, c + 4, d + 4, a + 8, \
                                                                 b + 8, c + 8, d + 8, a + 12, b + 12, c + 12, d + 12, \
                                                                 a, b, c, d, a + 4, b + 4, c + 4, d + 4, a + 8,  \
                                                                 b + 8, c + 8, d + 8, a + 12, b + 12, c + 12, d + 12)))
#define ROTATE_16(v) SHUFFLED(v, 2, 3, 0, 1)
#define ROTATE_8(v) SHUFFLED(v, 3, 0, 1, 2)
#include "chacha.h"
#include "sgd_loops.h"
#endif

int sgd_has_build(int build)
{
    if (build == SGD_FASTEST || build == SGD_PORTABLE)
        return 1;
#if defined(__x86_64__)
    if (build == SGD_AVX2)
        return __builtin_cpu_supports("avx2") != 0;
#endif
    return 0;
}

int sgd_chacha20(const uint32_t start[16], uint32_t out[8 * 16], int build)
{
    if (!sgd_has_build(build))
        return SGD_BAD_BUILD;
#if defined(__x86_64__)
    if (build != SGD_PORTABLE && sgd_has_build(SGD_AVX2))
        chacha20_avx2(start, out);
    else
#endif
        chacha20_portable(start, out);
    return SGD_OK;
}

/* Whether rows follow the end of the last batch of a marked recipe. */
static int passes_the_end(const struct sgd_state *s, const int64_t *positions, size_t n)
{
    const struct sgd_recipe *r = &s->recipe;
    uint64_t left = r->batches * r->passes - s->updates;
    size_t i = 0;
    if (n > MAX_ROWS_TO_MARK - s->row)
        return 1;
    for (; positions != NULL && i < n && left > 0 && n - i > left; i++)
        left -= positions[i] == SGD_BATCH_END;
    return left == 0 && i < n;
}

int sgd_run(void *const *states, const size_t *bytes, size_t n_states, const void *rows, size_t n_rows,
                  const int64_t *positions, size_t n, int element, int build)
{
    if (element != SGD_FLOAT32 && element != SGD_FLOAT64)
        return SGD_BAD_ELEMENT;
    if (!sgd_has_build(build))
        return SGD_BAD_BUILD;
    if ((uintptr_t) rows % (element == SGD_FLOAT32 ? sizeof(float) : sizeof(double)) != 0)
        return SGD_UNALIGNED;
    for (size_t i = 0; positions != NULL && i < n; i++)
        if (positions[i] < SGD_BATCH_END || positions[i] >= (int64_t) n_rows)
            return SGD_BAD_POSITION;
    for (size_t i = 0; i < n_states; i++) {
        int code = check_header(states[i], bytes[i]);
        if (code != SGD_OK)
            return code;
        const struct sgd_state *s = states[i], *first = states[0];
        const struct sgd_recipe *r = &s->recipe;
        if (r->dims != first->recipe.dims || s->map_bytes != first->map_bytes ||
            memcmp((const char *) s + (s->bytes - s->map_bytes), (const char *) first + (first->bytes - s->map_bytes),
                   s->map_bytes) != 0)
            return SGD_WIDTHS;
        if (s->map_bytes != 0 && element != SGD_FLOAT32)
            return SGD_BAD_ELEMENT;
        if (r->marked ? passes_the_end(s, positions, n)
                      : n > r->rows * (r->passes - s->updates / r->batches) - s->row)
            return SGD_FINISHED;
    }
    if (n_states == 0)
        return SGD_OK;

    const size_t dims = ((const struct sgd_state *) states[0])->recipe.dims, stride = pad_count(dims);
    size_t size = BLOCK_NUMBERS / stride / 2 * 2;
    size = size > MAX_BLOCK ? MAX_BLOCK : size > 2 ? size : 2;
    /* Two blocks, each with room for a row in front of its own, and a neutral row. Rows too wide for the stack are few. */
    double ordinary[3 * BLOCK_NUMBERS] __attribute__((aligned(64))), *wide = ordinary;
    if ((2 * (size + 1) + 1) * stride + 1 > 3 * BLOCK_NUMBERS) {
        wide = malloc(((2 * (size + 1) + 1) * stride + 1) * sizeof *wide);
        if (wide == NULL)
            return SGD_NO_MEMORY;
    }
    /* Not initialised: zeroing their arrays costs as much as several rows, and PostgreSQL feeds forty at a time. */
    struct block now, ahead;
    now.dims = ahead.dims = dims;
    now.cells = ahead.cells = sgd_cells(states[0]);
    now.map = ahead.map = map_of(states[0]);
    now.stride = ahead.stride = stride;
    now.rows = wide + stride;
    ahead.rows = now.rows + (size + 1) * stride;
    now.source = rows;
    now.positions = positions;
    now.left = n;
    if (positions != NULL) {
        double *neutral = ahead.rows + size * stride;
        memset(neutral, 0, (stride + 1) * sizeof *neutral);
        if (element == SGD_FLOAT32)
            *(float *) (void *) neutral = NAN;
        else
            *neutral = NAN;
        now.neutral = ahead.neutral = (const char *) neutral;
    }
#if defined(__x86_64__)
    if (build != SGD_PORTABLE && sgd_has_build(SGD_AVX2))
        scan_avx2(states, n_states, &now, &ahead, size, element);
    else
#endif
        scan_portable(states, n_states, &now, &ahead, size, element);
    if (wide != ordinary)
        free(wide);
    return SGD_OK;
}

const char *sgd_error_text(int code)
{
    static const char *const texts[] = {
        [SGD_OK] = "no error",
        [SGD_BAD_RECIPE] = "a number of the recipe is outside the kernel's range",
        [SGD_CORRUPT] = "the state is corrupt",
        [SGD_UNALIGNED] = "the memory of the state or of the rows is not aligned",
        [SGD_WIDTHS] = "the models of one scan must read rows alike",
        [SGD_FINISHED] = "more rows were fed than the passes have left",
        [SGD_NO_MEMORY] = "there is no memory for a row this wide",
        [SGD_BAD_ELEMENT] = "rows must be float32, or float64 where the model reads them as they are",
        [SGD_BAD_BUILD] = "this machine cannot run the build asked for",
        [SGD_BAD_POSITION] = "a position is outside the rows",
    };
    return code >= 0 && (size_t) code < sizeof texts / sizeof *texts ? texts[code] : "unknown error";
}

WIDEST float sgd_read_memory(const float *numbers, size_t n)
{
    float sums[32] = {0};
    for (size_t i = 0; i + 32 <= n; i += 32)
        for (size_t k = 0; k < 32; k++)
            sums[k] += numbers[i + k];
    for (size_t k = 1; k < 32; k++)
        sums[0] += sums[k];
    return sums[0];
}
