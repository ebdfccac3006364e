"""The brain: pure decisions over plain values. No torch, no clock, no I/O, no machine."""
