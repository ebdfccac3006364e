"""The vocabulary every other layer speaks: values only, no clock, no I/O, no torch."""
