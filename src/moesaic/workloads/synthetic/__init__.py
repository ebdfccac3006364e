"""Synthetic routing whose statistics are those of a real trace, for models of any shape."""
