"""Train classifiers with differential privacy where the sensitive data already lives."""

from typing import TYPE_CHECKING

from boltdp._version import __version__ as __version__

__all__ = [
    "BoltdpError",
    "Certificate",
    "Classes",
    "Model",
    "PrivacyWarning",
    "PrivateGridSearch",
    "PrivateHuberSVM",
    "PrivateLogisticRegression",
    "Schema",
    "Settings",
    "check",
    "open_source",
    "train",
    "tune",
]

if TYPE_CHECKING:
    from boltdp.api import Model, train, tune
    from boltdp.engines import open_source
    from boltdp.errors import BoltdpError, PrivacyWarning
    from boltdp.estimators import PrivateGridSearch, PrivateHuberSVM, PrivateLogisticRegression
    from boltdp.privacy.certificate import Certificate
    from boltdp.schema.schema import Classes, Schema
    from boltdp.settings import Settings
    from boltdp.workflows.summarize import check
else:
    # Imported when asked for: scikit-learn, Arrow and DuckDB take a second, which commands that don't use them save.
    from boltdp._lazy import attributes

    __getattr__, __dir__ = attributes(
        __name__,
        {
            "BoltdpError": "boltdp.errors",
            "Certificate": "boltdp.privacy.certificate",
            "Classes": "boltdp.schema.schema",
            "Model": "boltdp.api",
            "PrivacyWarning": "boltdp.errors",
            "PrivateGridSearch": "boltdp.estimators",
            "PrivateHuberSVM": "boltdp.estimators",
            "PrivateLogisticRegression": "boltdp.estimators",
            "Schema": "boltdp.schema.schema",
            "Settings": "boltdp.settings",
            "check": "boltdp.workflows.summarize",
            "open_source": "boltdp.engines",
            "train": "boltdp.api",
            "tune": "boltdp.api",
        },
    )
