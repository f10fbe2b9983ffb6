"""Faults that are planted into the source one at a time, and which tests and audits catch each: `make mutants`."""
