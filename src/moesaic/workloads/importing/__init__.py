"""Routing that other programs have recorded, as documents of a trace: one file per program."""
