"""Machines that Ray connects: joined, checked for the same version, and given parts of a study."""
