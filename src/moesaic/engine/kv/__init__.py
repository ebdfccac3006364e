"""Blocks of the KV cache: which are free, which sequences share, which prefixes are kept."""
