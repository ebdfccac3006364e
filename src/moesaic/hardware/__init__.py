"""Machines as data: every number with its unit and its source (`data/*.toml`)."""
