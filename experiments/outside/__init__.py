"""Auditors that others have published, on boltdp: the testers of DP-Auditorium, and Re:cord-play.

`python -m experiments.outside` prints the tables of docs/outside_audits.md.
"""
