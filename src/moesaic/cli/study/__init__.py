"""Verbs that measure or simulate."""
