"""Which policies decide: one choice of each kind, with one set of defaults for every body.

Light: importing this and making a PolicySet needs no numpy, because `--help` reads it. What the
policies can do together is checked in policy_checks.py; compose.py makes a brain of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypedDict, TypeVar, Unpack

from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.core.registry import Registry
from moesaic.policies.cache import ALWAYS, PER_LAYER, caches
from moesaic.policies.gate import FULL, gates
from moesaic.policies.layout import STRIPED, layouts
from moesaic.policies.policy_choice import Choosable, PolicyChoice, choose
from moesaic.policies.prefetch import prefetches
from moesaic.policies.schedule import schedules

REGISTRIES: dict[str, Registry[Any]] = {
    "schedule": schedules,
    "prefill_schedule": schedules,
    "cache": caches,
    "prefetch": prefetches,
    "gate": gates,
    "layout": layouts,
}
AUTO_FILL = "auto"
FILLS = {
    AUTO_FILL: "what the schedule wants",
    "popular": "the most used experts of a profile (of each layer, with a pool per layer)",
    "layers": "whole layers, first to last, as far as the slots go",
    "last-layers": "whole layers, last to first, as far as the slots go",
    "empty": "nothing",
}
PHASES = ("decode", "prefill")
DEFAULT_CACHE = "learned-speed:pool=global"


class Choices(TypedDict, total=False):
    """What `PolicySet.of` takes: its fields, with policies said in any form."""

    schedule: Choosable  # which device computes which expert (`moesaic policies` lists all)
    cache: Choosable  # which experts stay in the accelerator
    prefetch: Choosable  # which experts of later layers are brought in idle link time
    prefill_schedule: Choosable | None  # the schedule of prompts; None: as `schedule`
    gate: Choosable  # how many experts each token uses; only this one may change the text
    layout: Choosable  # where experts lie in a main memory of DIMMs that compute
    promote: bool  # whether experts that ran on the CPU may take a slot in idle link time
    fill: str  # which experts are in the accelerator at the beginning


@dataclass(frozen=True, slots=True)
class PolicySet:
    """`promote` lets experts that had to run on the CPU take a slot in idle link time; `fill` is
    the initial placement. `prefill_schedule` is for systems that schedule prompts differently.
    Only the gate may change what a model says."""

    schedule: PolicyChoice = field(default_factory=lambda: choose(schedules, "best-split"))
    cache: PolicyChoice = field(default_factory=lambda: choose(caches, DEFAULT_CACHE))
    prefetch: PolicyChoice = field(default_factory=lambda: choose(prefetches, "impact"))
    prefill_schedule: PolicyChoice | None = None
    gate: PolicyChoice = field(default_factory=lambda: choose(gates, FULL))
    layout: PolicyChoice = field(default_factory=lambda: choose(layouts, STRIPED))
    promote: bool = True
    fill: str = AUTO_FILL

    def __post_init__(self) -> None:
        for kind in ("schedule", "cache", "prefetch", "gate", "layout"):
            assert isinstance(getattr(self, kind), PolicyChoice), f"use PolicySet.of for {kind}"
        if not isinstance(self.promote, bool):
            raise ImpossibleSetting(f"promote is {self.promote!r}; it must be True or False")
        if self.fill not in FILLS:
            raise UnknownName("fill", self.fill, FILLS)

    @classmethod
    def of(cls, **choices: Unpack[Choices]) -> PolicySet:
        """Make a set from names, `name:parameter=value,...` or `policy(name, parameter=value)`;
        what is not given has its default: `PolicySet.of(schedule="hybrid", cache=policy("mrs",
        alpha=0.7))`."""
        return cls().but(**choices)

    def but(self, **choices: Unpack[Choices]) -> PolicySet:
        """The same with other choices. A policy that is chosen again starts from its own defaults.
        A schedule is for both phases, unless `prefill_schedule` is given with it."""
        for name in choices:
            if name not in POLICY_FIELDS:
                raise UnknownName("kind of policy", name, POLICY_FIELDS)
        if "schedule" in choices:
            choices = {"prefill_schedule": None, **choices}
        return replace(self, **{name: _read(name, asked) for name, asked in choices.items()})

    @property
    def per_layer(self) -> bool:
        """Every layer has its own slots, or all layers compete for one pool."""
        return self.cache.parameters["pool"] == PER_LAYER

    @property
    def admits_always(self) -> bool:
        """A missed expert takes a slot whatever it is worth."""
        return self.cache.parameters["admission"] == ALWAYS

    def schedule_for(self, phase: str) -> PolicyChoice:
        return (phase == "prefill" and self.prefill_schedule) or self.schedule

    def for_phase(self, phase: str) -> PolicySet:
        """The policies of a run that has only this phase."""
        return replace(self, schedule=self.schedule_for(phase), prefill_schedule=None)

    def given_slots(self, slots: int) -> PolicySet:
        """The policies for so many slots; without slots no expert can be prefetched."""
        return self if slots else self.but(prefetch="none")

    def slots_at(self, cache_ratio: float, layers: int, experts: int) -> int:
        """How many experts GPU memory holds at this share of all of them: with a pool per layer,
        as many of each."""
        if self.per_layer:
            return round(cache_ratio * experts) * layers
        return round(cache_ratio * layers * experts)

    def as_dict(self, phase: str | None = None) -> dict[str, Any]:
        """The set as results record it: every policy as it would be given again, and all
        parameters. Without a phase, of runs that have both."""
        chosen = {
            "schedule": self.schedule_for(phase or "decode"),
            "cache": self.cache,
            "prefetch": self.prefetch,
            "gate": self.gate,
            "layout": self.layout,
        }
        if phase is None:
            chosen["prefill_schedule"] = self.schedule_for("prefill")
        return {
            **{kind: str(choice) for kind, choice in chosen.items()},
            "promote": self.promote,
            "fill": self.fill,
            "parameters": {kind: choice.parameters for kind, choice in chosen.items()},
        }

    def __str__(self) -> str:
        parts = [str(self.schedule), str(self.cache), str(self.prefetch)]
        if self.gate.name != FULL:
            parts.append(str(self.gate))
        if self.layout.name != STRIPED:
            parts.append(str(self.layout))
        return " + ".join(parts)


POLICY_FIELDS = tuple(PolicySet.__dataclass_fields__)


class _HasPolicies(Protocol):
    @property
    def policies(self) -> PolicySet: ...


S = TypeVar("S", bound=_HasPolicies)


def with_options(settings: S, options: Mapping[str, Any]) -> S:
    """Settings with some fields changed, where policies may be given as if they were fields:
    `with_options(settings, {"cache": "mrs:alpha=0.2", "cache_ratio": 0.5})`."""
    fields = {name: value for name, value in options.items() if name not in POLICY_FIELDS}
    chosen = {name: value for name, value in options.items() if name in POLICY_FIELDS}
    if chosen:
        fields["policies"] = fields.get("policies", settings.policies).but(**chosen)
    return replace(settings, **fields)  # type: ignore[type-var]


def _read(name: str, asked: Any) -> Any:
    if name not in REGISTRIES or (name == "prefill_schedule" and asked is None):
        return asked
    return choose(REGISTRIES[name], asked)
