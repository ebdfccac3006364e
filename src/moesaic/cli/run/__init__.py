"""Verbs that generate text."""
