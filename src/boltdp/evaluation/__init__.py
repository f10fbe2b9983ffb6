"""How well a model predicts: exact metrics, or private ones by noisy counts."""
