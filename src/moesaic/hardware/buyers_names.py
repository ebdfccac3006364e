"""Names for what is bought as one thing and described by several numbers: `cpu.cores`,
`pcie.gb_s`, `ndp.gflops`. Each says what it is now, and which numbers of the description follow
from another value."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from moesaic.core.offloading import CPU, PCIE
from moesaic.hardware.machine_spec import MachineSpec

Changes = dict[str, float]


class BuyersName(NamedTuple):
    """`keys` are numbers of the description that a machine must have for it."""

    keys: tuple[str, ...]
    unit: str
    follows: str
    present: Callable[[MachineSpec], float]
    changes: Callable[[MachineSpec, float], Changes]


def buyers_names(spec: MachineSpec) -> dict[str, BuyersName]:
    """Those of this machine."""
    there = spec.values()
    return {name: each for name, each in _NAMES.items() if all(key in there for key in each.keys)}


def _same(key: str, unit: str, follows: str = "") -> BuyersName:
    """Another name for one number."""
    return BuyersName(
        (key,),
        unit,
        follows or f"{key} by another name",
        lambda spec: float(spec.values()[key]),
        lambda spec, value: {key: value},
    )


def _proportional(key: str, unit: str, follows: str, others: Callable[[str], bool]) -> BuyersName:
    """One number, and `others` in proportion to it."""

    def changes(spec: MachineSpec, value: float) -> Changes:
        values = spec.values()
        factor = value / values[key]
        return {**{k: v * factor for k, v in values.items() if others(k)}, key: value}

    return BuyersName((key,), unit, follows, lambda spec: float(spec.values()[key]), changes)


def _drawn_by(lane: str, key: str) -> bool:
    return key.startswith("resources.") and key.endswith(f".draws_gb_s.{lane}")


def _cpu_reads(spec: MachineSpec, factor: float) -> Changes:
    """What its cores read, and the memory bandwidth that it shares with others, which was measured
    with those cores."""
    shared = {
        f"resources.{name}.bandwidth_gb_s"
        for name, resource in spec.resources.items()
        if CPU in resource.draws_gb_s
    }
    return {
        key: value * factor
        for key, value in spec.values().items()
        if key == _CPU_GB_S
        or key.startswith("cpu.expert_gb_s.")
        or _drawn_by(CPU, key)
        or key in shared
    }


def _cores(spec: MachineSpec, cores: float) -> Changes:
    """Rates and bandwidth per core stay as they are, as far as the channels go."""
    factor = cores / spec.cpu.cores
    reads = factor
    if spec.dimms is not None:
        channels_gb_s = spec.dimms.channels * spec.dimms.channel_gb_s
        reads = min(factor, channels_gb_s / spec.cpu.memory_bandwidth_gb_s)
    rates = {f"cpu.matmul_tflops.{k}": v * factor for k, v in spec.cpu.matmul_tflops.items()}
    return {**rates, **_cpu_reads(spec, reads), "cpu.cores": cores}


def _channels(spec: MachineSpec, channels: float) -> Changes:
    """DIMMs per channel, units per DIMM and the CPU's share of the channels stay as they are."""
    assert spec.dimms is not None
    factor = channels / spec.dimms.channels
    units = {} if spec.ndp is None else {"ndp.count": float(int(spec.ndp.count * factor))}
    count = spec.dimms.count * factor
    return {**_cpu_reads(spec, factor), **units, "dimms.count": count, "dimms.channels": channels}


def _gflops(spec: MachineSpec) -> float:
    assert spec.ndp is not None
    return 1000 * spec.ndp.tflops


def _clock(spec: MachineSpec, gflops: float) -> Changes:
    assert spec.ndp is not None
    return {"ndp.clock_ghz": spec.ndp.clock_ghz * gflops / _gflops(spec)}


_CPU_GB_S, _GPU_GB_S = "cpu.memory_bandwidth_gb_s", "gpu.memory_bandwidth_gb_s"
# In the order in which they apply: where two say something of one number, the later counts.
_NAMES = {
    "memory.channels": BuyersName(
        ("dimms.channels",),
        "",
        "dimms.count and ndp.count per channel stay, the CPU's bandwidth follows",
        lambda spec: float(spec.values()["dimms.channels"]),
        _channels,
    ),
    "cpu.cores": BuyersName(
        ("cpu.cores",),
        "",
        "the CPU's rates and bandwidth per core stay, as far as the channels go",
        lambda spec: float(spec.cpu.cores),
        _cores,
    ),
    "cpu.bandwidth_gb_s": BuyersName(
        (_CPU_GB_S,),
        "GB/s",
        "experts are read in proportion, memory shared with others grows with it",
        lambda spec: spec.cpu.memory_bandwidth_gb_s,
        lambda spec, value: _cpu_reads(spec, value / spec.cpu.memory_bandwidth_gb_s),
    ),
    "gpu.bandwidth_gb_s": _proportional(
        _GPU_GB_S, "GB/s", "experts are read in proportion",
        lambda key: key.startswith("gpu.expert_gb_s."),
    ),
    "pcie.gb_s": _proportional(
        "pcie.bandwidth_gb_s", "GB/s", "what copies draw from memory follows",
        lambda key: _drawn_by(PCIE, key),
    ),
    "ndp.gflops": BuyersName(
        ("ndp.clock_ghz",), "GFLOP/s", "of one unit, by its clock", _gflops, _clock
    ),
    "ndp.buffer_kb": _same("ndp.buffer_kib", "KiB"),
    "ndp.bandwidth_gb_s": _same("ndp.memory_bandwidth_gb_s", "GB/s"),
    "dimm_link.gb_s": _same("dimm_link.bandwidth_gb_s", "GB/s"),
}  # fmt: skip
