"""The systems of the study: those of the registry, and variants that differ from one of them in a
policy. `monde` (gpu-ndp), `+cpu`, `+refinement` and `trimoe` are the steps of Fig. 8."""

from __future__ import annotations

from moesaic.policies.policy_choice import policy
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.systems import PREFETCHING, load_system
from moesaic.reproductions.trimoe.runs import Run


def _system(system: str, schedule: str = "", layout: str = "") -> PolicySet:
    """One of the registry, with another schedule or layout where one is given."""
    known = load_system(system).policies
    return known.but(
        schedule=schedule or known.schedule,
        prefill_schedule=known.prefill_schedule,
        layout=layout or known.layout,
    )


SYSTEMS: dict[str, PolicySet] = {
    "klotski": _system("klotski"),
    "enhanced-ktransformers": _system("enhanced-ktransformers"),
    "monde": _system("monde"),
    "+cpu": _system("trimoe", "trimoe:refine=0", PREFETCHING),
    "+refinement": _system("trimoe", layout=PREFETCHING),
    "monde-localized": _system("monde-localized"),
    "trimoe": _system("trimoe"),
    "trimoe-one-candidate": _system("trimoe", "trimoe:candidates=1"),
    "trimoe-least-first": _system("trimoe", "trimoe:least_first=true"),
    "trimoe-smooth": _system("trimoe", layout="trimoe:rule=smooth-makespan"),
    "tri-balanced": _system("tri-balanced"),
    "tri-balanced-smooth": _system(
        "tri-balanced", layout="trimoe:offline=joint,rule=smooth-makespan"
    ),
}
# Every expert on the cheaper of GPU and its unit, nothing balanced: by the makespan model alone,
# which keeps a schedule to the layout's devices.
GREEDY = "gpu-ndp-greedy"
_GREEDY = _system("trimoe", "trimoe:refine=0", f"{PREFETCHING},devices=gpu-ndp")


def policies_of(run: Run) -> PolicySet:
    """The system's, knowing the rules of the machine."""
    system = _GREEDY if run.system == GREEDY else SYSTEMS[run.system]
    believed: dict[str, object] = {"contention": run.rule, "shared": run.shared}
    if run.pipelined is not None and run.system != "klotski":
        believed["pipelined"] = run.pipelined
    schedule = policy(system.schedule.name, **{**system.schedule.parameters, **believed})
    return system.but(schedule=schedule, prefill_schedule=system.prefill_schedule)
