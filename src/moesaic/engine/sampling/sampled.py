"""A sampled token and its log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from moesaic.engine.sampling.sampling_params import SamplingParams


class Alternative(NamedTuple):
    token: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Sampled:
    """A chosen token. Log-probabilities are of the model's own distribution: the log_softmax of
    its logits in fp32, before penalties, temperature and filters."""

    token: int
    logprob: float | None = None  # None: not asked for
    alternatives: tuple[Alternative, ...] = ()  # the likeliest tokens, best first, the chosen
    # one among them where it belongs there; those that the model rules out are left out


def with_logprobs(
    logits: torch.Tensor, tokens: Sequence[int], params: Sequence[SamplingParams]
) -> list[Sampled]:
    """Each row's token, with log-probabilities where its request asks for them."""
    done = [Sampled(token) for token in tokens]
    asked = [row for row, each in enumerate(params) if each.logprobs is not None]
    if not asked:
        return done
    logprobs = logits[asked].float().log_softmax(-1)
    chosen = torch.tensor([tokens[row] for row in asked], device=logits.device)
    own = logprobs.gather(1, chosen[:, None])[:, 0].tolist()
    counts = [params[row].logprobs or 0 for row in asked]
    best = logprobs.topk(min(max(counts), logprobs.shape[1]))
    ranked = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    for row, logprob, count, (ids, values) in zip(asked, own, counts, ranked, strict=True):
        pairs = zip(ids[:count], values[:count], strict=True)
        others = tuple(Alternative(i, v) for i, v in pairs if v > float("-inf"))
        done[row] = Sampled(tokens[row], logprob, others)
    return done
