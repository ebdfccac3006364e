"""Verbs on routing traces."""
