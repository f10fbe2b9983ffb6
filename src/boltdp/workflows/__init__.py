"""Workflows over algorithms and engines: plan, train, tune, compare."""
