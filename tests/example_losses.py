"""An example of every loss, so that one that is added to `LOSSES` is tested wherever these are."""

from __future__ import annotations

import dataclasses

from boltdp.losses import LOSSES, Loss


def example(kind: type[Loss], *, classes: int = 3) -> Loss:
    """One of the kind, with its defaults; what must be said of it is how many classes there are."""
    assert dataclasses.is_dataclass(kind)
    needed = [field for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]
    loss: Loss = kind(*[classes] * len(needed))
    return loss


def every_loss(*, classes: int = 3) -> tuple[Loss, ...]:
    """Of all classes at once those that are."""
    return tuple(example(kind, classes=classes) for kind in LOSSES.values())


def smooth_losses(*, classes: int = 3) -> tuple[Loss, ...]:
    """Those whose slopes have no kinks."""
    return tuple(loss for loss in every_loss(classes=classes) if loss.simplex.kink_curvature is None)
