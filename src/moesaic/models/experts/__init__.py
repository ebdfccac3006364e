"""Which experts a token uses, and the service that computes them."""
