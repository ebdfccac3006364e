"""Is a ceiling the memory's and the processor's, rather than a cache's or a library's?"""

from __future__ import annotations

from pathlib import Path

import pytest

from moesaic.hardware.caches import LEAST_BYTES, last_level_cache_bytes, stream_bytes
from moesaic.kernels.instruction_sets import native
from moesaic.lab.bench import rates
from moesaic.lab.bench.rates import Rates
from moesaic.machines.real.lane import InlineLane

pytestmark = pytest.mark.without_native

MIB = 1 << 20


def cache(root: Path, core: int, index: int, level: int, size: str, **others: str) -> None:
    folder = root / f"sys/devices/system/cpu/cpu{core}/cache/index{index}"
    folder.mkdir(parents=True)
    files = {"level": str(level), "size": size, "type": "Unified", **others}
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


def memory(root: Path, available_mib: int) -> None:
    (root / "proc").mkdir(exist_ok=True)
    lines = (f"MemTotal: {2 * available_mib << 10} kB", f"MemAvailable: {available_mib << 10} kB")
    (root / "proc/meminfo").write_text("\n".join(lines))


def test_caches_of_all_sockets_count_once_each(tmp_path: Path) -> None:
    for core in range(4):
        shared = {"shared_cpu_list": "0-1" if core < 2 else "2-3"}
        cache(tmp_path, core, 0, 1, "48K", type="Data")
        cache(tmp_path, core, 1, 1, "32K", type="Instruction")
        cache(tmp_path, core, 2, 2, "2M", shared_cpu_list=str(core))
        cache(tmp_path, core, 3, 3, "266240K", **shared)
    assert last_level_cache_bytes(tmp_path) == 2 * 266240 << 10


def test_without_a_third_level_the_second_counts(tmp_path: Path) -> None:
    cache(tmp_path, 0, 0, 1, "64K", type="Data")
    cache(tmp_path, 0, 2, 2, "512K")
    assert last_level_cache_bytes(tmp_path) == 512 << 10


def test_what_the_kernel_does_not_say(tmp_path: Path) -> None:
    assert last_level_cache_bytes(tmp_path) is None
    cache(tmp_path, 0, 0, 3, "lots")
    assert last_level_cache_bytes(tmp_path) is None
    assert stream_bytes(tmp_path) >= 4 * 256 * MIB, "larger than most caches"


def test_several_times_the_cache_are_read_if_memory_allows(tmp_path: Path) -> None:
    cache(tmp_path, 0, 3, 3, "327680K")
    memory(tmp_path, 64 << 10)
    assert stream_bytes(tmp_path) == 4 * 320 * MIB
    memory(tmp_path, 1 << 10)
    assert stream_bytes(tmp_path) == 128 * MIB, "an eighth of what is free"


def test_a_small_cache_is_not_streamed_in_a_blink(tmp_path: Path) -> None:
    cache(tmp_path, 0, 3, 3, "8192K")
    memory(tmp_path, 64 << 10)
    assert stream_bytes(tmp_path) == LEAST_BYTES


class Units:
    """A processor's units; each takes a second per item."""

    def __init__(self, **ops: float) -> None:
        self.ops = {name.replace("_", "-"): count for name, count in ops.items()}

    def Pool(self, cores: list[int], spin_us: float) -> Units:
        return self

    def peaks(self) -> dict[str, float]:
        return self.ops

    def peak_seconds(self, unit: str, items: int) -> float:
        assert unit in self.ops
        return float(items)


UNITS = Units(fp32_avx512=1e12, bf16_avx512=2e12, bf16_amx=9e12, int8_amx=18e12)


@pytest.mark.parametrize(
    ("dtype", "expert_dtype", "best"),
    [
        ("bf16", "bf16", (9.0, "bf16-amx peak")),
        ("bf16", "int4", (18.0, "int8-amx peak")),
        ("fp32", "fp32", (1.0, "fp32-avx512 peak")),
    ],
)
def test_the_ceiling_is_the_best_unit_for_these_precisions(
    monkeypatch: pytest.MonkeyPatch, dtype: str, expert_dtype: str, best: tuple[float, str]
) -> None:
    monkeypatch.setattr(rates, "native", lambda: UNITS)
    assert rates.compute_peak(InlineLane(), 2, dtype, expert_dtype) == best


def test_a_librarys_rate_says_that_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "native", lambda: None)
    monkeypatch.setattr(rates, "_WIDTH", 64)
    tflops, unit = rates.compute_peak(InlineLane(), 1, "bf16", "bf16")
    assert tflops > 0
    assert unit == "PyTorch's product, not the processor's peak"


def test_a_slow_library_is_not_asked_for_large_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's fp16 product of 512 rows takes half a minute where it has no instructions."""
    asked: list[int] = []

    def product_ns(lane: InlineLane, rows: int, dtype: str) -> int:
        asked.append(rows)
        return 10_000_000 * rows

    monkeypatch.setattr(rates, "native", lambda: None)
    monkeypatch.setattr(rates, "_product_ns", product_ns)
    tflops, _ = rates.compute_peak(InlineLane(), 1, "fp16", "fp16")
    assert asked == [8]
    assert tflops == pytest.approx(2 * 2048 * 2048 / 10_000_000 / 1e3)


def test_the_unit_goes_with_the_rate() -> None:
    slow, fast = Rates(2, 10.0, 1.0, "a"), Rates(2, 5.0, 3.0, "b")
    assert slow.or_better(fast) == fast.or_better(slow) == Rates(2, 10.0, 3.0, "b")


@pytest.mark.skipif(native() is None, reason="the native kernels were not built")
def test_this_processors_units_have_believable_peaks() -> None:
    found = native()
    assert found is not None
    for unit, ops in found.peaks().items():
        tflops, name = rates.processor_peak(found, {unit: ops}, 1)
        assert name == f"{unit} peak"
        assert 1e-3 < tflops < 20, "of one core"
