"""Commands on routing traces."""
