"""The vocabulary every other layer speaks: plain values, no clock, no policy, no torch."""
