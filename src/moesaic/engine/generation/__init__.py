"""Generating text: sampling, sequences, batches, and the `LLM` people call. Needs torch."""
