"""Pre-gated MoE: gates are retrained to choose the next layer's experts one layer early, so what is
prefetched is what is used. A model must be trained for it: for simulated runs."""

from __future__ import annotations

from moesaic.policies.prefetch.next_layer import NextLayer


class PreGated(NextLayer):
    needs_future = True
