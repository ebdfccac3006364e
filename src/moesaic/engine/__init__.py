"""The inference engine: loads a model, plans its memory, batches requests, samples tokens."""
