"""An audit that anyone can run without private rows: it attacks a claimed guarantee on synthetic rows.

    `replay`       compares the inputs of each release on neighbouring tables with the claimed sensitivity
    `exact_loss`   computes the privacy loss on the worst rows that an optimiser finds
    `black_box`    proves a lower bound on epsilon from thousands of trainings

No training code imports it: see the contract in pyproject.toml.
"""

from boltdp.audit.report import Report, audit

__all__ = ["Report", "audit"]
