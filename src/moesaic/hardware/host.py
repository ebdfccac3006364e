"""What this computer has, as its kernel reports: processor, memory, huge pages, GPUs.

Needs no other package and measures nothing. Every function reads below `root`; what is missing
or may not be read is None or empty, never an error: on a system without /proc little is known,
and nothing breaks.

Containers and job schedulers limit a process by its control group (cores' worth of time, and
memory), and nothing else in /proc shows it. Both
versions are read, also side by side: v2 (one tree) and v1 (one tree per controller). A limit
counts for everything below it, so every group up to the mounted root is looked at; in a container
the upper ones, or the own path, may not be visible, and are then passed over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from moesaic.core.numa import Node, Nodes, parse_cores
from moesaic.hardware.procfs import fields, kib, read, whole

ROOT = Path("/")
# Instruction sets that expert arithmetic can use, x86 then ARM, the most useful first.
ISA = (
    *("amx_tile", "amx_bf16", "amx_int8"),
    *("avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_bf16", "avx512_vnni"),
    *("avx_vnni", "avx2", "f16c", "fma"),
    *("sme2", "sme", "sve2", "sve", "bf16", "i8mm", "asimddp", "asimdhp", "asimd"),
)
_UNLIMITED = 2**62  # v1 writes "no limit" as the largest whole number of pages


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    bus: str | None  # PCI address


@dataclass(frozen=True, slots=True)
class NumaNode:
    number: int
    cpus: str  # as the kernel lists them: "0-7,16-23"; empty for memory without cores
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Host:
    cpu: str | None  # model name
    cores: int  # logical ones this process may keep busy
    isa: tuple[str, ...]  # of `ISA`
    memory_bytes: int | None  # what the computer has, or this process is allowed
    available_bytes: int | None  # of it, now
    huge_pages: str | None  # transparent ones: "always", "madvise" or "never"
    huge_pages_on_request: bool  # whether this process gets them by asking (madvise)
    numa_nodes: tuple[NumaNode, ...]
    gpus: tuple[Gpu, ...]  # NVIDIA's, as its driver lists them


def this_host(root: Path = ROOT) -> Host:
    total, available = memory(root)
    return Host(
        cpu=cpu_name(root),
        cores=usable_cores(root),
        isa=isa(root),
        memory_bytes=total,
        available_bytes=available,
        huge_pages=huge_pages(root),
        huge_pages_on_request=huge_pages_on_request(root),
        numa_nodes=numa_nodes(root),
        gpus=gpus(root),
    )


def cpu_name(root: Path = ROOT) -> str | None:
    info = _cpuinfo(root)
    if "CPU part" in info:  # 64-bit ARM kernels give numbers only
        return f"ARM CPU, implementer {info.get('CPU implementer')}, part {info['CPU part']}"
    return info.get("model name") or None


def isa(root: Path = ROOT) -> tuple[str, ...]:
    info = _cpuinfo(root)
    flags = info.get("flags", info.get("Features", "")).split()
    return tuple(name for name in ISA if name in flags)


def usable_cores(root: Path = ROOT) -> int:
    """Cores this process is bound to, at most its quota: rounded down, since threads that wait
    for each other would all wait for the one without time left."""
    if hasattr(os, "sched_getaffinity"):
        bound = len(os.sched_getaffinity(0))
    else:
        bound = os.cpu_count() or 1
    quota = cpu_quota(root)
    return bound if quota is None else max(1, min(bound, int(quota)))


def memory(root: Path = ROOT) -> tuple[int | None, int | None]:
    """Bytes in total and bytes available, within what the control group allows."""
    info, limits = fields(read(root / "proc/meminfo")), memory_limits(root)
    totals = [kib(info.get("MemTotal", "")), *(limit.limit_bytes for limit in limits)]
    free = [kib(info.get("MemAvailable", "")), *(limit.free_bytes for limit in limits)]
    return _least(totals), _least(free)


def huge_pages(root: Path = ROOT) -> str | None:
    """The chosen one of "always [madvise] never"."""
    words = read(root / "sys/kernel/mm/transparent_hugepage/enabled").split()
    return next((word.strip("[]") for word in words if word.startswith("[")), None)


def huge_pages_on_request(root: Path = ROOT) -> bool:
    """The system's setting, unless the parent process switched them off for it."""
    off = fields(read(root / "proc/self/status")).get("THP_enabled") == "0"
    return huge_pages(root) in ("always", "madvise") and not off


def numa_nodes(root: Path = ROOT) -> tuple[NumaNode, ...]:
    found = []
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        number = whole(folder.name.removeprefix("node"))
        if number is None:
            continue
        memory_kib = fields(read(folder / "meminfo")).get(f"Node {number} MemTotal", "")
        found.append(NumaNode(number, read(folder / "cpulist").strip(), kib(memory_kib)))
    return tuple(sorted(found, key=lambda node: node.number))


def usable_nodes(root: Path = ROOT) -> Nodes:
    """Memory nodes with cores that this process may use."""
    if not hasattr(os, "sched_getaffinity"):
        return ()
    bound, found = os.sched_getaffinity(0), []
    for node in numa_nodes(root):
        cores = tuple(core for core in parse_cores(node.cpus) if core in bound)
        if cores:
            found.append(Node(node.number, cores))
    return tuple(found)


def gpus(root: Path = ROOT) -> tuple[Gpu, ...]:
    found = []
    for folder in sorted((root / "proc/driver/nvidia/gpus").glob("*")):
        info = fields(read(folder / "information"))
        if "Model" in info:
            found.append(Gpu(info["Model"], info.get("Bus Location")))
    return tuple(found)


def _cpuinfo(root: Path) -> dict[str, str]:
    return fields(read(root / "proc/cpuinfo"))


def _least(values: list[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


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
