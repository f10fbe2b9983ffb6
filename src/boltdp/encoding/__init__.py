"""Encoding of cells as features."""
