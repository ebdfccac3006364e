"""A prompt on a CPU alone with packed dense weights, beside PyTorch's dense product on the same
experts: packing for decoded tokens must not make prompts slower. Prompts take turns.

    python -m benchmarks.cpu_prompt [--layers 12] [--threads 16] [--tokens 512] [--precisions bf16]

With --parts also packed weights with attention by PyTorch (`pytorch_attention`), and with norms,
rotation and routers, too (`pytorch_rows`); of each a layer's milliseconds, those of its experts,
and its page faults.
"""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from time import perf_counter

from moesaic.engine.assemble import on_store, synthetic_store
from moesaic.engine.dense_weights import dense_packer
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.capacity import Capacity
from moesaic.engine.runner import Runner
from moesaic.hardware.host import usable_cores
from moesaic.kernels.instruction_sets import REFERENCE, choose
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from moesaic.models.attentions import grouped_attention
from moesaic.models.configs.synthetic_architecture import synthetic_architecture
from moesaic.models.synthetic_model import synthetic_decoder


def measure(options: argparse.Namespace, precision: str) -> dict[str, object]:
    """Tokens per second of both; how many times as fast packed weights are, within rounds."""
    architecture = synthetic_architecture(options.model, options.layers)
    settings = EngineSettings(
        accelerator="none", threads=options.threads, max_sequences=1,
        max_step_tokens=options.tokens, dense_dtype=precision, kernel=options.kernel,
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
        parts = layer_parts(runners["packed"], options) if options.parts else {}
    times = [slow / fast for slow, fast in zip(taken["pytorch"], taken["packed"], strict=True)]
    rates = {name: options.tokens / median(seconds) for name, seconds in taken.items()}
    return {
        "precision": precision, "layers": architecture.spec.num_layers, "tokens": options.tokens,
        **{f"{name}_tokens_per_s": rate for name, rate in rates.items()},
        "times": median(times), "times_low": min(times), "times_high": max(times), **parts,
    }  # fmt: skip


@contextmanager
def pytorch_attention() -> Iterator[None]:
    """Scores and softmax of packed networks by PyTorch."""
    from moesaic.kernels import native_attention

    kept = native_attention.MIN_TOKENS
    native_attention.MIN_TOKENS = 1 << 30
    try:
        yield
    finally:
        native_attention.MIN_TOKENS = kept


@contextmanager
def pytorch_rows() -> Iterator[None]:
    """What is between the products of packed weights, by PyTorch."""
    from moesaic.kernels import native_linear

    kept = native_linear.MIN_ROWS, grouped_attention.NATIVE_ROWS
    native_linear.MIN_ROWS = grouped_attention.NATIVE_ROWS = 1 << 30
    try:
        with pytorch_attention():
            yield
    finally:
        native_linear.MIN_ROWS, grouped_attention.NATIVE_ROWS = kept


def layer_parts(runner: Runner, options: argparse.Namespace) -> dict[str, object]:
    """Medians of a layer, with native attention and rows and without, in turns."""
    spec = runner.decoder.architecture.spec
    layers, vocabulary = spec.num_layers, spec.vocab_size
    found: dict[str, list[float]] = {}

    def prompt(name: str) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        seconds = prompt_seconds(runner, options.tokens, vocabulary)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        times = runner.machine.times
        for part, value in (
            ("ms", seconds * 1e3), ("experts_ms", times.experts_ns * 1e-6),
            ("router_ms", times.router_ns * 1e-6), ("faults", float(faults)),
        ):  # fmt: skip
            found.setdefault(f"{name}_layer_{part}", []).append(value / layers)

    for _ in range(options.rounds):
        prompt("native_rows")
        with pytorch_attention():
            prompt("pytorch_attention")
        with pytorch_rows():
            prompt("pytorch_rows")
    return {name: median(values) for name, values in found.items()}


def prompt_seconds(runner: Runner, tokens: int, vocabulary: int) -> float:
    began = perf_counter()
    runner.step(ForwardPass([Piece(0, [number * 131 % vocabulary for number in range(tokens)])]))
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
    parser.add_argument("--parts", action="store_true")
    options = parser.parse_args()
    if choose(options.kernel) == REFERENCE:
        parser.error("dense weights are packed for native kernels, which are not here")
    for precision in options.precisions.split(","):
        print(json.dumps(measure(options, precision)), flush=True)


if __name__ == "__main__":
    main()
