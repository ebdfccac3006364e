"""What a machine is: plain numbers with their units in the names, and where each comes from.

Knows nothing of files, of simulators or of policies. A number that cannot be true (an
efficiency above 1, a negative latency) never gets into one of these objects: `replace` on a
machine is checked as well as reading one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from moesaic.core.errors import ImpossibleSetting

# Weight precisions every processor must state a matmul rate for.
REQUIRED_DTYPES = ("bf16", "int8", "int4")


class Rule(NamedTuple):
    """What a number must satisfy, in words and in code."""

    expected: str
    holds: Callable[[float], bool]


Positive = Annotated[float, Rule("a number above 0", lambda v: v > 0)]
NotNegative = Annotated[float, Rule("a number of 0 or more", lambda v: v >= 0)]
Fraction = Annotated[float, Rule("a fraction above 0, at most 1", lambda v: 0 < v <= 1)]
Share = Annotated[float, Rule("a share from 0 to 1", lambda v: 0 <= v <= 1)]
Count = Annotated[int, Rule("a whole number of 1 or more", lambda v: v >= 1 and v == int(v))]
Rates = Mapping[str, Positive]  # weight precision -> rate


class Number(NamedTuple):
    """One numeric field of a specification: `dtypes` marks a table of rates."""

    name: str
    rule: Rule
    dtypes: bool


def numbers(kind: type[Any]) -> Iterator[Number]:
    """The numeric fields of a specification class, in order."""
    hints = get_type_hints(kind, include_extras=True)
    for name in (each.name for each in fields(kind)):
        hint = hints[name]
        table = get_origin(hint) is not Annotated and len(get_args(hint)) == 2
        extras = get_args(get_args(hint)[1] if table else hint)
        if len(extras) == 2 and isinstance(extras[1], Rule):
            yield Number(name, extras[1], table)


class _Checked:
    """Refuses impossible numbers on construction."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for number in numbers(type(self)):
            value = getattr(self, number.name)
            for each in value.values() if number.dtypes else (value,):
                if not number.rule.holds(each):
                    where = f"{type(self).__name__}.{number.name}"
                    raise ImpossibleSetting(f"{where} is {each}: expected {number.rule.expected}")


class _Processor(_Checked):
    """What GPU and CPU have in common: memory to stream weights from, units to multiply them."""

    __slots__ = ()
    name: str
    memory_bandwidth_gb_s: float
    bandwidth_efficiency: float
    matmul_tflops: Mapping[str, float]
    matmul_efficiency: float
    expert_gb_s: Mapping[str, float]

    def expert_bandwidth_gb_s(self, dtype: str) -> float:
        """What one expert's weights, stored in `dtype`, are read at: measured, or as everything
        else. Kernels that unpack weights for every use stay far below the memory's speed."""
        return self.expert_gb_s.get(dtype, self.effective_bandwidth_gb_s)

    @property
    def effective_bandwidth_gb_s(self) -> float:
        """What expert kernels reach when weights stream from this processor's memory."""
        return self.memory_bandwidth_gb_s * self.bandwidth_efficiency

    def effective_tflops(self, dtype: str) -> float:
        """What large matrix products reach with weights stored in `dtype`.

        fp16 counts as bf16 unless the machine says otherwise."""
        rates = self.matmul_tflops
        rate = rates.get(dtype, rates["bf16"] if dtype == "fp16" else None)
        if rate is None:
            stated = ", ".join(rates)
            raise ImpossibleSetting(
                f"{self.name} has no matmul rate for {dtype!r} weights; stated: {stated}."
            )
        return rate * self.matmul_efficiency


@dataclass(frozen=True, slots=True)
class GpuSpec(_Processor):
    name: str
    memory_gb: Positive  # 10^9 bytes
    memory_bandwidth_gb_s: Positive  # peak
    bandwidth_efficiency: Fraction  # of the peak, reached by expert kernels
    matmul_tflops: Rates = field(hash=False)  # dense peak, per weight precision
    matmul_efficiency: Fraction  # of the peak, reached by large grouped products
    expert_overhead_us: NotNegative  # fixed cost of one expert, whatever its tokens
    layer_overhead_us: NotNegative  # fixed cost of one layer's attention, norms and router
    expert_gb_s: Rates = field(default_factory=dict, hash=False)  # where it differs, by precision


@dataclass(frozen=True, slots=True)
class CpuSpec(_Processor):
    name: str
    cores: Count  # those used
    memory_gb: Positive  # 10^9 bytes
    memory_bandwidth_gb_s: Positive  # peak of the channels, or what the cores can draw
    bandwidth_efficiency: Fraction
    matmul_tflops: Rates = field(hash=False)
    matmul_efficiency: Fraction
    expert_overhead_us: NotNegative  # dispatching one expert to the threads
    first_expert_us: NotNegative  # extra for a layer's first expert (HybriMoE Fig. 3e)
    expert_gb_s: Rates = field(default_factory=dict, hash=False)  # where it differs, by precision
    tiles_from: Rates = field(default_factory=dict, hash=False)  # tokens; fewer: vectors


@dataclass(frozen=True, slots=True)
class LinkSpec(_Checked):
    """Host to GPU."""

    bandwidth_gb_s: Positive  # large pinned copies
    latency_us: NotNegative  # per copy


@dataclass(frozen=True, slots=True)
class PlannerSpec(_Checked):
    """What deciding one layer costs: the layer waits for the first two, the look-ahead (what to
    move in the background) is decided while it runs."""

    fixed_us: NotNegative
    per_expert_us: NotNegative  # per active expert
    lookahead_us: NotNegative
    lookahead_per_token_us: NotNegative


@dataclass(frozen=True, slots=True)
class HostSpec(_Checked):
    """What devices take from each other: each number is the share of something scarce (memory
    bandwidth, cores) that one needs while it works at full speed. Shares of those at work that
    add up to more than 1 slow all of them down."""

    gpu_share: Share
    cpu_share: Share
    link_share: Share
    planner_share: Share


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """One machine. `sources` says for every number ("gpu.memory_gb") where it comes from."""

    name: str
    title: str
    description: str
    notes: tuple[str, ...]  # what is assumed
    gpu: GpuSpec
    cpu: CpuSpec
    pcie: LinkSpec
    planner: PlannerSpec
    sources: Mapping[str, str] = field(hash=False, repr=False)
    host: HostSpec | None = None  # None: nothing is shared

    def values(self) -> dict[str, Any]:
        """Every number under the key it has in `sources`."""
        flat: dict[str, Any] = {}
        for section, kind in SECTIONS.items():
            part = getattr(self, section)
            for number in numbers(kind) if part is not None else ():
                value = getattr(part, number.name)
                rows = value.items() if number.dtypes else ((None, value),)
                for dtype, each in rows:
                    key = f"{section}.{number.name}"
                    flat[key if dtype is None else f"{key}.{dtype}"] = each
        return flat


# TOML table -> class, in the order in which people read a machine.
SECTIONS: dict[str, type[Any]] = {
    "gpu": GpuSpec,
    "cpu": CpuSpec,
    "pcie": LinkSpec,
    "planner": PlannerSpec,
    "host": HostSpec,
}
# Tables a description may leave out.
OPTIONAL = frozenset({"host", "gpu.expert_gb_s", "cpu.expert_gb_s", "cpu.tiles_from"})
