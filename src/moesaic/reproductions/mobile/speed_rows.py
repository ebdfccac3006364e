"""Rows of measured speed: the bundled model here, without accelerator and with an emulated one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moesaic.policies.gate import FULL
from moesaic.policies.gate import gates as known_gates
from moesaic.policies.policy_choice import PolicyChoice
from moesaic.reproductions.mobile.quality_rows import HALF
from moesaic.reproductions.row import Row

if TYPE_CHECKING:
    from moesaic.engine.loading import LoadedModel


# How fast the bundled model writes here under some gates: measured, one text at a time. All gates
# take turns on one loaded model, so that whatever else the machine does hits all alike.

CPU, EMULATED, SLOW_LINK = "cpu", "emulated", "slow-link"
CACHE_RATIO = 0.25
SLOW_GB_S = 0.05  # 2 ms per expert of the bundled model, several times what computing it takes
MACHINES: dict[str, dict[str, Any]] = {
    CPU: {"accelerator": "none"},
    EMULATED: {"accelerator": "emulated", "cache_ratio": CACHE_RATIO},
    SLOW_LINK: {
        "accelerator": "emulated",
        "cache_ratio": CACHE_RATIO,
        "schedule": "gpu-only",
        "cache": "lru",
        "prefetch": "none",
        "link_gb_s": SLOW_GB_S,
    },
}


@dataclass(slots=True)
class Speed:
    """The speed of one gate, all repetitions together: decoded tokens after the first of every
    text."""

    tokens: int = 0
    seconds: float = 0.0
    repetitions: list[float] = field(default_factory=list)  # tokens per second of each

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


def measured_speeds(
    machine: str,
    gates: Sequence[str],
    problems: int,
    repetitions: int,
    advance: Callable[[int], None] = lambda done: None,
) -> dict[str, Speed]:
    """`advance(1)` after each repetition."""
    from moesaic.engine.loading import load, settings_from

    options = {"dtype": "fp32", "max_sequences": 1, "max_model_len": 512, "prefix_cache": False}
    options |= MACHINES[machine]
    model = load(None, settings_from(None, None, options))
    found = {gate: Speed() for gate in gates}
    try:
        for number in range(repetitions + 1):  # the first does not count: kernels warm up
            for gate, speed in found.items():
                tokens, seconds = _write(model, gate, problems)
                if number:
                    speed.tokens += tokens
                    speed.seconds += seconds
                    speed.repetitions.append(tokens / seconds)
            advance(1)
    finally:
        model.close()
    return found


def _write(model: LoadedModel, gate: str, problems: int) -> tuple[int, float]:
    from moesaic.engine.sampling.sampling_params import SamplingParams
    from moesaic.lab.evaluation.problem_set import SPLITS
    from moesaic.lab.evaluation.problem_task import problem_items
    from moesaic.lab.evaluation.prompts import CHAT

    choice = PolicyChoice.parse(known_gates, gate)
    model.runner.use_gate(choice.create(known_gates, model.spec.top_k), choice.name)
    assert model.tokenizer is not None, "the bundled model has one"
    tokens, seconds = 0, 0.0
    for question in problem_items(model.tokenizer, CHAT, problems, SPLITS[:1]):
        params = SamplingParams(max_tokens=question.max_tokens, temperature=0.0)
        request = model.input_processor.request(question.prompt, params)
        model.batcher.submit(request)
        while request.finish_reason is None:
            model.batcher.step()
        if request.failure is not None:
            raise request.failure
        times = request.completion().timings
        tokens += len(request.sampled) - 1
        seconds += times.total_s - (times.time_to_first_token_s or 0.0)
    return tokens, seconds


PREFIX = "measured"
GATES = {
    "full": FULL,
    "gamma=0": f"little:k={HALF}",
    "gamma=0.7": f"big-little:k={HALF}",
    "gamma=0.99": f"big-little:gamma=0.99,k={HALF}",
}
_PAPER = {"gamma=0": 1.85, "gamma=0.7": 1.57}
_WHERE = {
    CPU: "CPU only",
    EMULATED: f"emulated accelerator with {CACHE_RATIO:.0%} of the experts, default policies",
    SLOW_LINK: (
        f"emulated accelerator with {CACHE_RATIO:.0%} of the experts, loaded on demand (gpu-only "
        f"+ lru + none) over a link of {SLOW_GB_S:g} GB/s, so that transfers decide, as on the "
        "paper's machine"
    ),
}
Speeds = Mapping[str, Mapping[str, Speed]]  # machine, gate


def ids() -> list[str]:
    return [f"{PREFIX}/{machine}/{name}" for machine in MACHINES for name in GATES]


def measure_all(
    problems: int, repetitions: int, advance: Callable[[int], None]
) -> dict[str, dict[str, Speed]]:
    gates = list(GATES.values())
    return {
        machine: measured_speeds(machine, gates, problems, repetitions, advance)
        for machine in MACHINES
    }


def speed_rows(found: Speeds, problems: int) -> list[Row]:
    rows: list[Row] = []
    for machine, speeds in found.items():
        full = speeds[FULL]
        for name, gate in GATES.items():
            speed = speeds[gate]
            slow, fast = min(speed.repetitions), max(speed.repetitions)
            conditions = (
                f"measured here: {_WHERE[machine]}; moesaic-20m, fp32, one text at a time, "
                f"{problems} problems in {len(speed.repetitions)} repetitions: "
                f"{speed.tokens_per_s:.1f} tokens/s ({slow:.1f} to {fast:.1f})"
            )
            rows.append(
                Row(
                    f"{PREFIX}/{machine}/{name}", f"{gate}: speedup over all experts",
                    _PAPER.get(name), speed.tokens_per_s / full.tokens_per_s, "x", conditions,
                    f"moesaic reproduce mobile --only {PREFIX}/{machine}",
                )
            )  # fmt: skip
    return rows
