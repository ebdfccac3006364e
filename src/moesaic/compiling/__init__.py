"""Planners and simulators as machine code: compiled once, kept on disk for later runs."""
