"""What gates gain on this machine's accelerator, `python -m benchmarks.gates --accelerator cuda`.

Random weights of a real architecture, routing of a synthetic trace, a scripted share of fallbacks.
All gates take turns on one runner per system; ratios are taken within rounds. On a GPU, tokens of
gate `full` run as captured steps and those of the other gates layer by layer, so `full` is measured
both ways: a gate's own gain is that over `full`, driven layer by layer like itself."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

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


class System:
    """One set of policies on loaded experts."""

    def __init__(self, loaded: Loaded, config: BenchConfig, routing: BenchRouting) -> None:
        self.config, self.routing = config, routing
        counts, capacity = routing.counts(), config.plan.capacity
        self.runner = on_store(loaded.decoder, loaded.store, config.settings, capacity, counts)

    def tokens_per_s(self, gate: str, ratio: float | None, case: Case) -> float:
        use(self.runner, gate)
        work = repetitions_of(self.runner, case, self.routing, self.config.settings)
        run = run_of(self.runner, case, ratio)
        runs = warmed_up(self.runner, work, run)
        measure_once(self.runner, next(work), runs, lambda steps: None, run)
        return case.all_tokens / runs.seconds[0]

    def rounds(self, case: Case, rounds: int) -> Iterator[dict[str, object]]:
        """The captured steps first: a machine is driven layer by layer for good."""
        captured = None
        if self.runner.machine.layerwise_because is None:
            speeds = [self.tokens_per_s(FULL, None, case) for _ in range(rounds)]
            captured = median(speeds)
            self.runner.machine.drive_layerwise("gates are compared")
        found: dict[tuple[str, float | None], list[float]] = {each: [] for each in GATES}
        for _ in range(rounds):
            for each in GATES:
                found[each].append(self.tokens_per_s(*each, case))
        full = found[FULL, None]
        for (gate, ratio), speeds in found.items():
            over = sorted(a / b for a, b in zip(speeds, full, strict=True))
            yield {
                "system": self.config.system, "batch": case.batch, "gate": gate, "ratio": ratio,
                "tokens_per_s": median(speeds), "over_full": median(over),
                "range": [over[0], over[-1]],
                "over_captured_full": None if captured is None else median(speeds) / captured,
            }  # fmt: skip
        if captured is not None:
            yield {"system": self.config.system, "batch": case.batch, "gate": "full, captured",
                   "tokens_per_s": captured, "over_full": captured / median(full)}  # fmt: skip


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
            finally:
                system.runner.close()


if __name__ == "__main__":
    main()
