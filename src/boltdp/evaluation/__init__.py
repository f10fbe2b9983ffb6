"""Evaluation of models: exact metrics, or private ones from noisy counts."""
