"""Faults in the algorithms and the workflows around them: what they do with noise, sums, samples and persons."""

from __future__ import annotations

from mutants.mutant import Mutant

SGD = "algorithms/_sgd.py"
BOLTON = "algorithms/bolton.py"
OBJECTIVE = "algorithms/objective.py"
NEWTON = "algorithms/_newton.py"
SCANS = "algorithms/noisy_gd.py"
SAMPLES = "algorithms/_row_sampling.py"
SELECT = "workflows/select.py"
STANDARDIZE = "workflows/standardize.py"
HISTOGRAMS = "workflows/histograms.py"
PLAN = "workflows/plan_training.py"
EVALUATE = "evaluation/evaluate.py"
MODEL = "model.py"
MONOTONE = "encoding/monotone.py"

MUTANTS = (
    # ---- noisy gradient descent
    Mutant(
        "look-ahead from raw sums",
        SCANS,
        "ahead = weights - step * event.momentum * direction",
        "ahead = weights - step * event.momentum * (\n"
        "            direction + (1.0 - event.momentum) * (summed - noisy) / problem.rows\n        )",
        "Where the next gradients are taken depends on sums that were not released.",
        ("algorithms/test_noisy_gd.py::test_points_and_weights_follow_from_the_releases_alone",),
        audit="noisy-gd, penalty",
    ),
    Mutant(
        "half the noise in the descent",
        SCANS,
        "gradient = noisy / problem.rows",
        "gradient = (noisy + summed) / 2 / problem.rows",
        "The weights follow sums with half the noise.",
        ("algorithms/test_noisy_gd.py::test_points_and_weights_follow_from_the_releases_alone",),
        audit="noisy-gd",
    ),
    Mutant(
        "the last scan without noise",
        SCANS,
        "gradient = noisy / problem.rows",
        "gradient = (summed if scan + 1 == event.scans else noisy) / problem.rows",
        "The last step follows a sum that was not released.",
        ("algorithms/test_noisy_gd.py::test_points_and_weights_follow_from_the_releases_alone",),
        audit="noisy-gd",
    ),
    Mutant(
        "equal noise in each scan",
        SCANS,
        "noisy = release_gradient(summed, job.certificate, job.randomness, scan=scan)",
        "first = release_gradient(0 * summed, job.certificate, job.randomness, scan=scan) if scan == 0 else first\n"
        "        noisy = summed + first",
        "The difference of two sums has no noise.",
        ("algorithms/test_noisy_gd.py::test_points_and_weights_follow_from_the_releases_alone",),
        audit="noisy-gd",
    ),
    Mutant(
        "gradients clipped to twice the norm",
        SCANS,
        "clip=event.clip,",
        "clip=2 * event.clip,",
        "A row moves a sum twice as far as the noise is for.",
        ("algorithms/test_noisy_gd.py::test_points_and_weights_follow_from_the_releases_alone",),
        audit="noisy-gd",
    ),
    # ---- objective perturbation
    Mutant(
        "half the linear term in the solver",
        OBJECTIVE,
        "                _center_penalty(linear, job),\n",
        "                _center_penalty(linear / 2, job),\n",
        "The objective is perturbed by half the noise that the certificate states.",
        ("algorithms/test_objective.py::test_each_model_is_the_minimiser_with_its_own_linear_term",),
        audit="objective",
    ),
    Mutant(
        "one linear term for all models",
        OBJECTIVE,
        "zip(job.positives, draw_linear_terms(job.certificate, job.randomness), strict=True)",
        "zip(job.positives, [draw_linear_terms(job.certificate, job.randomness)[0]] * len(job.positives), strict=True)",
        "All models of several classes have the same noise.",
        ("algorithms/test_objective.py::test_each_model_is_the_minimiser_with_its_own_linear_term",),
        audit="objective, three models",
    ),
    Mutant(
        "a weaker penalty than stated",
        NEWTON,
        "strength = problem.rows * problem.regularization\n    draw_error",
        "strength = problem.rows * problem.regularization / 2\n    draw_error",
        "A weaker penalty makes the minimiser more sensitive than the noise is for.",
        ("algorithms/test_objective.py",),
        audit="objective",
    ),
    Mutant(
        "a solver that stops early",
        NEWTON,
        "if 1.01 * point.norm + error <= limit:",
        "if 1.01 * point.norm + error <= 1e5 * limit:",
        "Where the solver stops depends on the rows more than the noise at the end hides.",
        ("algorithms/test_objective.py",),
        audit="objective",
    ),
    # ---- SGD
    Mutant(
        "the first partition counts fully",
        SGD,
        "total = shares[0] * weights[0]",
        "total = weights[0].copy()",
        "A row of the first partition moves the average farther than the noise is for.",
        ("algorithms/test_partitions.py", "privacy/test_attack_partitions.py"),
        audit="bolton, partitions",
    ),
    Mutant(
        "half the noise of updates",
        SGD,
        "                noise=noise,\n",
        "                noise=None if noise is None else replace(noise, scale=noise.scale / 2),\n",
        "Updates have half the noise that the certificate states.",
        ("algorithms/test_whitebox.py", "privacy/test_attack_whitebox.py"),
        audit="scs13",
    ),
    Mutant(
        "a known key of the noise in updates",
        SGD,
        "                key=key,\n",
        "                key=None if key is None else bytes(32),\n",
        "Whoever knows the key can compute the noise and subtract it.",
        ("algorithms/test_whitebox.py",),
        audit="scs13",
    ),
    Mutant(
        "persons forgotten in the plan of SGD",
        SGD,
        "            person_rows=problem.person_rows,\n",
        "            person_rows=None,\n",
        "The noise hides one row of a person, not all of them.",
        ("privacy/test_persons.py", "cli/test_persons.py"),
    ),
    Mutant(
        "permutation not fresh",
        SGD,
        "context.seed + first + number if 0 < number < fresh else None",
        "None",
        "The rows are not permuted before each pass as the certificate states.",
        ("algorithms/test_partitions.py", "workflows/test_train.py"),
    ),
    Mutant(
        "noise as the paper published it",
        BOLTON,
        "return make_output_perturbation(recipe, budget, analysis=analysis)",
        'return OutputPerturbation(recipe, make_output_perturbation(recipe, budget, analysis="paper").noise, analysis)',
        "The published sensitivity is too small for batches.",
        ("privacy/test_release.py", "workflows/test_train.py"),
        audit="bolton, convex",
    ),
    # ---- samples of rows
    Mutant(
        "a known sample of BST14",
        SAMPLES,
        "    key = draw_sample_key(random_bytes)\n",
        "    key = bytes(32)\n",
        "Sampling hides a row only if nobody knows which rows were sampled.",
        ("algorithms/test_row_sampling.py",),
    ),
    Mutant(
        "a known sample of DP-SGD",
        SAMPLES,
        "key, number = draw_sample_key(random_bytes), 0",
        "key, number = bytes(32), 0",
        "Sampling hides a row only if nobody knows which rows were sampled.",
        ("algorithms/test_row_sampling.py",),
    ),
    Mutant(
        "samples larger than stated",
        SAMPLES,
        "gap = -1.0 / math.log1p(-1.0 / batches)",
        "gap = -0.5 / math.log1p(-1.0 / batches)",
        "A row is in twice as many batches as the noise is for.",
        ("algorithms/test_row_sampling.py",),
        audit="dpsgd",
    ),
    # ---- workflows
    Mutant(
        "scores that ignore the rows of a person",
        SELECT,
        "changes, best, fewest = certificates[0].problem.changed_rows, None, np.inf",
        "changes, best, fewest = 1, None, np.inf",
        "The score of a trial hides one row of a person, not all of them.",
        ("workflows/test_tune.py",),
    ),
    Mutant(
        "the best trial by its true errors",
        SELECT,
        "            if score < fewest:\n                best, fewest = (number, weights), score",
        "            if errors < fewest:\n                best, fewest = (number, weights), errors",
        "The selection depends on counts of errors that were not released.",
        ("workflows/test_tune.py",),
    ),
    Mutant(
        "the best portion by its true errors",
        SELECT,
        "    if selection.epsilon is None:\n        number",
        "    if True:\n        number",
        "The selection depends on counts of errors that were not released.",
        ("workflows/test_tune.py",),
    ),
    Mutant(
        "candidates that share rows",
        SELECT,
        "algorithm.run(prepared.slice(*bounds[i]), [job]",
        "algorithm.run(prepared.slice(bounds[0][0], bounds[0][1]), [job]",
        "Rows of the first portion are used by every candidate, and are charged once.",
        ("workflows/test_tune.py",),
    ),
    Mutant(
        "one noise for all trials",
        SELECT,
        "jobs = [Job(self._certificates[number], next(forks)) for number in numbers]",
        "jobs = [Job(self._certificates[number], fork) for fork in [next(forks)] for number in numbers]",
        "With a seed, all trials of a batch have the same noise.",
        ("workflows/test_tune.py",),
    ),
    Mutant(
        "moments not clipped",
        STANDARDIZE,
        "FeatureSums(schema.unscaled.encoding.feature_map, clip_norm=schema.feature_clip_norm)",
        "FeatureSums(schema.unscaled.encoding.feature_map, clip_norm=1e3)",
        "A row that is longer than the clip norm moves the moments farther than the noise is for.",
        ("workflows/test_standardize.py", "privacy/test_noisy_moments.py"),
        audit="noisy-gd, centred",
    ),
    Mutant(
        "histograms without noise",
        HISTOGRAMS,
        "np.array(release_counts(counts.tolist(), event, random_bytes))",
        "counts.astype(float)",
        "The places of steps and the centres of features follow from exact counts.",
        ("workflows/test_histograms.py", "audit/test_audit.py::test_a_sound_training_stands_a_replay"),
        audit="histograms",
    ),
    Mutant(
        "histograms paid for one column",
        HISTOGRAMS,
        "make_noisy_histograms(taken, columns=columns, gaussian=gaussian, person_rows=persons)",
        "make_noisy_histograms(taken, columns=1, gaussian=gaussian, person_rows=persons)",
        "A row moves the counts of all columns, and the noise is for those of one.",
        ("workflows/test_histograms.py",),
    ),
    Mutant(
        "persons forgotten in histograms",
        HISTOGRAMS,
        "persons = schema.max_rows_per_person",
        "persons = None",
        "The noise of histograms hides one row of a person, not all of them.",
        ("workflows/test_histograms.py",),
    ),
    Mutant(
        "Gaussian histograms beside a training for the whole budget",
        PLAN,
        "shared = algorithm.share_budget(shared, budget, other_mu=standardization.event.mu or 0.0)",
        "shared = algorithm.share_budget(shared, budget, other_mu=1e-9)",
        "The training spends the whole budget, as if nothing had been released before it.",
        ("workflows/test_histograms.py",),
    ),
    Mutant(
        "curves of another model",
        STANDARDIZE,
        "    if schema.has_private_curves:\n        raise ParameterError(",
        "    if False:\n        raise ParameterError(",
        "A training uses places that another model has paid for, and charges nothing for them.",
        ("workflows/test_histograms.py",),
    ),
    Mutant(
        "persons forgotten in moments",
        STANDARDIZE,
        "        person_rows=schema.max_rows_per_person,\n",
        "        person_rows=None,\n",
        "The noise of moments hides one row of a person, not all of them.",
        ("workflows/test_standardize.py", "privacy/test_persons.py"),
    ),
    Mutant(
        "the whole budget for each class",
        PLAN,
        "share, asked = None if budget is None else budget.split(models), settings.class_weights",
        "share, asked = budget, settings.class_weights",
        "The models of several classes together spend more than the budget.",
        ("workflows/test_plan_training.py", "workflows/test_train.py"),
    ),
    Mutant(
        "persons forgotten in the plan",
        PLAN,
        "        person_rows=schema.max_rows_per_person,\n    )\n    check_size",
        "        person_rows=None,\n    )\n    check_size",
        "The noise hides one row of a person, not all of them.",
        ("privacy/test_persons.py", "cli/test_persons.py"),
    ),
    Mutant(
        "persons forgotten in a private evaluation",
        EVALUATE,
        "summed=True, person_rows=model.schema.max_rows_per_person)",
        "summed=True, person_rows=None)",
        "The noise of the counts hides one row of a person, not all of them.",
        ("evaluation/test_private.py",),
    ),
    Mutant(
        "all rows of a person in a private evaluation",
        EVALUATE,
        "limited=True, context=context",
        "limited=False, context=context",
        "A person with more rows than count moves the counts farther than the noise is for.",
        ("evaluation/test_private.py",),
    ),
    # ---- monotone columns
    Mutant(
        "monotone columns as released",
        MODEL,
        "round_to_release_grid(make_monotone(schema.encoding, weights[0]), certificate)[np.newaxis]",
        "round_to_release_grid(weights[0], certificate)[np.newaxis]",
        "Noise makes scores fall with a number where the schema declares that they never do.",
        ("workflows/test_monotone.py::test_trained_models_are_monotone_and_verified",),
    ),
    Mutant(
        "monotone columns in the norm",
        MONOTONE,
        "factors[part] /= UNIT",
        "factors[part] /= 1.0",
        "A row that gets long by a monotone column is shortened, and its score falls again.",
        ("workflows/test_monotone.py::test_scores_are_monotone_in_the_kernel_and_in_sql",),
    ),
)
