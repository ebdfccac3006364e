"""A gate that runs tokens again, and by hand what it must lead to: two plain models, one with all
experts and one with half, that take turns on one KV cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

import stock
from moesaic import SamplingParams
from moesaic.core.confidence import Confidence
from moesaic.engine.sampling.sampled import Sampled
from moesaic.engine.sampling.sampler import Sampler
from moesaic.engine.sampling.sampling_state import SamplingState
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.decoder import Decoder
from moesaic.models.experts.expert_service import ExpertService, ResidentExperts, RoutedTokens
from moesaic.models.experts.router import Choice
from moesaic.models.open_model import (
    load_decoder,
    load_resident_experts,
    open_model,
    with_experts_per_token,
)
from moesaic.models.token_batch import Segment
from moesaic.policies.gate.base import Gate, GateStep

CLEAR = 1e-4  # how far a top probability must be from the threshold, for rounding not to decide


class Halves(Gate):
    """Half of the experts at first; all of them where the model was not sure. Prompts are read
    with all."""

    reruns = True

    def __init__(self, top_k: int, sure_above: float) -> None:
        super().__init__(top_k)
        self.sure_above = sure_above

    def experts_per_token(self, step: GateStep) -> NDArray[np.int64]:
        whole = np.array(step.prompt) | (np.array(step.attempts) > 0)
        return np.repeat(np.where(whole, self.top_k, half_of(self.top_k)), step.tokens)

    def judge(self, step: GateStep, confidence: Confidence) -> NDArray[np.bool_]:
        return confidence.top <= self.sure_above


def half_of(top_k: int) -> int:
    return max(top_k // 2, 1)


@dataclass
class ByHand:
    sure_above: float
    tokens: list[Sampled] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # experts used by every token that was fed
    tops: list[float] = field(default_factory=list)  # top probability after it; prompt: the last
    first_tops: list[float] = field(default_factory=list)  # of decoded tokens, with half

    @property
    def reruns(self) -> int:
        return sum(top <= self.sure_above for top in self.first_tops)


@dataclass
class Reusing:
    """Experts of one token, with what its router said in a pass before instead of now: which
    experts, best first, and, with `routing`, how likely they were."""

    experts: ResidentExperts
    before: list[Choice]
    reuse: str
    top_k: int
    normalized: bool

    def compute(self, routed: RoutedTokens) -> torch.Tensor:
        before = self.before[routed.layer]
        chosen = before.preference.topk(self.top_k).indices
        said = before if self.reuse == "routing" else routed.choice
        weights = said.scores.gather(1, chosen)
        if self.normalized:
            weights = weights / weights.sum()
        choice = Choice(chosen, weights, routed.choice.scores, routed.choice.preference)
        return self.experts.compute(routed._replace(choice=choice))


@dataclass
class Listening:
    experts: ResidentExperts
    said: list[Choice] = field(default_factory=list)

    def compute(self, routed: RoutedTokens) -> torch.Tensor:
        self.said.append(routed.choice)
        return self.experts.compute(routed)


@dataclass
class TwoModels:
    whole: Decoder
    half: Decoder
    experts: ResidentExperts

    @property
    def top_k(self) -> int:
        return self.whole.architecture.spec.top_k

    def write(
        self, prompt: list[int], params: SamplingParams, sure_above: float, reuse: str = "none"
    ) -> ByHand:
        memory = BlockCache(self.whole.architecture.spec, 1, 128, torch.float32)
        sampler, row = Sampler(), SamplingState.start(params, prompt)
        made = ByHand(sure_above)
        logits = self._feed(self.whole, prompt, memory)
        made.counts += [self.top_k] * len(prompt)
        while True:
            made.tops.append(_top(logits))
            (sampled,) = sampler.sample(logits, [row])
            row.append(sampled.token)
            made.tokens.append(sampled)
            if len(made.tokens) == params.max_tokens:
                return made
            little = Listening(self.experts)
            logits = self._feed(self.half, [sampled.token], memory, little)
            made.first_tops.append(_top(logits))
            assert abs(_top(logits) - sure_above) > CLEAR, "rounding would decide"
            made.counts.append(half_of(self.top_k))
            if _top(logits) <= sure_above:
                memory.truncate(0, memory.length(0) - 1)
                big: ExpertService = self.experts
                if reuse != "none":
                    normalized = self.whole.architecture.router.normalized
                    big = Reusing(self.experts, little.said, reuse, self.top_k, normalized)
                logits = self._feed(self.whole, [sampled.token], memory, big)
                made.counts[-1] = self.top_k

    def _feed(
        self,
        model: Decoder,
        tokens: list[int],
        memory: BlockCache,
        experts: ExpertService | None = None,
    ) -> torch.Tensor:
        """Logits after the last one, [1, vocabulary]."""
        segments = [Segment(0, len(tokens))]
        hidden = model.forward(torch.tensor(tokens), segments, memory, experts or self.experts)
        return model.logits(hidden[-1:])


def _top(logits: torch.Tensor) -> float:
    return float(logits.softmax(-1).max())


@cache
def two_models(name: str) -> TwoModels:
    opened = open_model(stock.saved(name).folder)
    narrow = with_experts_per_token(opened, half_of(opened.architecture.spec.top_k))
    experts = load_resident_experts(opened, "fp32")
    return TwoModels(load_decoder(opened, "fp32"), load_decoder(narrow, "fp32"), experts)
