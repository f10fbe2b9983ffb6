"""Train classifiers with differential privacy where the sensitive data already lives."""

__version__ = "0.1.0"
