"""What the engine knows, over HTTP: where every expert was and why it ran where it did."""
