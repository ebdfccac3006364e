"""How long a packed model takes to open, `python -m benchmarks.packed_load --layers 30`.

Writes one of random weights in the shape of Qwen3-30B-A3B (0.34 GB of int4 experts per layer) to
`--folder`, then opens it in fresh processes: mapped, read, and with a GPU where there is one. The
file was just written, so it is in the page cache; `--cold` drops it first (as root). Prints seconds
until a token could be asked for, the process's memory, and decoded tokens per second; `--how` names
the ways, where memory holds the file but not a copy of it. The model is removed at the end.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any, cast

import torch

from moesaic.core.routing import ExpertId
from moesaic.engine.assemble import load_store
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.expert_kernel import expert_kernel
from moesaic.engine.loading import LoadedModel, load_prepared
from moesaic.engine.packing import Packing, write_experts
from moesaic.engine.preparation import Prepared, prepare
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.hardware.procfs import process_memory
from moesaic.kernels.base import ExpertKernel, ExpertWeights
from moesaic.model_info.packed.header import DENSE
from moesaic.models.checkpoints.checkpoint import Checkpoint
from moesaic.models.configs.network_reader import read_architecture
from moesaic.models.dense_file import write_dense
from moesaic.models.open_model import OpenModel, load_decoder
from moesaic.models.synthetic_model import random_expert

CONFIG = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "vocab_size": 151936, "num_experts": 128,
    "num_experts_per_tok": 8, "moe_intermediate_size": 768, "intermediate_size": 6144,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "norm_topk_prob": True,
    "tie_word_embeddings": False, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 1000000.0, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "attention_bias": False,
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "mapped": {"accelerator": "none", "mmap": True},
    "read": {"accelerator": "none", "mmap": False},
    "cuda": {"accelerator": "cuda", "gpu_memory_gb": 16.0},
}
PROMPT = list(range(100, 132))


class _RandomCheckpoint:
    def __contains__(self, name: str) -> bool:
        return True

    def read(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        if len(shape) == 1:
            return torch.ones(tuple(shape), dtype=torch.bfloat16)
        values = torch.empty(tuple(shape), dtype=torch.bfloat16)
        return values.normal_(0.0, shape[-1] ** -0.5)


class _SameBlock:
    """A kernel that packs one expert and copies it from then on: what takes time is the writing."""

    def __init__(self, kernel: ExpertKernel) -> None:
        self._kernel, self._block = kernel, cast(torch.Tensor | None, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def pack(self, weights: ExpertWeights, block: torch.Tensor) -> None:
        if self._block is None:
            self._kernel.pack(weights, block)
            self._block = block.clone()
        block.copy_(self._block)


def write_model(folder: Path, layers: int, dtype: str) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": layers}))
    architecture = read_architecture(folder)
    checkpoint = cast(Checkpoint, _RandomCheckpoint())
    model = OpenModel(architecture, checkpoint, cast(Any, None))
    with (folder / DENSE).open("wb") as file:
        write_dense(model, file)
    kernel = cast(ExpertKernel, _SameBlock(expert_kernel(architecture.expert_shape, dtype)))
    spec = architecture.spec
    one = random_expert(architecture.expert_shape)

    def experts() -> Iterator[tuple[ExpertId, ExpertWeights]]:
        for layer in range(spec.num_moe_layers):
            for expert in range(spec.num_experts):
                yield ExpertId(layer, expert), one

    packing = Packing(model, folder, folder, kernel, 0, 0)
    write_experts(packing, experts(), folder, lambda done: None)


def open_model(folder: Path, how: str, tokens: int) -> dict[str, Any]:
    """In this process; then decode so many tokens, three times."""
    settings = EngineSettings(max_sequences=1, max_model_len=2048, **SETTINGS[how])
    start = perf_counter()
    prepared = prepare(folder, settings)
    opened = perf_counter()
    if tokens < 0:
        return _load_only(prepared, opened - start)
    loaded: list[float] = []  # when the first and the last expert was there
    model = load_prepared(prepared, None, lambda done, of: loaded.append(perf_counter()))
    ready = perf_counter()
    memory = process_memory().now
    speeds = [_decode(model, tokens) for _ in range(3)] if tokens else [0.0]
    model.close()
    return {
        "open": opened - start,
        "dense": loaded[0] - opened,
        "experts": loaded[-1] - loaded[0],
        "warm-up": ready - loaded[-1],
        "total": ready - start,
        "gb": (memory or 0) / 1e9,
        "tokens/s": max(speeds),
    }


def _load_only(prepared: Prepared, opened: float) -> dict[str, Any]:
    """Without measuring the machine for the planner, which a busy one does slowly."""
    start, plan = perf_counter(), prepared.plan
    cpu = process_time()
    decoder = load_decoder(prepared.opened, plan.dtype)
    dense = perf_counter()
    mapped = prepared.settings.mmap is True
    experts = prepared.opened.experts
    store = load_store(decoder, experts, plan.expert_dtype, mapped=mapped)
    end = perf_counter()
    assert store.mapped == mapped
    return {
        "open": opened,
        "dense": dense - start,
        "experts": end - dense,
        "total": opened + end - start,
        "cpu": process_time() - cpu,
        "gb": (process_memory().now or 0) / 1e9,
    }


def _decode(model: LoadedModel, tokens: int) -> float:
    params = SamplingParams(max_tokens=tokens + 1, temperature=0.0, ignore_eos=True)
    request = model.input_processor.request(PROMPT, params)
    model.batcher.submit(request)
    model.batcher.step()
    start = perf_counter()
    while request.finish_reason is None:
        model.batcher.step()
    return tokens / (perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--dtype", default="int4")
    parser.add_argument("--folder", type=Path, help="where to write it (a fresh folder in there)")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--how", action="append", choices=list(SETTINGS), help="only these ways")
    parser.add_argument("--tokens", type=int, default=64, help="to decode; -1: load only")
    parser.add_argument("--open", nargs=2, metavar=("FOLDER", "HOW"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.open:
        print(json.dumps(open_model(Path(asked.open[0]), asked.open[1], asked.tokens)))
        return
    with TemporaryDirectory(dir=asked.folder) as made:
        start = perf_counter()
        write_model(Path(made), asked.layers, asked.dtype)
        size = sum(file.stat().st_size for file in Path(made).iterdir())
        print(f"{size / 1e9:.2f} GB written in {perf_counter() - start:.0f} s")
        ways = [how for how in SETTINGS if how != "cuda" or torch.cuda.is_available()]
        ways = asked.how or ways
        for number, how in enumerate([ways[0], *ways]):  # the first compiles the planners
            if asked.cold:
                subprocess.run(["sync"], check=True)
                Path("/proc/sys/vm/drop_caches").write_text("3")
            words = [sys.executable, "-m", "benchmarks.packed_load", "--open", made, how]
            words += ["--tokens", str(asked.tokens)]
            done = subprocess.run(words, check=False, capture_output=True, text=True)
            if done.returncode:
                print(f"{how}: {done.stderr.strip().splitlines()[-1]}")
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            cells = "  ".join(f"{name} {value:.2f}" for name, value in row.items())
            print(f"{how:7s} {cells}{'  (first run)' if number == 0 else ''}", flush=True)


if __name__ == "__main__":
    main()
