"""Do simulated runs still give the same results? Plans and times of every system, to the bit.

`python -m benchmarks.before_after record FILE` writes digests of every plan and step of many
simulated runs, and every row of the HybriMoE reproduction. `... compare A B` lists what differs.
`... against COMMIT` records that commit in a worktree, then this tree, and compares. With `--quick`
only a tenth is recorded, and what was not recorded is not compared."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from hashlib import sha256
from itertools import islice, product
from pathlib import Path
from typing import Any

from benchmarks.other_commit import command_with, worktree
from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.offloading import CPU, GPU, IN_DRAM, IN_VRAM
from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import assemble, workload
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.brain import Brain
from moesaic.policies.policy_choice import policy
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.systems import NEAR_DATA_SYSTEMS, SYSTEMS, load_system
from moesaic.reproductions.hybrimoe import Reproduction
from moesaic.workloads.steps import popularity

MODEL = "deepseek-v2-lite"
MACHINES = ("a6000-xeon5220r", "a6000-xeon5220r-implied")
# name -> settings: a few hundred steps in all for every system and machine
SHAPES: dict[str, dict[str, Any]] = {
    "batch 1": {"tokens": 96, "warmup": 8},
    "batch 8": {"tokens": 24, "warmup": 4, "batch": 8},
    "batch 64": {"tokens": 6, "warmup": 1, "batch": 64},
    "prompts": {"phase": "prefill", "tokens": 96, "prompts": 3},
}
# Machines whose DIMMs compute: (machine, model, settings)
DIMM_RUNS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("trimoe-paper", "qwen3-235b-a22b", {"tokens": 3, "batch": 64, "cache_ratio": 0.05}),
    ("trimoe-paper", MODEL, {"tokens": 24, "batch": 128, "cache_ratio": 0.1}),
    ("h200-emr16-ndp", MODEL, {"tokens": 24, "batch": 32, "cache_ratio": 0.1}),
)
POLICIES = list(
    product(
        ("hybrid", "best-split", "threshold", "gpu-only", "static-experts"),
        ("lru", "lfu", "mrs", "two-speed", "learned-speed", "belady"),
        ("none", "next-layer", "impact", "oracle"),
    )
)


def plan_values(plan: LayerPlan) -> list[object]:
    """A plan in plain values that do not depend on how its classes are spelled."""
    others = {name: queue for name, queue in plan.queues.items() if name not in (GPU, CPU)}
    return [
        plan.layer,
        [list(plan.queues.get(device, ())) for device in (GPU, CPU)],
        [_move_values(move) for move in plan.transfers],
        [_move_values(move) for move in plan.background],
        plan.believed_ns,
        *([sorted(others.items())] if others else ()),
    ]


def _move_values(move: Move) -> list[object]:
    """Over PCIe in few words; from and to DIMMs in full."""
    values: list[object] = [move.layer, move.expert, move.victim and [*move.victim], move.keep]
    usual = move.source == IN_DRAM and move.destination == IN_VRAM
    return values if usual else [*values, move.source, move.destination, move.leaves]


class _RecordingBrain:
    """A brain that writes down what it decides."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        self.plans: list[object] = []

    def decide(self, *seen: Any) -> LayerPlan:
        self._plan = self._brain.decide(*seen)
        return self._plan

    def wants_forecasts(self) -> int:
        return self._brain.wants_forecasts()

    def look_ahead(self, *given: Any) -> Any:
        background = self._brain.look_ahead(*given)
        self.plans.append(plan_values(self._plan._replace(background=background)))
        return background

    def learn(self, *seen: Any) -> None:
        self._brain.learn(*seen)


def digest(settings: Settings) -> dict[str, object]:
    """One run: how many plans, and hashes of all plans and of all step times."""
    source = choose_workload(None, settings).source
    counts = popularity(source, settings.profile_tokens or 1)
    steps = workload(settings, source)
    machine, brain = assemble(settings, counts, steps, None)
    listening, times = _RecordingBrain(brain), []
    for routed in islice(steps, settings.warmup_steps + settings.steps):
        report = machine.step(routed, listening)
        times.append([report.start_ns, report.end_ns])
    return {
        "plans": len(listening.plans),
        "plans_sha": _sha(listening.plans),
        "times_sha": _sha(times),
        "end_ns": times[-1][1],
    }


def _sha(values: object) -> str:
    return sha256(json.dumps(values).encode()).hexdigest()[:16]


def record(quick: bool = False) -> dict[str, object]:
    found: dict[str, object] = {}
    base: dict[str, Any] = {"expert_dtype": "int4", "dense_dtype": "int4"}
    model = load_model(MODEL)
    for machine, (shape, values), system in product(MACHINES, SHAPES.items(), SYSTEMS):
        if quick and (machine != MACHINES[1] or shape == "batch 1"):
            continue
        settings = Settings(model, load_machine(machine), **base, **values)
        found[f"{machine}, {shape}, {system}"] = digest(settings.with_system(load_system(system)))
    for schedule, cache, prefetch in POLICIES[:: 3 if quick else 1]:
        pooled = policy(cache, pool="global" if cache == "lfu" else "per-layer")
        policies = PolicySet.of(schedule=schedule, cache=pooled, prefetch=prefetch)
        settings = Settings(
            model, load_machine(MACHINES[1]), policies=policies, tokens=12, warmup=2, batch=2,
            **base,
        )  # fmt: skip
        found[f"{schedule} + {cache} + {prefetch}"] = digest(settings)
    for (machine, name, values), system in product(DIMM_RUNS, NEAR_DATA_SYSTEMS):
        settings = Settings(load_model(name), load_machine(machine), warmup=1, **values)
        found[f"{machine}, {name}, {system}"] = digest(settings.with_system(load_system(system)))
    for row in [] if quick else Reproduction().rows(jobs=2):
        found[f"row {row.id}"] = row.ours
    return found


def compare(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """What differs, in words."""
    gone = [f"{name}: gone" for name in before.keys() - after.keys()]
    new = [f"{name}: new" for name in after.keys() - before.keys()]
    both = (name for name in before if name in after)
    changed = [f"{n}: {before[n]} -> {after[n]}" for n in both if before[n] != after[n]]
    return sorted(gone) + sorted(new) + changed


def recorded_by(commit: str, quick: bool) -> dict[str, object]:
    """What this script, as it stands in another commit, records there."""
    options = ["--quick"] if quick else []
    with tempfile.TemporaryDirectory() as folder, worktree(commit) as tree:
        out = Path(folder) / "out.json"
        module, arguments = "benchmarks.before_after", ["record", str(out), *options]
        command = command_with([tree / "src", tree], module, arguments)
        subprocess.run(command, check=True, cwd=tree)
        found: dict[str, object] = json.loads(out.read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["record", "compare", "against"])
    parser.add_argument("names", nargs="+")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.action == "record":
        Path(arguments.names[0]).write_text(json.dumps(record(arguments.quick), indent=1))
        return
    if arguments.action == "compare":
        before, after = (json.loads(Path(name).read_text()) for name in arguments.names)
    else:
        before, after = recorded_by(arguments.names[0], arguments.quick), record(arguments.quick)
    if arguments.quick:
        before = {name: value for name, value in before.items() if name in after}
    different = compare(before, after)
    print("\n".join(different))
    print(f"{len(before)} results before, {len(different)} differ")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
