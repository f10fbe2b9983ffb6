"""The C kernel and its bindings: passes of SGD, sums over rows, packing rows and reading their features."""
