"""Small models to generate with, with little capacity, and the text of stock ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from moesaic import LLM, SamplingParams

# So small a step that prompts are cut, and fewer slots than prompts: requests join and leave.
TIGHT: dict[str, Any] = {"threads": 1, "max_step_tokens": 7, "max_sequences": 3}
MACHINES: dict[str, dict[str, Any]] = {
    "cpu": {},
    "emulated": {"accelerator": "emulated", "cache_ratio": 0.25, "checked": True},
}
LENGTHS = (3, 20, 1, 9, 12, 2, 7)
TEXTS = (
    "The router of a mixture of experts",
    "Weights",
    "naïve café 😀",
    "",
    "def plan(view): return [expert for expert in view]",
)


def llm(folder: Path, machine: str = "cpu", **options: Any) -> LLM:
    return LLM(folder, **(TIGHT | MACHINES[machine] | options))


def greedy(tokens: int, **others: Any) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0.0, **others)


def prompts(lengths: tuple[int, ...] = LENGTHS, vocabulary: int = 97) -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(0, vocabulary, (n,), generator=generator).tolist() for n in lengths]


def stock_greedy(model: Any, prompt: list[int], tokens: int, **options: Any) -> list[int]:
    """What the stock implementation's own `generate` appends."""
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        made = model.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=tokens, **options
        )
    written: list[int] = made[0, len(prompt) :].tolist()
    return written
