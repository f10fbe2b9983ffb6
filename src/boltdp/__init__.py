"""Train classifiers with differential privacy where the sensitive data already lives."""

from typing import TYPE_CHECKING

from boltdp._version import __version__ as __version__

__all__ = [
    "BoltdpError",
    "BudgetExceeded",
    "Categorical",
    "Certificate",
    "CertificateError",
    "Classes",
    "DataError",
    "LedgerError",
    "MissingPackageError",
    "Model",
    "ModelFileError",
    "Numeric",
    "ParameterError",
    "PrivacyWarning",
    "PrivateGridSearch",
    "PrivateHuberSVM",
    "PrivateLogisticRegression",
    "Schema",
    "Settings",
    "SolverError",
    "TimePart",
    "Vector",
    "check",
    "open_source",
    "train",
    "tune",
]

if TYPE_CHECKING:
    from boltdp.api import Model, train, tune
    from boltdp.engines import open_source
    from boltdp.errors import BoltdpError, DataError, MissingPackageError, ParameterError, PrivacyWarning, SolverError
    from boltdp.estimators import PrivateGridSearch, PrivateHuberSVM, PrivateLogisticRegression
    from boltdp.ledger import BudgetExceeded, LedgerError
    from boltdp.model import ModelFileError
    from boltdp.privacy.certificate import Certificate, CertificateError
    from boltdp.schema.schema import Categorical, Classes, Numeric, Schema, TimePart, Vector
    from boltdp.settings import Settings
    from boltdp.workflows.summarize import check
else:
    # Imported when asked for: scikit-learn, Arrow and DuckDB take a second, which commands that don't use them save.
    from boltdp._lazy import attributes

    __getattr__, __dir__ = attributes(
        __name__,
        {
            "BoltdpError": "boltdp.errors",
            "BudgetExceeded": "boltdp.ledger",
            "Categorical": "boltdp.schema.schema",
            "Certificate": "boltdp.privacy.certificate",
            "CertificateError": "boltdp.privacy.certificate",
            "Classes": "boltdp.schema.schema",
            "DataError": "boltdp.errors",
            "LedgerError": "boltdp.ledger",
            "MissingPackageError": "boltdp.errors",
            "Model": "boltdp.api",
            "ModelFileError": "boltdp.model",
            "Numeric": "boltdp.schema.schema",
            "ParameterError": "boltdp.errors",
            "PrivacyWarning": "boltdp.errors",
            "PrivateGridSearch": "boltdp.estimators",
            "PrivateHuberSVM": "boltdp.estimators",
            "PrivateLogisticRegression": "boltdp.estimators",
            "Schema": "boltdp.schema.schema",
            "Settings": "boltdp.settings",
            "SolverError": "boltdp.errors",
            "TimePart": "boltdp.schema.schema",
            "Vector": "boltdp.schema.schema",
            "check": "boltdp.workflows.summarize",
            "open_source": "boltdp.engines",
            "train": "boltdp.api",
            "tune": "boltdp.api",
        },
    )
