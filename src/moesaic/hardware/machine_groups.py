"""Names for several machines that are compared together."""

from __future__ import annotations

from collections.abc import Iterable

# What people own, from desktops to one superchip; all with the same assumptions on software.
OWN = (
    "rtx5070-r7-9700x",
    "rtx3090-r9-5950x",
    "rtx4090-i9-13900k",
    "rtx5090-r9-9950x",
    "rtx4090-2x6454s",
    "gh200-480gb",
    "dgx-spark",
)
GROUPS = {"own": OWN}


def expanded_groups(names: Iterable[str]) -> list[str]:
    """The machines, each once, with those of a group in its place."""
    found = (machine for name in names for machine in GROUPS.get(name.lower(), (name,)))
    return list(dict.fromkeys(found))
