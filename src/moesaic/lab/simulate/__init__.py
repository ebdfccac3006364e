"""Simulated runs: settings and a trace in, a result out."""
