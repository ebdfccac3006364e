"""What gates gain on this machine's accelerator, `python -m benchmarks.gates --accelerator cuda`.

Random weights of a real architecture, routing of a synthetic trace, a scripted share of fallbacks.
All gates take turns on one runner per system; ratios are taken within rounds. On a GPU passes run
as captured steps where the model allows it, with any gate; `captured` is the share that did. With
`--layerwise` everything is measured a second time without captured steps."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from moesaic.engine.assemble import on_store
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.expert_kernel import kernel_for
from moesaic.engine.runner import Runner
from moesaic.kernels.dtypes import torch_dtype
from moesaic.lab.bench.bench_configs import plan_configs
from moesaic.lab.bench.bench_model import Loaded, load_bench_model, random_model
from moesaic.lab.bench.bench_row import BenchConfig
from moesaic.lab.bench.bench_steps import measure_once, warmed_up
from moesaic.lab.bench.cases import Case
from moesaic.lab.bench.grid import repetitions_of, run_of
from moesaic.lab.bench.replayed_routing import BenchRouting, choose_routing
from moesaic.policies.gate import FULL, gates
from moesaic.policies.policy_choice import PolicyChoice
from moesaic.policies.systems import load_system

LITTLE, BIG_LITTLE, DRAFTS = "little", "big-little", "self-speculative"
# Gate and share of tokens that run again, or of wrong drafts.
GATES: tuple[tuple[str, float | None], ...] = (
    (FULL, None), (LITTLE, None), (BIG_LITTLE, 0.1), (BIG_LITTLE, 0.2),
    (f"{DRAFTS}:draft=4", 0.0), (f"{DRAFTS}:draft=4", 0.1),
)  # fmt: skip


class Speed(NamedTuple):
    tokens_per_s: float
    captured: float  # share of its passes


class System:
    """One set of policies on loaded experts."""

    def __init__(self, loaded: Loaded, config: BenchConfig, routing: BenchRouting) -> None:
        self.config, self.routing = config, routing
        counts, capacity = routing.counts(), config.plan.capacity
        self.runner = on_store(loaded.decoder, loaded.store, config.settings, capacity, counts)

    def measure(self, gate: str, ratio: float | None, case: Case) -> Speed:
        use(self.runner, gate)
        work = repetitions_of(self.runner, case, self.routing, self.config.settings)
        run = run_of(self.runner, case, ratio)
        runs = warmed_up(self.runner, work, run)
        measure_once(self.runner, next(work), runs, lambda steps: None, run)
        # A captured step finds the replayed routing in the GPU's memory.
        captured = [times.replay_ns == 0 for times in runs.measured.times]
        return Speed(case.all_tokens / runs.seconds[0], sum(captured) / len(captured))

    def rounds(self, case: Case, rounds: int) -> Iterator[dict[str, object]]:
        found: dict[tuple[str, float | None], list[Speed]] = {each: [] for each in GATES}
        for _ in range(rounds):
            for each in GATES:
                found[each].append(self.measure(*each, case))
        full = found[FULL, None]
        for (gate, ratio), speeds in found.items():
            pairs = zip(speeds, full, strict=True)
            over = sorted(a.tokens_per_s / b.tokens_per_s for a, b in pairs)
            yield {
                "system": self.config.system, "batch": case.batch, "gate": gate, "ratio": ratio,
                "tokens_per_s": median(each.tokens_per_s for each in speeds),
                "over_full": median(over), "range": [over[0], over[-1]],
                "captured": median(each.captured for each in speeds),
            }  # fmt: skip

    def drive_layerwise(self) -> bool:
        """For good; False: nothing was captured before."""
        machine = self.runner.machine
        if machine.why_layerwise is not None:
            return False
        machine.use_only_layerwise("gates are compared")
        return True


def use(runner: Runner, gate: str) -> None:
    choice = PolicyChoice.parse(gates, gate)
    top_k = runner.decoder.architecture.spec.top_k
    runner.use_gate(choice.create(gates, top_k), choice.name)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accelerator", default="emulated", choices=("emulated", "cuda"))
    parser.add_argument("--model", default="olmoe-1b-7b")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--cache-ratio", type=float, default=0.25)
    parser.add_argument("--link-bandwidth", type=float, default=4.0, help="GB/s, if emulated")
    parser.add_argument("--systems", default="on-demand,moesaic")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layerwise", action="store_true", help="and without captured steps")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    model = random_model(asked.model, asked.layers)
    settings = EngineSettings(
        accelerator=asked.accelerator, cache_ratio=asked.cache_ratio, dtype=asked.dtype,
        link_gb_s=asked.link_bandwidth,
    )  # fmt: skip
    cases = [Case("decode", asked.tokens, int(batch)) for batch in asked.batches.split(",")]
    systems = [(name, settings.with_system(load_system(name))) for name in asked.systems.split(",")]
    # Every gate takes its turn on the same runner, also one that checks five tokens at once.
    most = 5 * max(case.batch for case in cases)
    configs = [
        replace(config, settings=replace(config.settings, max_step_tokens=most))
        for config in plan_configs(model.spec, systems, cases)
    ]
    plan = configs[0].plan
    shape, dtype = model.architecture.expert_shape, torch_dtype(plan.dtype)
    kernel = kernel_for(shape, plan.expert_dtype, dtype, settings)
    loaded = load_bench_model(model, plan.dtype, plan.expert_dtype, kernel=kernel)
    routing = choose_routing("synthetic", model.spec, cases, asked.rounds)
    for config in configs:
        for case in cases:  # a fresh runner each: steps are captured again
            system = System(loaded, config, routing)
            try:
                for row in system.rounds(case, asked.rounds):
                    print(json.dumps(row), flush=True)
                if asked.layerwise and system.drive_layerwise():
                    for row in system.rounds(case, asked.rounds):
                        print(json.dumps(row), flush=True)
            finally:
                system.runner.close()


if __name__ == "__main__":
    main()
