"""The audit as a whole: what is claimed, what was found, and whether the claim is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from boltdp.audit.black_box import CONFIDENCES, BlackBox, run_black_box
from boltdp.audit.exact_loss import ExactLoss, compute_exact_loss
from boltdp.audit.neighbouring_tables import generate_pairs
from boltdp.audit.replay_on_neighbours import Replay, list_releases, replay_pairs
from boltdp.audit.subject import Subject, make_subject
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.event import Training
from boltdp.privacy.events.label_quantiles import LabelQuantiles
from boltdp.privacy.events.noisy_sgd import NoisyUpdates
from boltdp.privacy.events.objective_perturbation import ObjectivePerturbation
from boltdp.schema.schema import Schema

#: Pairs of neighbouring tables in a replay.
PAIRS = 48
#: Maximum probability that a test rejects correct noise, over all kinds of releases together.
MISTAKE = 1e-4
#: Rows of the person in which neighbours differ, for each one that counts.
ROWS_PER_COUNTED = 4


@dataclass(frozen=True)
class Finding:
    """One line of a report."""

    method: str
    what: str
    claimed: str
    found: str
    broken: bool


@dataclass(frozen=True)
class Report:
    """The findings of an audit."""

    certificate: Certificate
    audited: Subject
    replay: Replay
    exact: tuple[ExactLoss, ...]
    black_boxes: tuple[BlackBox, ...]

    @property
    def broken(self) -> bool:
        return any(finding.broken for finding in self.findings)

    @property
    def findings(self) -> list[Finding]:
        replay = self.replay
        lines = []
        for one in replay.releases:
            faults = one.list_faults(mistake=MISTAKE / len(replay.releases))
            far = f"{one.release.privacy_unit} moves it {one.ratio:.3f} sensitivities, {one.pairs} neighbours"
            what = f"{one.release.claim.name}: {one.release.name}"
            lines.append(Finding("replay", what, "at most 1", "; ".join(faults) or far, bool(faults)))
        for choices in replay.choices:
            faults = choices.list_faults()
            far = f"a score changes by {choices.ratio:.3f} sensitivities, {choices.pairs} neighbours"
            what = f"{choices.claim.name}: scores"
            lines.append(Finding("replay", what, "at most 1", "; ".join(faults) or far, bool(faults)))
        if replay.releases:
            leak = (
                f"differs for {replay.leaks} of {replay.releases[0].pairs} neighbours" if replay.leaks else "the same"
            )
            unstated = f"; {replay.unstated} releases are not in the certificate" if replay.unstated else ""
            broken = bool(replay.leaks or replay.unstated)
            lines.append(Finding("replay", "all else that is released", "the same bits", leak + unstated, broken))
            bits = "used once"
            if replay.repeated_draws:
                bits = f"{replay.repeated_draws:,} draws have the noise of another"
            elif replay.reused_words:
                bits = f"{replay.reused_words:,} words of 64 bits were used again"
            lines.append(Finding("replay", "random bits", "used once", bits, bits != "used once"))
        if any(isinstance(claim.event, ObjectivePerturbation) for claim in self.audited.replayed_claims):
            found = (
                f"missed in {replay.unsolved} of {replay.releases[0].pairs} trainings" if replay.unsolved else "found"
            )
            lines.append(Finding("replay", "minimum of the objective", "found", found, bool(replay.unsolved)))
        for exact in self.exact:
            budget, found = exact.claim.budget, f"epsilon = {exact.epsilon:.4g}"
            found += f" ({exact.epsilon / budget.epsilon:.0%})"
            if budget.delta:
                low, high = exact.delta_range
                found += f", delta = {exact.delta:.3g}" if low == high else f", delta from {low:.2g} to {high:.2g}"
            lines.append(Finding("exact loss", exact.claim.name, budget.describe(), found, exact.broken))
        for box in self.black_boxes:
            shares = (
                f"epsilon = {epsilon:.3g} ({epsilon / box.claim.budget.epsilon:.0%}) at {confidence:.1%}"
                for epsilon, confidence in zip(box.epsilon, CONFIDENCES, strict=True)
            )
            found = ", ".join(shares)
            lines.append(Finding("black box", box.claim.name, box.claim.budget.describe(), found, box.broken))
        return lines

    @property
    def notes(self) -> list[str]:
        """What the audit left out, or ran with fewer rows or features than claimed."""
        notes = []
        replayed, claimed = self.audited.certificate.problem, self.certificate.problem
        fewer = [
            f"{one:,} {what} instead of {all_:,}"
            for one, all_, what in (
                (replayed.rows, claimed.rows, "made-up rows"),
                (replayed.dims, claimed.dims, "features"),
            )
            if one < all_
        ]
        if fewer and self.replay.releases:
            notes.append(f"Replayed with {' and '.join(fewer)}, the noise planned again.")
        if any(isinstance(claim.event, NoisyUpdates) for claim in self.audited.replayed_claims):
            notes.append("Noise that is drawn inside the kernel is audited as a black box only.")
        notes += [f"Not audited: {what}." for what in self.audited.left_out]
        return notes

    @property
    def verdict(self) -> str:
        if self.broken:
            return "BROKEN: more is shown than the model claims."
        return "Nothing contradicts the claim."

    def to_dict(self) -> dict[str, Any]:
        budget = self.certificate.budget
        assert budget is not None
        return {
            "broken": self.broken,
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "algorithm": self.certificate.algorithm,
            "rows": self.certificate.problem.rows,
            "replayed_rows": self.audited.rows,
            "features": self.certificate.problem.dims,
            "replayed_features": self.audited.certificate.problem.dims,
            "replay": [
                {
                    "stage": one.release.claim.name,
                    "release": one.release.name,
                    "sensitivity": one.release.sensitivity,
                    "largest_ratio": one.ratio,
                    "neighbours": one.pairs,
                    "worst": str(one.worst),
                    "faults": one.list_faults(mistake=MISTAKE / len(self.replay.releases)),
                }
                for one in self.replay.releases
            ]
            + [
                {
                    "stage": one.claim.name,
                    "release": "scores",
                    "sensitivity": one.event.sensitivity,
                    "largest_ratio": one.ratio,
                    "neighbours": one.pairs,
                    "worst": str(one.worst),
                    "faults": one.list_faults(),
                }
                for one in self.replay.choices
            ],
            "leaks": self.replay.leaks,
            "unstated_releases": self.replay.unstated,
            "missed_minima": self.replay.unsolved,
            "reused_random_words": self.replay.reused_words,
            "repeated_draws": self.replay.repeated_draws,
            "exact_loss": [
                {
                    **one.claim.to_dict(),
                    "epsilon": one.epsilon,
                    "delta": one.delta,
                    "delta_range": list(one.delta_range),
                    "worst": one.pair,
                    "how": one.how,
                    "curve": [list(point) for point in one.curve],
                    "broken": one.broken,
                }
                for one in self.exact
            ],
            "black_box": [
                {
                    **one.claim.to_dict(),
                    "trials": one.trials,
                    "proved": {
                        f"{confidence:g}": epsilon for confidence, epsilon in zip(CONFIDENCES, one.epsilon, strict=True)
                    },
                    "false_and_true_positive_rates": [list(point) for point in one.rates],
                    "worst": one.pair,
                    "broken": one.broken,
                }
                for one in self.black_boxes
            ],
            "notes": self.notes,
            "verdict": self.verdict,
        }


def audit(
    schema: Schema,
    certificate: Certificate,
    *,
    trials: int | None = None,
    seed: int = 0,
    changed: int | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Report:
    """Attack the claim of a certificate by replay, by its exact loss, and as a black box, on synthetic rows.

    `seed` determines the synthetic rows and the search, never the noise; `trials` is the number of trainings of the
    black box on each of two datasets. `changed` rows differ between neighbours of a replay: by default one, or, where
    persons are protected, all rows of a person, who has more than `max_rows_per_person` of them.
    """
    audited, random = make_subject(schema, certificate), np.random.default_rng(seed)
    replay = Replay([])
    if changed is None:
        changed = 1 if schema.max_rows_per_person is None else ROWS_PER_COUNTED * schema.max_rows_per_person
        changed = min(changed, audited.rows)
    if any(list_releases(claim) or isinstance(claim.event, LabelQuantiles) for claim in audited.replayed_claims):
        tables = list(islice(generate_pairs(audited.schema, audited.rows, seed=seed, changed=changed), PAIRS))
        replay = replay_pairs(audited, tables, lambda done: progress("replay", done, PAIRS))
    exact = []
    # The loss of other releases than the stated ones is unknown; the replay has found them.
    uneven = {one.release.claim.name for one in replay.releases if one.draws_differ}
    by_kind = {one.release.claim.name: one for one in replay.releases}
    for number, claim in enumerate(audited.claims):
        progress("exact loss", number, len(audited.claims))
        if claim.name in uneven:
            continue
        found = compute_exact_loss(claim, by_kind.get(claim.name), random=random)
        if found is not None:
            exact.append(found)
    boxes = [
        run_black_box(claim, trials=trials, random=random, done=partial(progress, "black box"))
        for claim in audited.claims
        if isinstance(claim.event, Training)
    ]
    return Report(certificate, audited, replay, tuple(exact), tuple(boxes))
