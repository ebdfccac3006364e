"""Impact with perfect foresight of the next layers: how much better predictions could help."""

from __future__ import annotations

from moesaic.policies.prefetch.impact import Impact


class OraclePrefetch(Impact):
    needs_future = True

    def __init__(self, lookahead: int = 3) -> None:
        super().__init__(lookahead, read_ahead=0)
