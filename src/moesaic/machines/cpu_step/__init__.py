"""The executor that runs a decode step on a CPU as one native call."""
