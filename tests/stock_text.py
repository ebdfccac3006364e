"""What a stock model says: prompts, its logits, and the text it writes by itself."""

from __future__ import annotations

from typing import Any

import torch

STEPS = 32


def prompt(length: int, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [int(token) for token in torch.randint(0, 97, (length,), generator=generator)]


def stock_logits(model: Any, tokens: list[int], past: Any = None) -> tuple[torch.Tensor, Any]:
    with torch.inference_mode():
        out = model(torch.tensor([tokens]), past_key_values=past, use_cache=True)
    return out.logits[0], out.past_key_values


def greedy(model: Any, tokens: list[int], steps: int = STEPS) -> tuple[torch.Tensor, list[int]]:
    """The stock model's logits over a prompt and some tokens of its own, and those tokens."""
    logits, past = stock_logits(model, tokens)
    seen, chosen = [logits], [int(logits[-1].argmax())]
    for _ in range(steps):
        logits, past = stock_logits(model, chosen[-1:], past)
        seen.append(logits)
        chosen.append(int(logits[-1].argmax()))
    return torch.cat(seen), chosen
