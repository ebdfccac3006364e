"""What a routing trace is like, in numbers: load, locality, caches, layers, batches."""
