"""A prompt on a CPU alone with packed dense weights, beside PyTorch's dense product on the same
experts: packing for decoded tokens must not make prompts slower. Prompts take turns.

    python -m benchmarks.cpu_prompt [--layers 12] [--threads 16] [--tokens 512] [--precisions bf16]
"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from statistics import median
from time import perf_counter

from moesaic.engine.assemble import on_store, synthetic_store
from moesaic.engine.dense_weights import dense_packer
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.capacity import Capacity
from moesaic.engine.runner import Runner, SequenceInput
from moesaic.hardware.host import usable_cores
from moesaic.kernels.instruction_sets import REFERENCE, choose
from moesaic.models.synthetic_model import synthetic_architecture, synthetic_decoder


def measure(options: argparse.Namespace, precision: str) -> dict[str, object]:
    """Tokens per second of both; how many times as fast packed weights are, within rounds."""
    architecture = synthetic_architecture(options.model, options.layers)
    settings = EngineSettings(
        threads=options.threads, max_sequences=1, max_step_tokens=options.tokens,
        dense_dtype=precision, kernel=options.kernel,
    )  # fmt: skip
    packing = dense_packer(settings, "bf16")
    decoders = {
        "packed": synthetic_decoder(architecture, "bf16", dense=packing),
        "pytorch": synthetic_decoder(architecture, "bf16"),
    }
    store = synthetic_store(decoders["packed"], precision, kernel_name=options.kernel)
    taken: dict[str, list[float]] = {name: [] for name in decoders}
    with ExitStack() as stack:
        runners = {}
        for name, decoder in decoders.items():
            runner = on_store(decoder, store, settings, Capacity(0, 1, options.tokens + 1))
            stack.callback(runner.close)
            runners[name] = runner
        for round_number in range(options.rounds + 1):
            for name, runner in runners.items():
                seconds = prompt_seconds(runner, options.tokens, architecture.spec.vocab_size)
                if round_number:  # the first of each warms up
                    taken[name].append(seconds)
    times = [slow / fast for slow, fast in zip(taken["pytorch"], taken["packed"], strict=True)]
    rates = {name: options.tokens / median(seconds) for name, seconds in taken.items()}
    return {
        "precision": precision, "layers": architecture.spec.num_layers, "tokens": options.tokens,
        **{f"{name}_tokens_per_s": rate for name, rate in rates.items()},
        "times": median(times), "times_low": min(times), "times_high": max(times),
    }  # fmt: skip


def prompt_seconds(runner: Runner, tokens: int, vocabulary: int) -> float:
    began = perf_counter()
    runner.step([SequenceInput(0, [number * 131 % vocabulary for number in range(tokens)])])
    seconds = perf_counter() - began
    runner.free_slot(0)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-30b-a3b")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--precisions", default="bf16,int4")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kernel", default="auto")
    options = parser.parse_args()
    if choose(options.kernel) == REFERENCE:
        parser.error("dense weights are packed for native kernels, which are not here")
    for precision in options.precisions.split(","):
        print(json.dumps(measure(options, precision)), flush=True)


if __name__ == "__main__":
    main()
