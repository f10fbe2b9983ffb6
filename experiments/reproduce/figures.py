"""All figures, in the paper's order."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.reproduce.batches import Batches
from experiments.reproduce.effort import Effort
from experiments.reproduce.figure import Figure
from experiments.reproduce.huber import Huber
from experiments.reproduce.more_data import MoreData
from experiments.reproduce.passes import Passes
from experiments.reproduce.private_tuning import PrivateTuning
from experiments.reproduce.public_tuning import PublicTuning
from experiments.reproduce.runtime import Runtime
from experiments.reproduce.scale import Scale

FIGURES: Mapping[str, Figure] = {
    figure.name: figure
    for figure in (
        PublicTuning(),
        PrivateTuning(),
        Passes(),
        Runtime(),
        Scale(),
        Huber(),
        MoreData(),
        Batches(),
        Effort(),
    )
}
