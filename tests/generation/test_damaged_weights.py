"""Does NaN or infinity anywhere in the network end a request before its first token?

Damage is done to one value of one tensor of a loaded model, by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from math import inf, nan
from typing import Any

import pytest
import torch
from small_llms import greedy

import stock
from moesaic import LLM
from moesaic.core.errors import BrokenModel
from moesaic.models.decoder import Decoder


def named_tensors(decoder: Decoder) -> dict[str, torch.Tensor]:
    """Weights of the network without the routed experts; layers by number."""
    found = {"embedding": decoder.embedding, "head": decoder.head}
    found["norm"] = decoder.norm.weight
    for number, layer in enumerate(decoder.layers):
        found |= dict(_tensors(layer, f"{number}"))
    return {name: tensor for name, tensor in found.items() if tensor.is_floating_point()}


def _tensors(part: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(part, torch.Tensor):
        yield name, part
    elif is_dataclass(part):
        for field in fields(part):
            if field.name not in ("architecture", "rule", "shape", "fused"):
                yield from _tensors(getattr(part, field.name), f"{name}.{field.name}")
    elif isinstance(part, tuple) and hasattr(part, "_fields"):
        for field_name in part._fields:
            yield from _tensors(getattr(part, field_name), f"{name}.{field_name}")


@contextmanager
def damaged(tensor: torch.Tensor, value: float, at: int = 0) -> Iterator[None]:
    """One value is replaced for a while; `at` counts from the beginning."""
    with torch.inference_mode():
        flat = tensor.view(-1)
        before = flat[at].clone()
        flat[at] = value
    try:
        yield
    finally:
        with torch.inference_mode():
            flat[at] = before


def expert_values(model: LLM, layer: int) -> list[torch.Tensor]:
    """The blocks of a layer's routed experts, as fp32 numbers."""
    store = model.model.runner.machine.store
    return [block.view(torch.float32) for block in store.layer(layer).tensors]


FAMILIES = (
    "mixtral", "qwen2-moe", "qwen3-moe", "olmoe-clipped", "glm-4.5", "deepseek-v2", "gpt-oss",
)  # fmt: skip
TOKEN = 5  # the only one of the prompt


def kinds(model: LLM) -> dict[str, tuple[torch.Tensor, int]]:
    """One tensor of every kind of weight, and which of its values is damaged."""
    found = {}
    for name, tensor in named_tensors(model.model.runner.decoder).items():
        at = TOKEN * tensor.shape[-1] if name == "embedding" else 0
        found[name.partition(".")[2] or name] = tensor, at
    return found


def noticed(model: LLM, tensor: torch.Tensor, value: float, at: int) -> bool:
    with damaged(tensor, value, at):
        try:
            model.generate([[TOKEN]], greedy(1))
        except BrokenModel:
            return True
    return False


@pytest.mark.parametrize("family", FAMILIES)
def test_one_bad_value_in_any_weight_is_noticed_at_once(family: str) -> None:
    """Also where it is one of several: with few tokens, attention takes NaN for a mask."""
    with LLM(stock.saved(family).folder, threads=1) as model:
        (before,) = model.generate([[TOKEN]], greedy(3))
        unnoticed = [
            (name, value)
            for name, (tensor, at) in kinds(model).items()
            for value in (nan, inf, -inf)
            if not noticed(model, tensor, value, at)
        ]
        (after,) = model.generate([[TOKEN]], greedy(3))
    assert not unnoticed
    assert after.tokens == before.tokens


@pytest.mark.parametrize("length", [2, 3, 7, 40])
def test_longer_prompts_and_prompts_in_pieces(length: int) -> None:
    with LLM(stock.saved("qwen3-moe").folder, threads=1, max_step_tokens=5) as model:
        for name in (
            "attention.query.weight",
            "attention.key_norm.weight",
            "feed_forward.norm.weight",
        ):
            tensor, at = kinds(model)[name]
            with damaged(tensor, nan, at), pytest.raises(BrokenModel):
                model.generate([[TOKEN] * length], greedy(1))


@pytest.mark.parametrize("family", ["olmoe", "gpt-oss"])
@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_damaged_experts(value: float, family: str) -> None:
    with LLM(stock.saved(family).folder, threads=1, dtype="fp32") as model:
        for layer in range(3):
            for block in expert_values(model, layer):
                with torch.inference_mode():
                    block[0] = value
            with pytest.raises(BrokenModel):
                model.generate([[TOKEN]], greedy(1))
            for block in expert_values(model, layer):
                with torch.inference_mode():
                    block[0] = 0.1


def test_others_of_the_batch_go_on() -> None:
    """A token whose query alone is infinite: no other token looks at it."""
    with LLM(stock.saved("mixtral").folder, threads=1) as model:
        (alone,) = model.generate([[1, 2, 3]], greedy(4))
        embedding = model.model.runner.decoder.embedding
        with damaged(embedding, inf, TOKEN * embedding.shape[1]):
            processor, batcher = model.model.input_processor, model.model.batcher
            requests = [processor.request(p, greedy(4)) for p in ([1, 2, 3], [TOKEN, 1])]
            for request in requests:
                batcher.submit(request)
            while not batcher.idle:
                batcher.step()
    assert isinstance(requests[1].failure, BrokenModel)
    assert not requests[1].completion().tokens
    assert requests[0].completion().tokens == alone.tokens
