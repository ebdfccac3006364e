"""Kinds of attention: what they compute, and what is kept of every sequence."""
