"""What a model looks like: shapes, counts and sizes from its config, no weights."""
