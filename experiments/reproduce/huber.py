"""Figure 6: Huber SVM, tuned privately."""

from __future__ import annotations

from experiments.reproduce.methods import HUBER_WIDTH
from experiments.reproduce.private_tuning import GRID, PrivateTuning


class Huber(PrivateTuning):
    """The paper's appendix: as figure 2, with another loss."""

    number, name = 6, "huber"
    title = "Huber SVM, tuned privately"
    settings = (
        f"Huber SVM with h = {HUBER_WIDTH}, tuned by Algorithm 3 over {GRID}, one-vs-all. boltdp's default and the "
        "rivals at their best have one model of all classes, with settings chosen from public numbers."
    )
    loss = "huber"
