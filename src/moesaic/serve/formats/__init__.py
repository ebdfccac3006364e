"""Formats in which families of models write tool calls and reasoning, one per file."""
