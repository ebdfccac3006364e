"""Impact with perfect foresight of the next layers: how much better predictions could help."""

from __future__ import annotations

from moesaic.policies.prefetch.impact import Impact


class OraclePrefetch(Impact):
    needs_future = True
