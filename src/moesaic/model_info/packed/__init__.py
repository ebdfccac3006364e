"""Packed models, as `moesaic pack` writes them: which files they have and what those say."""
