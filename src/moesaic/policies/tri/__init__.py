"""Scheduling of one MoE layer over a GPU, a CPU and DIMMs that compute (TriMoE), as functions over
flat arrays: no machine, no clock. Schedules and layouts by name are made of these."""
