"""An audit that anyone can run, without private rows: what is claimed, attacked on rows that it makes itself.

    `replay`      each release's inputs on neighbouring tables, beside the sensitivity that its noise is for
    `exactloss`   the privacy loss of what is released, on the worst rows that an optimiser finds
    `blackbox`    what thousands of trainings prove

Nothing that trains imports it: see the contract in pyproject.toml.
"""

from boltdp.audit.report import Report, audit

__all__ = ["Report", "audit"]
