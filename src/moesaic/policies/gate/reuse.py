"""What a token that runs again takes over from its rejected pass, see base.Gate.reuse."""

ROUTE_AGAIN, REUSE_EXPERTS, REUSE_ROUTING = "none", "experts", "routing"
REUSES = (ROUTE_AGAIN, REUSE_EXPERTS, REUSE_ROUTING)
