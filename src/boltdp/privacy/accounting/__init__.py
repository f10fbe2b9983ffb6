"""Composition of several events and releases."""
