"""The paper's whole evaluation again, one file a figure: `python -m experiments.reproduce`. README.md has the map."""
