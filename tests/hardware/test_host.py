"""Is what this computer has read rightly from /proc and /sys, whatever is missing there?"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import pytest

from moesaic.hardware.host import Gpu, NumaNode, this_host

GIB = 2**30
MEMINFO = f"MemTotal: {64 * 2**20} kB\nMemFree: 1000 kB\nMemAvailable: {48 * 2**20} kB\n"
X86 = """processor\t: 0
model name\t: Intel(R) Xeon(R) Gold
flags\t\t: fpu sse fma f16c avx2 avx512f avx512_bf16 amx_tile amx_bf16 amx_int8

processor\t: 1
model name\t: another
flags\t\t: fpu
"""
ARM = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm asimdhp asimddp sve i8mm bf16
CPU implementer\t: 0x41
CPU part\t: 0xd4f
"""
V1_UNLIMITED = "9223372036854771712"


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def test_the_processor_of_a_pc(tmp_path: Path) -> None:
    host = this_host(lay_out(tmp_path, {"proc/cpuinfo": X86}))
    assert host.cpu == "Intel(R) Xeon(R) Gold"
    assert set(host.isa) == {
        *("amx_tile", "amx_bf16", "amx_int8"),
        *("avx512f", "avx512_bf16", "avx2", "f16c", "fma"),
    }


def test_the_processor_of_an_arm_server(tmp_path: Path) -> None:
    host = this_host(lay_out(tmp_path, {"proc/cpuinfo": ARM}))
    assert host.cpu == "ARM CPU, implementer 0x41, part 0xd4f"
    assert set(host.isa) == {"asimd", "asimdhp", "asimddp", "sve", "i8mm", "bf16"}


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, 8),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "350000 100000"}, 3),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "6400000 100000"}, 8),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "200000 100000"}, 2),
        ({"proc/self/cgroup": "0::/not/visible", "sys/fs/cgroup/cpu.max": "200000 100000"}, 2),
        ({"proc/self/cgroup": "0::/../other", "sys/fs/cgroup/cpu.max": "200000 100000"}, 2),
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/cpu.max": "200000 100000",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/job\n0::/",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "500000",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
            },
            5,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/job",
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            },
            8,
        ),
        ({"proc/self/cgroup": "nonsense", "sys/fs/cgroup/cpu.max": "1 2 3"}, 8),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "100000 0"}, 8),
    ],
)
def test_cores_within_the_quota(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    assert this_host(lay_out(tmp_path, files)).cores == cores


def test_cores_are_those_the_process_is_bound_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5}, raising=False)
    assert this_host(tmp_path).cores == 2
    monkeypatch.delattr(os, "sched_getaffinity")  # as on systems other than Linux
    assert this_host(tmp_path).cores == (os.cpu_count() or 1)


V2 = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/job"}
V1 = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "4:memory:/job\n0::/"}


@pytest.mark.parametrize(
    ("files", "total", "available"),
    [
        ({"proc/meminfo": MEMINFO}, 64, 48),
        ({"proc/meminfo": "MemTotal: 10 kB"}, 10 / 2**20, None),
        (V2 | {"sys/fs/cgroup/job/memory.max": "max"}, 64, 48),
        (V2 | {"sys/fs/cgroup/job/memory.max": str(100 * GIB)}, 64, 48),
        (V2 | {"sys/fs/cgroup/job/memory.max": str(16 * GIB)}, 16, 16),
        (
            V2
            | {
                "sys/fs/cgroup/job/memory.max": str(16 * GIB),
                "sys/fs/cgroup/job/memory.current": str(6 * GIB),
                "sys/fs/cgroup/job/memory.stat": f"anon 7\ninactive_file {4 * GIB}\nslab 3",
            },
            16,
            14,
        ),
        (
            V2
            | {
                "sys/fs/cgroup/memory.max": str(20 * GIB),
                "sys/fs/cgroup/memory.current": str(15 * GIB),
                "sys/fs/cgroup/job/memory.max": str(16 * GIB),
                "sys/fs/cgroup/job/memory.current": str(1 * GIB),
            },
            16,
            5,
        ),
        (V1 | {"sys/fs/cgroup/memory/job/memory.limit_in_bytes": V1_UNLIMITED}, 64, 48),
        (
            V1
            | {
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(32 * GIB),
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(12 * GIB),
                "sys/fs/cgroup/memory/job/memory.stat": (
                    f"inactive_file 0\ntotal_inactive_file {2 * GIB}"
                ),
            },
            32,
            22,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": V1_UNLIMITED,
            },
            None,
            None,
        ),
    ],
)
def test_memory_within_the_limits(
    tmp_path: Path, files: dict[str, str], total: float | None, available: float | None
) -> None:
    host = this_host(lay_out(tmp_path, files))
    assert host.memory_bytes == (None if total is None else total * GIB)
    assert host.available_bytes == (None if available is None else available * GIB)


@pytest.mark.parametrize(
    ("setting", "process", "chosen", "on_request"),
    [
        ("[always] madvise never", "THP_enabled:\t1", "always", True),
        ("always [madvise] never", "Name:\tpython", "madvise", True),
        ("always madvise [never]", "THP_enabled:\t1", "never", False),
        ("always [madvise] never", "THP_enabled:\t0", "madvise", False),
        ("", "THP_enabled:\t1", None, False),
    ],
)
def test_huge_pages(
    tmp_path: Path, setting: str, process: str, chosen: str | None, on_request: bool
) -> None:
    place = "sys/kernel/mm/transparent_hugepage/enabled"
    host = this_host(lay_out(tmp_path, {place: setting, "proc/self/status": process}))
    assert (host.huge_pages, host.huge_pages_on_request) == (chosen, on_request)


def test_numa_nodes_in_order_also_those_without_cores(tmp_path: Path) -> None:
    nodes = "sys/devices/system/node"
    files = {
        f"{nodes}/node10/cpulist": "",
        f"{nodes}/node10/meminfo": f"Node 10 MemTotal:  {96 * 2**20} kB",
        f"{nodes}/node2/cpulist": "0-7,16-23",
        f"{nodes}/nodes": "no node",
    }
    assert this_host(lay_out(tmp_path, files)).numa_nodes == (
        NumaNode(2, "0-7,16-23", None),
        NumaNode(10, "", 96 * GIB),
    )


def test_gpus_as_the_driver_lists_them(tmp_path: Path) -> None:
    gpus = "proc/driver/nvidia/gpus"
    text = "Model: \t\t NVIDIA {}\nIRQ:   \t\t 82\nBus Type: \t PCIe\nBus Location: \t {}"
    files = {
        f"{gpus}/0000:c1:00.0/information": text.format("RTX A6000", "0000:c1:00.0"),
        f"{gpus}/0000:41:00.0/information": text.format("H200", "0000:41:00.0"),
        f"{gpus}/0000:e1:00.0/power": "a GPU that says nothing of itself",
    }
    assert this_host(lay_out(tmp_path, files)).gpus == (
        Gpu("NVIDIA H200", "0000:41:00.0"),
        Gpu("NVIDIA RTX A6000", "0000:c1:00.0"),
    )


def test_of_a_bare_system_nothing_is_known_and_nothing_breaks(tmp_path: Path) -> None:
    known = asdict(this_host(tmp_path / "absent"))
    assert known.pop("cores") >= 1
    assert not any(known.values())


def test_files_that_are_something_else_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "proc/cpuinfo").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_bytes(b"MemTotal: \xff\xfe kB\nMemAvailable: many kB\n")
    host = this_host(tmp_path)
    assert (host.cpu, host.memory_bytes, host.available_bytes) == (None, None, None)


@pytest.mark.skipif(not Path("/proc/meminfo").is_file(), reason="needs /proc")
def test_this_computer_agrees_with_the_c_library() -> None:
    host = this_host()
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert host.memory_bytes is not None
    assert host.available_bytes is not None
    assert 0 < host.available_bytes <= host.memory_bytes <= physical
    assert 1 <= host.cores <= (os.cpu_count() or 1)
