"""Cases of the kernel benchmark: expert shapes of real models, and which expert gets which tokens.

Every expert in play computes all tokens, as one decoded token or a batch that agrees would have it;
one case has the skewed loads of a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from moesaic.model_info.expert_shape import ExpertShape

SEED = 4


@dataclass(frozen=True, slots=True)
class Model:
    shape: ExpertShape
    active: int  # experts that a token asks for, at most 8


MODELS = {
    "deepseek-v2-lite": Model(ExpertShape(2048, 1408), 8),
    "qwen3-30b-a3b": Model(ExpertShape(2048, 768), 8),
    "mixtral-8x7b": Model(ExpertShape(4096, 14336), 2),
    "qwen3-235b-a22b": Model(ExpertShape(4096, 1536), 8),
}
TOKENS = (1, 2, 4, 8, 16, 64, 256, 1024)
DTYPES = ("bf16", "int8", "int4")
PROMPT_MODEL, PROMPT_TOKENS, PROMPT_EXPERTS = "qwen3-30b-a3b", 512, 128


@dataclass(frozen=True, slots=True)
class Case:
    model: str
    shape: ExpertShape
    tokens: str  # per expert; "512/128": that many, spread over so many experts
    experts: int  # that compute
    hidden: Any  # bf16 [tokens, hidden]
    ids: (
        Any  # int64 [tokens, k], numbers below `experts`: a contender adds where it is in its store
    )
    weights: Any  # fp32 [tokens, k]

    @property
    def flops(self) -> int:
        return 2 * self.shape.values * int(self.ids.numel())

    def loads(self) -> list[int]:
        """Tokens of every expert."""
        counted: list[int] = torch.bincount(self.ids.ravel(), minlength=self.experts).tolist()
        return counted


def even_case(name: str, tokens: int) -> Case:
    model = MODELS[name]
    ids = torch.arange(model.active).repeat(tokens, 1)
    return _case(name, str(tokens), model.active, ids)


def prompt_case() -> Case:
    """Some experts are asked for several times as often as others, as real routers do."""
    generator = torch.Generator().manual_seed(SEED)
    popularity = 0.8 * torch.randn(PROMPT_EXPERTS, generator=generator)
    uniform = torch.rand(PROMPT_TOKENS, PROMPT_EXPERTS, generator=generator)
    wanted = popularity - (-uniform.log()).log()  # the largest: drawn without repetition
    ids = wanted.topk(MODELS[PROMPT_MODEL].active, dim=1).indices
    used, numbers = ids.unique(return_inverse=True)
    return _case(PROMPT_MODEL, f"{PROMPT_TOKENS}/{PROMPT_EXPERTS}", len(used), numbers)


def _case(name: str, tokens: str, experts: int, ids: Any) -> Case:
    generator = torch.Generator().manual_seed(SEED)
    shape = MODELS[name].shape
    hidden = torch.randn(len(ids), shape.hidden, generator=generator).bfloat16()
    weights = torch.rand(ids.shape, generator=generator) + 0.1
    return Case(name, shape, tokens, experts, hidden, ids.contiguous(), weights / ids.shape[1])
