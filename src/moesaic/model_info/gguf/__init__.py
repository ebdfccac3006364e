"""GGUF files: their header, their parts, and the model their metadata describes."""
