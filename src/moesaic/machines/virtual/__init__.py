"""A machine with real tokens and a virtual clock: the network is computed, time is simulated."""
