"""What policies can do together, and which bodies can follow them. Asked before any work."""

from __future__ import annotations

from moesaic.core.capabilities import Capabilities
from moesaic.core.errors import ImpossibleSetting
from moesaic.policies.cache import caches
from moesaic.policies.gate import gates
from moesaic.policies.gate.base import Gate
from moesaic.policies.layout import STRIPED
from moesaic.policies.policy_choice import PolicyChoice
from moesaic.policies.policy_set import PHASES, PolicySet
from moesaic.policies.prefetch import prefetches
from moesaic.policies.schedule import schedules


def check_together(policies: PolicySet) -> None:
    if not isinstance(policies, PolicySet):
        raise ImpossibleSetting(
            f"policies is {policies!r}; it must be a PolicySet, such as PolicySet.of(cache='lru')"
        )
    if caches.load(policies.cache.name).fixed and lookahead(policies):
        raise ImpossibleSetting(
            f"cache {policies.cache.name!r} never gives up a slot, so prefetch "
            f"{policies.prefetch.name!r} has nowhere to put an expert: use prefetch 'none' or "
            "another cache"
        )


def check_real(policies: PolicySet, able: Capabilities) -> None:
    """Refuse policies that a real body with these capabilities could not execute exactly."""
    for kind, name, policy in (
        ("cache", policies.cache.name, caches.load(policies.cache.name)),
        ("prefetch", policies.prefetch.name, prefetches.load(policies.prefetch.name)),
    ):
        if policy.needs_future:
            raise ImpossibleSetting(
                f"{kind} {name!r} must know the future: it works in the simulator "
                "(moesaic simulate), not on a real run"
            )
    if policies.layout.name != STRIPED:
        raise ImpossibleSetting(
            f"layout {policies.layout.name!r} places experts in DIMMs that compute: it works in "
            f"the simulator (moesaic simulate), not on a real run. Use layout {STRIPED!r}"
        )
    schedule = _dense_follows(policies)
    if schedule is not None and not able.dense_follows:
        raise ImpossibleSetting(
            f"schedule {schedule.name!r} (llama.cpp) puts whole layers, with attention and shared "
            "experts, on one device, but this machine's accelerator computes those of every layer "
            "itself, so this would not be that rule. Use `moesaic simulate --policies llama.cpp`, "
            "where layers move whole, or another schedule or system"
        )


def check_gate(policies: PolicySet, top_k: int) -> Gate:
    """Refuse a gate that a model with so many experts per token cannot have."""
    return policies.gate.create(gates, top_k)


def lookahead(policies: PolicySet) -> int:
    """How many layers ahead the prefetch policy asks for forecasts."""
    return policies.prefetch.create(prefetches).lookahead


def needs_future(policies: PolicySet) -> bool:
    cache, prefetch = caches.load(policies.cache.name), prefetches.load(policies.prefetch.name)
    return cache.needs_future or prefetch.needs_future


def needing_slots(policies: PolicySet, phases: tuple[str, ...] = PHASES) -> str | None:
    """The schedule, if any, that cannot do without experts in GPU memory."""
    names = (policies.schedule_for(phase).name for phase in phases)
    return next((name for name in names if schedules.load(name).needs_slots), None)


def _dense_follows(policies: PolicySet) -> PolicyChoice | None:
    """The schedule, if any, under which attention and shared experts stay with their layer."""
    chosen = (policies.schedule_for(phase) for phase in PHASES)
    return next((each for each in chosen if schedules.load(each.name).dense_follows), None)
