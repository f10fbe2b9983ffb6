/* sgd.c: the state, the row guard and exp. The loops over rows are in loops.h, once for each instruction set. */
#include "sgd.h"

#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__FAST_MATH__) || FLT_EVAL_METHOD != 0
#error "sgd.c needs plain IEEE arithmetic: no -ffast-math, no x87"
#endif

typedef char weights_start_at_192_bytes[sizeof(struct sgd_state) == 192 ? 1 : -1];

/* ---- exp --------------------------------------------------------------------------------------------------- */

/* 2^(i/64), each rounded to nearest. */
static const double TABLE[64] = {
    0x1.0000000000000p+0, 0x1.02c9a3e778061p+0, 0x1.059b0d3158574p+0, 0x1.0874518759bc8p+0,
    0x1.0b5586cf9890fp+0, 0x1.0e3ec32d3d1a2p+0, 0x1.11301d0125b51p+0, 0x1.1429aaea92de0p+0,
    0x1.172b83c7d517bp+0, 0x1.1a35beb6fcb75p+0, 0x1.1d4873168b9aap+0, 0x1.2063b88628cd6p+0,
    0x1.2387a6e756238p+0, 0x1.26b4565e27cddp+0, 0x1.29e9df51fdee1p+0, 0x1.2d285a6e4030bp+0,
    0x1.306fe0a31b715p+0, 0x1.33c08b26416ffp+0, 0x1.371a7373aa9cbp+0, 0x1.3a7db34e59ff7p+0,
    0x1.3dea64c123422p+0, 0x1.4160a21f72e2ap+0, 0x1.44e086061892dp+0, 0x1.486a2b5c13cd0p+0,
    0x1.4bfdad5362a27p+0, 0x1.4f9b2769d2ca7p+0, 0x1.5342b569d4f82p+0, 0x1.56f4736b527dap+0,
    0x1.5ab07dd485429p+0, 0x1.5e76f15ad2148p+0, 0x1.6247eb03a5585p+0, 0x1.6623882552225p+0,
    0x1.6a09e667f3bcdp+0, 0x1.6dfb23c651a2fp+0, 0x1.71f75e8ec5f74p+0, 0x1.75feb564267c9p+0,
    0x1.7a11473eb0187p+0, 0x1.7e2f336cf4e62p+0, 0x1.82589994cce13p+0, 0x1.868d99b4492edp+0,
    0x1.8ace5422aa0dbp+0, 0x1.8f1ae99157736p+0, 0x1.93737b0cdc5e5p+0, 0x1.97d829fde4e50p+0,
    0x1.9c49182a3f090p+0, 0x1.a0c667b5de565p+0, 0x1.a5503b23e255dp+0, 0x1.a9e6b5579fdbfp+0,
    0x1.ae89f995ad3adp+0, 0x1.b33a2b84f15fbp+0, 0x1.b7f76f2fb5e47p+0, 0x1.bcc1e904bc1d2p+0,
    0x1.c199bdd85529cp+0, 0x1.c67f12e57d14bp+0, 0x1.cb720dcef9069p+0, 0x1.d072d4a07897cp+0,
    0x1.d5818dcfba487p+0, 0x1.da9e603db3285p+0, 0x1.dfc97337b9b5fp+0, 0x1.e502ee78b3ff6p+0,
    0x1.ea4afa2a490dap+0, 0x1.efa1bee615a27p+0, 0x1.f50765b6e4540p+0, 0x1.fa7c1819e90d8p+0,
};

#define EXP_LIMIT (64.0 * 1020.0)
#define UNITS_PER_NAT 0x1.71547652b82fep+6 /* 64 / ln 2: what turns a score into 64ths of a power of two */

/*
 * 2^(u/64) = whole + rest, where whole is a table entry times a power of two and |rest| < 0.0055 * whole.
 *
 * u = k + r, k an integer, |r| <= 1/2, exactly. 2^(r/64) - 1 is its Taylor polynomial of degree 5, whose first
 * left-out term is below 2^-54.6 of the whole; it is summed in pairs, to be short of waiting rather than of products.
 */
#define LN2_64TH 0x1.62e42fefa39efp-7
static inline double exp2_64ths(double u, double *rest)
{
    const double shift = 0x1.8p52; /* adding it rounds to an integer, which then is the low bits of the sum */
    const double c1 = LN2_64TH, c2 = c1 * c1 / 2, c3 = c2 * c1 / 3, c4 = c3 * c1 / 4, c5 = c4 * c1 / 5;
    u = u < EXP_LIMIT ? u : EXP_LIMIT;
    u = u > -EXP_LIMIT ? u : -EXP_LIMIT;
    double shifted = u + shift;
    double r = u - (shifted - shift);
    uint64_t k, bits;
    memcpy(&k, &shifted, sizeof k);
    memcpy(&bits, &TABLE[k & 63], sizeof bits);
    bits += (k & ~UINT64_C(63)) << 46; /* floor(k/64) into the exponent; the bits of `shift` fall off the top */
    double whole;
    memcpy(&whole, &bits, sizeof whole);
    double r2 = r * r;
    double slope = (c1 + c2 * r) + r2 * ((c3 + c4 * r) + r2 * c5);
    *rest = (whole * r) * slope;
    return whole;
}

double sgd_exp2_64ths(double u)
{
    double rest, whole = exp2_64ths(u, &rest);
    return whole + rest;
}

/* ---- the row guard ----------------------------------------------------------------------------------------- */

/*
 * Let u = 2^-53, S the exact sum of squares of the row and q the computed one. Every term of q is a product (one rounding)
 * that goes through at most dims additions, so |q - S| <= (dims+2)*u*S to first order, and with g = (dims+16)*u,
 * which is below 2^-28, safely  S*(1-g) <= q <= S*(1+g). (Squares that underflow add less than dims * 2^-1074.)
 *
 * - q <= 1 - 4g: s = 1, and ||s*x||^2 = S <= (1-4g)/(1-g) < 1 - 2g, so ||s*x|| < 1 - g.
 * - else s is (1-2g)/sqrt(q) with at most four roundings, so ||s*x|| = s*sqrt(S) <= (1-2g)*(1+5u)/sqrt(1-g) < 1 - g.
 *
 * So the row that the update stands for has norm below 1 in exact arithmetic, with g >= 17u to spare. That
 * margin also pays for the roundings of the factor that multiplies the row (at most 8u: the step size over the batch's size, times s, times the
 * slope of the loss), so that a row's true contribution never exceeds eta/|B| * L.
 *
 * A sum that is infinite or NaN (a value is, or its square overflows) means a neutral row, s = 0.
 */
static inline double row_scale(double q, double g)
{
    if (!(q <= DBL_MAX))
        return 0.0;
    if (q <= 1.0 - 4.0 * g)
        return 1.0;
    return (1.0 - 2.0 * g) / sqrt(q);
}

static inline double guard_margin(uint64_t dims)
{
    return ((double) dims + 16.0) * 0x1p-53;
}

double sgd_row_scale(double sum_of_squares, uint64_t dims)
{
    return row_scale(sum_of_squares, guard_margin(dims));
}

/* ---- the state --------------------------------------------------------------------------------------------- */

static uint64_t vectors(const struct sgd_recipe *r)
{
    return r->loss == SGD_MULTINOMIAL ? r->classes : 1;
}

static uint64_t weight_count(const struct sgd_recipe *r)
{
    return vectors(r) * r->dims;
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

uint64_t sgd_bytes(const struct sgd_recipe *r)
{
    if (r->dims < 1 || r->dims > SGD_MAX_DIMS || r->classes < 2 || r->classes > SGD_MAX_CLASSES)
        return 0;
    return sizeof(struct sgd_state) + sizeof(double) * (3 * weight_count(r) + vectors(r));
}

static int recipe_is_sound(const struct sgd_recipe *r)
{
    const uint64_t limit = UINT64_C(1) << 48;
    if (r->loss > SGD_MULTINOMIAL || r->growth > SGD_SQRT || sgd_bytes(r) == 0 || r->positive >= r->classes)
        return 0;
    if (r->rows < 1 || r->rows > limit || r->batches < 1 || r->batches > r->rows || r->passes < 1)
        return 0;
    if (r->passes > (UINT64_C(1) << 53) / r->batches || r->passes > (UINT64_C(1) << 62) / r->rows)
        return 0;
    if (r->averaged < 1 || r->averaged > r->batches * r->passes)
        return 0;
    if (!(r->scale > 0 && r->scale <= DBL_MAX && r->offset >= 0 && r->offset <= DBL_MAX && r->cap > 0))
        return 0;
    if (!(r->width > 0 && r->width <= DBL_MAX && r->lambda >= 0 && r->lambda <= DBL_MAX && r->radius > 0))
        return 0;
    double eta = step_size(r, 1); /* schedules never increase */
    return eta * (double) (r->batches * r->passes) <= 1e100 && eta * r->lambda <= 2.0;
}

/* Everything but the numbers in the arrays, which can be wrong but cannot lead astray. */
static int check_header(const void *state, size_t bytes)
{
    const struct sgd_state *s = state;
    if ((uintptr_t) state % sizeof(double) != 0)
        return SGD_UNALIGNED;
    if (bytes < sizeof *s || s->magic != SGD_MAGIC || s->version != SGD_VERSION || s->bytes != bytes)
        return SGD_CORRUPT;
    const struct sgd_recipe *r = &s->recipe;
    if (!recipe_is_sound(r) || sgd_bytes(r) != bytes || s->unused[0] != 0 || s->unused[1] != 0)
        return SGD_CORRUPT;
    if (s->updates > r->batches * r->passes || s->row >= r->rows || s->carry >= r->batches)
        return SGD_CORRUPT;
    uint64_t size = batch_size(r, s->carry);
    if (s->left < 1 || s->left > size || size - s->left > s->row)
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
    size_t count = (bytes - sizeof *s) / sizeof(double);
    for (size_t i = 0; i < count; i++)
        if (!(fabs(s->data[i]) <= DBL_MAX))
            return SGD_CORRUPT;
    return SGD_OK;
}

int sgd_init(void *state, size_t bytes, const struct sgd_recipe *recipe)
{
    if (!recipe_is_sound(recipe) || sgd_bytes(recipe) != bytes)
        return SGD_BAD_RECIPE;
    if ((uintptr_t) state % sizeof(double) != 0)
        return SGD_UNALIGNED;
    struct sgd_state *s = state;
    memset(s, 0, bytes);
    s->magic = SGD_MAGIC;
    s->version = SGD_VERSION;
    s->bytes = bytes;
    s->recipe = *recipe;
    s->left = batch_size(recipe, 0);
    return SGD_OK;
}

int sgd_weights(const void *state, size_t bytes, double *out)
{
    int code = sgd_check(state, bytes);
    if (code != SGD_OK)
        return code;
    const struct sgd_state *s = state;
    uint64_t count = weight_count(&s->recipe), averaged = s->recipe.averaged;
    const double *total = s->data + 2 * count;
    for (uint64_t i = 0; i < count; i++)
        out[i] = averaged == 1 ? s->data[i] : total[i] / (double) averaged;
    return SGD_OK;
}

/* ---- the loops, once for each instruction set --------------------------------------------------------------- */

typedef double vec4 __attribute__((vector_size(32), aligned(8), may_alias));
typedef float vec4f __attribute__((vector_size(16), aligned(4), may_alias));

#define MAX_BLOCK 64 /* rows whose guard is computed together */

/* What the guard says of each row of a block: it depends on no model, so all models of a scan share it. */
struct guarded {
    double scale[MAX_BLOCK]; /* 0: a neutral row */
    double label[MAX_BLOCK]; /* a whole number >= 0 where scale is not 0 */
};

#define NAME(f) f##_portable
#define TARGET
#include "loops.h"
#undef NAME
#undef TARGET

#if defined(__x86_64__)
#define NAME(f) f##_avx2
#define TARGET __attribute__((target("avx2")))
#include "loops.h"
#undef NAME
#undef TARGET
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

int sgd_run(void *const *states, const size_t *bytes, size_t n_states, const void *rows, size_t n_rows, int element,
            int build)
{
    if (element != SGD_FLOAT32 && element != SGD_FLOAT64)
        return SGD_BAD_ELEMENT;
    if (!sgd_has_build(build))
        return SGD_BAD_BUILD;
    if ((uintptr_t) rows % (element == SGD_FLOAT32 ? sizeof(float) : sizeof(double)) != 0)
        return SGD_UNALIGNED;
    for (size_t i = 0; i < n_states; i++) {
        int code = check_header(states[i], bytes[i]);
        if (code != SGD_OK)
            return code;
        const struct sgd_state *s = states[i], *first = states[0];
        const struct sgd_recipe *r = &s->recipe;
        if (r->dims != first->recipe.dims)
            return SGD_WIDTHS;
        if (n_rows > r->rows * (r->passes - s->updates / r->batches) - s->row)
            return SGD_FINISHED;
    }
    if (n_states == 0)
        return SGD_OK;
#if defined(__x86_64__)
    if (build != SGD_PORTABLE && sgd_has_build(SGD_AVX2)) {
        scan_avx2(states, n_states, rows, n_rows, element);
        return SGD_OK;
    }
#endif
    scan_portable(states, n_states, rows, n_rows, element);
    return SGD_OK;
}

const char *sgd_error_text(int code)
{
    switch (code) {
    case SGD_OK:
        return "no error";
    case SGD_BAD_RECIPE:
        return "a number of the recipe is outside the kernel's range";
    case SGD_CORRUPT:
        return "the state is corrupt";
    case SGD_UNALIGNED:
        return "the memory of the state or of the rows is not aligned";
    case SGD_WIDTHS:
        return "the models of one scan must have the same number of features";
    case SGD_FINISHED:
        return "more rows were fed than the passes have left";
    case SGD_BAD_ELEMENT:
        return "rows must be float32 or float64";
    case SGD_BAD_BUILD:
        return "this machine cannot run the build asked for";
    default:
        return "unknown error";
    }
}
