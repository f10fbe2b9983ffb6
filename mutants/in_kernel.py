"""Faults in the C kernel: the guard of rows, clipping, updates, sums, samplers."""

from __future__ import annotations

from mutants.mutant import Mutant

LOOPS = "kernel/sgd_loops.h"
SGD = "kernel/sgd.c"
DERIVATIVES = "kernel/loss_derivatives.c"
SUMS = "kernel/feature_sums.c"
LOSSES = "kernel/losses.h"
EXACT = "kernel/exact_sampling.c"
ROWS = "kernel/row_sampling.c"
NORMALS = "kernel/gaussian_sampling.h"
CHACHA = "kernel/chacha.h"
PROJECTION = "kernel/row_projection.c"
ERRORS = "kernel/misclassification.c"
RECURSION = "kernel/sensitivity_recursion.c"

MUTANTS = (
    # ---- rows
    Mutant(
        "long rows in SGD",
        LOOPS,
        "CHOOSE(squares <= row_scale_threshold(margin), one, scaled)",
        "CHOOSE(squares <= 1e6 * row_scale_threshold(margin), one, scaled)",
        "A row that is longer than 1 moves the weights farther than the noise is for.",
        ("kernel/test_guard.py",),
        audit="bolton, long rows",
    ),
    Mutant(
        "long rows in sums",
        SGD,
        "return sum_of_squares <= row_scale_threshold(g) ? 1.0",
        "return sum_of_squares <= 1e6 * row_scale_threshold(g) ? 1.0",
        "A row that is longer than 1 moves the minimiser farther than the noise is for.",
        ("kernel/test_guard.py",),
        audit="objective, long rows",
    ),
    Mutant(
        "rows that are not finite",
        LOOPS,
        "AT(b->scale, r) = CHOOSE(squares <= MAX_SQUARES, scale, none);",
        "AT(b->scale, r) = scale;",
        "A row with an infinite cell makes the weights infinite, which everyone sees.",
        ("kernel/test_guard.py",),
    ),
    Mutant(
        "labels of unusable rows used",
        LOSSES,
        "return (struct label){label_is_class(label, classes) ? sign : 0.0, 0.0};",
        "return (struct label){sign, 0.0};",
        "Rows without a declared class are trained on as if they were of another class.",
        ("kernel/test_guard.py", "kernel/test_rows.py"),
    ),
    Mutant(
        "unknown classes of joint models used",
        LOSSES,
        "return (struct label){known ? 1.0 : 0.0, known ? label : 0.0};",
        "return (struct label){1.0, known ? label : 0.0};",
        "Rows without a declared class are trained on as if they were of the first.",
        ("kernel/test_guard.py", "kernel/test_rows.py", "kernel/test_loss_derivatives.py"),
    ),
    Mutant(
        "long rows projected",
        PROJECTION,
        "return sgd_row_scale((s[0] + s[1]) + (s[2] + s[3]), d);",
        "return sgd_row_scale((s[0] + s[1]) + (s[2] + s[3]), d) == 0.0 ? 0.0 : 1.0;",
        "A row is to be cut to norm 1 before it is projected.",
        ("kernel/test_rows.py",),
    ),
    # ---- updates
    Mutant(
        "slopes of huber above 1",
        LOSSES,
        "slope = slope < 1.0 ? slope : 1.0;",
        "slope = slope < 4.0 ? slope : 4.0;",
        "Gradients are longer than the Lipschitz constant that the noise is for.",
        ("kernel/test_losses.py", "test_losses.py"),
        audit="bolton",
    ),
    Mutant(
        "logistic slopes of 2",
        LOSSES,
        "return rate / ((1.0 + whole) + rest);",
        "return 2.0 * rate / ((1.0 + whole) + rest);",
        "Gradients are longer than the Lipschitz constant that the noise is for.",
        ("kernel/test_losses.py", "test_losses.py"),
        audit="bolton, logistic",
    ),
    Mutant(
        "sums of batches for means",
        LOOPS,
        "const double rate = eta / rows;",
        "const double rate = rows > 0.0 ? eta : 0.0;",
        "A row moves the weights as if it were alone in its batch.",
        ("kernel/test_update.py", "kernel/test_agreement.py"),
        audit="bolton",
    ),
    Mutant(
        "steps without their cap",
        SGD,
        "return eta < r->cap ? eta : r->cap;",
        "return eta;",
        "First steps are longer than 1/beta, and a row moves the weights farther than the noise is for.",
        ("kernel/test_agreement.py", "kernel/test_run.py"),
        audit="bolton, convex",
    ),
    Mutant(
        "no decay",
        SGD,
        "return 1.0 - eta * r->lambda;",
        "return 1.0 - 0.0 * eta * r->lambda;",
        "Without the penalty distances do not shrink as the sensitivity assumes.",
        ("kernel/test_agreement.py", "kernel/test_run.py"),
        audit="bolton, harmonic steps",
    ),
    Mutant(
        "projection left out",
        LOOPS,
        "if (norm > r.radius)",
        "if (norm > 1e6 * r.radius)",
        "Weights leave the ball whose diameter the noise is for.",
        ("kernel/test_agreement.py", "kernel/test_reach.py"),
        audit="bolton, small ball",
    ),
    Mutant(
        "sums of iterates for averages",
        SGD,
        "*out++ = from[i] / (double) r->averaged;",
        "*out++ = from[i];",
        "The weights are as many times more sensitive as iterates are averaged.",
        ("kernel/test_agreement.py", "kernel/test_run.py"),
        audit="bolton, average",
    ),
    # ---- noise in updates
    Mutant(
        "half the noise in an update",
        LOOPS,
        "-eta * (r->deviation * (wanted / length))",
        "-eta * (0.5 * r->deviation * (wanted / length))",
        "Updates have half the noise that the certificate states.",
        (
            "kernel/test_noise.py::test_noise_is_multiplied_by_its_scale_and_the_step",
            "kernel/test_noise.py::test_gaussian_numbers_are_normal",
        ),
        audit="scs13",
    ),
    Mutant(
        "the same noise in every update",
        LOOPS,
        "open_stream(&stream, NAME(chacha20), s->key, s->updates);",
        "open_stream(&stream, NAME(chacha20), s->key, 0 * s->updates);",
        "The difference of two updates has no noise.",
        (
            "kernel/test_noise.py::test_no_gaussian_number_comes_twice_and_none_is_zero",
            "kernel/test_noise.py::test_coordinates_and_updates_are_independent",
        ),
    ),
    Mutant(
        "spherical noise too short",
        NORMALS,
        "const double d = shape - 1.0 / 3.0,",
        "const double d = 0.5 * shape - 1.0 / 6.0,",
        "The norm of spherical noise is not Gamma distributed as the proof needs.",
        ("kernel/test_noise.py::test_the_length_of_spherical_noise_is_gamma",),
        audit="scs13",
    ),
    Mutant(
        "half of the rounds of ChaCha20",
        CHACHA,
        "for (size_t i = 0; i < 10; i++) {",
        "for (size_t i = 0; i < 5; i++) {",
        "Random bits of a weaker cipher may be predicted.",
        ("kernel/test_chacha.py",),
    ),
    Mutant(
        "rows drawn twice into a sample",
        ROWS,
        "if (position < rows && is_new(seen, slots, position)) {",
        "if (position < rows && (is_new(seen, slots, position), 1)) {",
        "A row that is twice in a batch moves it twice as far as the noise is for.",
        ("algorithms/test_row_sampling.py", "kernel/test_drawn.py"),
    ),
    Mutant(
        "Poisson samples of twice the rate",
        ROWS,
        "row += (uint64_t) (-sgd_log(next_uniform(&s)) * gap);",
        "row += (uint64_t) (-sgd_log(next_uniform(&s)) * gap / 2.0);",
        "A row is in twice as many batches as the noise is for.",
        ("algorithms/test_row_sampling.py",),
        audit="dpsgd",
    ),
    # ---- sums
    Mutant(
        "gradients not clipped",
        DERIVATIVES,
        "fabs(slope) * (scale * p.lengths[r]) > s->clip)",
        "fabs(slope) * (scale * p.lengths[r]) > 1e6 * s->clip)",
        "A row moves a sum of gradients farther than the noise is for.",
        ("kernel/test_loss_derivatives.py::test_long_gradients_are_clipped_and_short_ones_are_not",),
        audit="noisy-gd",
    ),
    Mutant(
        "gradients of joint models not clipped",
        DERIVATIVES,
        "for (size_t k = 0; product > clip && k < classes; k++)",
        "for (size_t k = 0; product > 1e6 * clip && k < classes; k++)",
        "A row moves a sum of gradients farther than the noise is for.",
        ("kernel/test_loss_derivatives.py::test_long_gradients_are_clipped_and_short_ones_are_not",),
        audit="noisy-gd, three classes",
    ),
    Mutant(
        "clipped before the class weight",
        DERIVATIVES,
        "slope *= p.weights[r];",
        "slope *= 1.0 / p.weights[r];",
        "Rows of light classes get long gradients instead of short ones.",
        ("kernel/test_loss_derivatives.py", "privacy/test_class_weights.py"),
        audit="objective, class weights",
    ),
    Mutant(
        "moments of long rows",
        SUMS,
        "const double scale = norm > s->radius ? s->radius / norm : 1.0;",
        "const double scale = norm > 1e6 * s->radius ? s->radius / norm : 1.0;",
        "A row that is longer than the clip norm moves the moments farther than the noise is for.",
        ("kernel/test_feature_sums.py",),
        audit="noisy-gd, centred",
    ),
    Mutant(
        "moments of cells out of bounds",
        SUMS,
        "        clip(x, wide_dense);\n",
        "        clip(x, 0 * wide_dense);\n",
        "A cell beyond 1 moves the moments of its feature farther than the noise is for.",
        ("kernel/test_feature_sums.py",),
    ),
    Mutant(
        "errors counted twice",
        ERRORS,
        "s->data[model++] += wrong_rows(race->choice, t, group);",
        "s->data[model++] += 2 * wrong_rows(race->choice, t, group);",
        "A row changes a count of errors by 2, and the noise of a score is for 1.",
        ("kernel/test_misclassification.py",),
    ),
    # ---- exact noise
    Mutant(
        "half the exact Gaussian noise",
        EXACT,
        ">> (119 - 64 - bits);",
        ">> (120 - 64 - bits);",
        "All Gaussian noise has half its scale.",
        ("privacy/test_mechanisms.py",),
        audit="noisy-gd",
    ),
    Mutant(
        "half the exact spherical noise",
        EXACT,
        "const int shift = bits + g - 31;",
        "const int shift = bits + g - 32;",
        "All spherical noise has half its scale.",
        ("privacy/test_mechanisms.py",),
        audit="bolton",
    ),
    Mutant(
        "an angle that follows from the length",
        EXACT,
        "cosine_and_sine(uniform(stream, j + 1), size, negative);",
        "cosine_and_sine(uniform(stream, j), size, negative);",
        "The direction of the noise follows from its length.",
        ("privacy/test_mechanisms.py",),
        audit="noisy-gd",
    ),
    Mutant(
        "draws that are not certain",
        EXACT,
        "return (uint64_t) sum >= doubt && (uint64_t) sum <= -doubt;",
        "return doubt > 0;",
        "Numbers near the middle between two points of the grid are rounded by errors of the sampler.",
        ("privacy/test_mechanisms.py",),
    ),
    Mutant(
        "a recursion that forgets",
        RECURSION,
        "distance[i] = rest = alpha[i] + rho_next[i] * rest;",
        "distance[i] = rest = alpha[i] + 0.5 * rho_next[i] * rest;",
        "The sensitivity of averages is understated.",
        ("privacy/test_sgd_sensitivity.py",),
        audit="bolton, average",
    ),
)
