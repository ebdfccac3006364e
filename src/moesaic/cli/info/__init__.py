"""Verbs that list what there is."""
