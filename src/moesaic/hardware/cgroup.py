"""What the control group of this process allows it: cores' worth of time, and memory.

Containers and job schedulers limit a process this way, and nothing else in /proc shows it. Both
versions are read, also side by side: v2 (one tree) and v1 (one tree per controller). A limit
counts for everything below it, so every group up to the mounted root is looked at; in a container
the upper ones, or the own path, may not be visible, and are then passed over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from moesaic.hardware.procfs import read, whole

_UNLIMITED = 2**62  # v1 writes "no limit" as the largest whole number of pages


class MemoryLimit(NamedTuple):
    limit_bytes: int
    free_bytes: int  # what the group may still take; cached files count as free


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores' worth of time this process may use; None without a limit."""
    quotas = []
    for group in _groups(root, "cpu"):
        v1 = (read(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        words = read(group / "cpu.max").split() or list(v1)
        quota, period = map(whole, words) if len(words) == 2 else (None, None)
        if quota and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def memory_limits(root: Path = Path("/")) -> list[MemoryLimit]:
    """Every limit that holds for this process."""
    limits = (_memory_limit(group) for group in _groups(root, "memory"))
    return [limit for limit in limits if limit is not None]


def _memory_limit(group: Path) -> MemoryLimit | None:
    limit = whole(read(group / "memory.max") or read(group / "memory.limit_in_bytes"))
    if limit is None or limit >= _UNLIMITED:
        return None
    used = whole(read(group / "memory.current") or read(group / "memory.usage_in_bytes")) or 0
    busy = max(0, used - _cached_files(group))
    return MemoryLimit(limit, max(0, limit - busy))


def _cached_files(group: Path) -> int:
    """File pages not used of late: the kernel drops them before it refuses memory."""
    lines = (line.partition(" ") for line in read(group / "memory.stat").splitlines())
    stat = {key: whole(value) for key, _, value in lines}
    # v1 counts the groups below only in the total
    return stat.get("total_inactive_file") or stat.get("inactive_file") or 0


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's group and those above it, wherever they are mounted."""
    mounted = root / "sys/fs/cgroup"
    for line in read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:  # v2; beside v1 trees it is mounted as "unified"
            trees = (mounted, mounted / "unified")
        elif controller in controllers.split(","):
            trees = (mounted / controller, mounted / controllers)
        else:
            continue
        names = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
        for tree in trees:
            yield from (tree.joinpath(*names[:depth]) for depth in range(len(names), -1, -1))
