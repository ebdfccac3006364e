"""Stock `transformers` with `accelerate`'s offloading, alone in its process:
`python -m moesaic.lab.bench.stock_child`.

Reads one JSON object from standard input (see `stock_peer.py`) and prints one. Layers that do not
fit in the GPU's budget stay in main memory and are brought to the GPU, whole, for every pass."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from time import perf_counter
from typing import Any

import torch

_CHUNK = 1 << 20  # random values that all weights are made of: speed does not depend on them


def main() -> None:
    asked = json.load(sys.stdin)
    torch.set_num_threads(asked["threads"])
    with torch.inference_mode():
        model = _loaded(asked)
        tests = {name: _measured(model, asked, *test) for name, test in asked["tests"].items()}
    answer = json.dumps({"tests": tests, "layers_on_gpu": _layers_on_gpu(model)})
    sys.stdout.write(f"\n{answer}\n")


def _loaded(asked: dict[str, Any]) -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    dtype = getattr(torch, asked["dtype"])
    limits = _limits(asked)
    if asked["folder"] is not None:
        return transformers.AutoModelForCausalLM.from_pretrained(
            asked["folder"], dtype=dtype, device_map="auto" if limits else None, max_memory=limits
        ).eval()
    fields = dict(asked["config"])
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    if limits is None:  # a test without a GPU
        made = transformers.AutoModelForCausalLM.from_config(config)
        return filled(made.to(dtype)).eval()
    accelerate: Any = import_module("accelerate")
    with accelerate.init_empty_weights(include_buffers=False):
        empty = transformers.AutoModelForCausalLM.from_config(config)
    model = filled(_in_main_memory(empty.to(dtype))).eval()
    whole = list(model._no_split_modules or [])
    placed = accelerate.infer_auto_device_map(
        model, limits, no_split_module_classes=whole, dtype=dtype
    )
    return accelerate.dispatch_model(model, placed)


def _limits(asked: dict[str, Any]) -> dict[int | str, int] | None:
    gpu = asked["gpu_bytes"]
    return None if gpu is None else {0: gpu, "cpu": asked["host_bytes"]}


def _in_main_memory(model: torch.nn.Module) -> torch.nn.Module:
    """Parameters that have no memory yet get some; buffers have theirs."""
    for module in model.modules():
        for name, value in list(module.named_parameters(recurse=False)):
            made = torch.empty(value.shape, dtype=value.dtype, device="cpu")
            setattr(module, name, torch.nn.Parameter(made, requires_grad=False))
    tie = getattr(model, "tie_weights", None)
    if tie is not None:
        tie()
    return model


def filled(model: torch.nn.Module) -> torch.nn.Module:
    chunk = torch.randn(_CHUNK) * 0.02
    for value in model.parameters():
        flat, piece = value.data.view(-1), chunk.to(value.dtype)
        for start in range(0, len(flat), _CHUNK):
            part = flat[start : start + _CHUNK]
            part.copy_(piece[: len(part)])
    return model


def _measured(model: Any, asked: dict[str, Any], phase: str, tokens: int) -> list[float]:
    """Tokens per second of every repetition, after one that does not count."""
    read = _prompt if phase == "prefill" else _answer
    rates = []
    for repetition in range(asked["repetitions"] + 1):
        rate = tokens / read(model, tokens)
        if repetition:
            rates.append(rate)
    return rates


def _prompt(model: Any, tokens: int) -> float:
    started = perf_counter()
    model(_tokens(model, tokens), use_cache=True, logits_to_keep=1).logits.sum().item()
    return perf_counter() - started


def _answer(model: Any, tokens: int) -> float:
    """Decode from one token on, each chosen by the last."""
    given, past = _tokens(model, 1), None
    out = model(given, use_cache=True)
    started = perf_counter()
    for _ in range(tokens):
        past, given = out.past_key_values, out.logits[:, -1].argmax(-1, keepdim=True)
        out = model(given, past_key_values=past, use_cache=True)
    out.logits.sum().item()
    return perf_counter() - started


def _tokens(model: Any, count: int) -> torch.Tensor:
    numbers = torch.arange(count) * 131 % model.config.vocab_size
    return numbers[None, :].to("cuda" if torch.cuda.is_available() else "cpu")


def _layers_on_gpu(model: Any) -> int | None:
    """None: nothing was divided."""
    placed: dict[str, Any] | None = getattr(model, "hf_device_map", None)
    if placed is None:
        return None
    whole: int = sum(".layers." in f".{name}." and where == 0 for name, where in placed.items())
    return whole


if __name__ == "__main__":
    main()
