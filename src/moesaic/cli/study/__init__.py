"""Commands that measure or simulate."""
