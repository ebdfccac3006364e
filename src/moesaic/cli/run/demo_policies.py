"""What the demo compares, on this machine and on a simulated one: the known systems, which differ
in everything, then caches under Moesaic's own schedule."""

from __future__ import annotations

from typing import Any, NamedTuple

from moesaic.policies.systems import SYSTEMS

OWN = "moesaic"
_OTHER_CACHES = ("lru", "lfu", "mrs")


class Entry(NamedTuple):
    label: str
    options: dict[str, Any]


ENTRIES = (
    *(Entry(system, {"system": system}) for system in SYSTEMS),
    *(Entry(f"{OWN}+{cache}", {"system": OWN, "cache": cache}) for cache in _OTHER_CACHES),
)
