"""What happens in which order, over algorithms and engines: plan, train, tune, compare."""
