"""Train classifiers and regressions with differential privacy where the sensitive data already lives."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    "Number",
    "Numeric",
    "ParameterError",
    "PrivacyWarning",
    "PrivateGridSearch",
    "PrivateHuberSVM",
    "PrivateLogisticRegression",
    "PrivateRegressor",
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
    from boltdp.estimators import PrivateGridSearch, PrivateHuberSVM, PrivateLogisticRegression, PrivateRegressor
    from boltdp.ledger import BudgetExceeded, LedgerError
    from boltdp.model import ModelFileError
    from boltdp.privacy.certificate import Certificate, CertificateError
    from boltdp.schema.schema import Categorical, Classes, Number, Numeric, Schema, TimePart, Vector
    from boltdp.settings import Settings
    from boltdp.workflows.draft_schema import check
else:
    # Imported when asked for: scikit-learn, Arrow and DuckDB take a second, which commands that don't use them save.
    _MODULES = {
        "boltdp.api": "Model train tune",
        "boltdp.engines": "open_source",
        "boltdp.errors": "BoltdpError DataError MissingPackageError ParameterError PrivacyWarning SolverError",
        "boltdp.estimators": "PrivateGridSearch PrivateHuberSVM PrivateLogisticRegression PrivateRegressor",
        "boltdp.ledger": "BudgetExceeded LedgerError",
        "boltdp.model": "ModelFileError",
        "boltdp.privacy.certificate": "Certificate CertificateError",
        "boltdp.schema.schema": "Categorical Classes Number Numeric Schema TimePart Vector",
        "boltdp.settings": "Settings",
        "boltdp.workflows.draft_schema": "check",
    }

    def __getattr__(name: str) -> Any:
        for module, names in _MODULES.items():
            if name in names.split():
                return getattr(import_module(module), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
