"""Networks and their checkpoints, except the routed experts, which a service computes."""
