"""Sampling parameters as stock transformers applies them, in fp64, to compare with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from moesaic.engine.sampling.sampling_params import SamplingParams


def processors(params: SamplingParams, prompt_length: int, eos: Sequence[int] = ()) -> Any:
    """In the order of generate(), which test_sampling.py checks."""
    found: list[Any] = []
    if params.repetition_penalty != 1.0:
        found.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.min_tokens:
        found.append(MinNewTokensLengthLogitsProcessor(prompt_length, params.min_tokens, list(eos)))
    if params.temperature != 1.0:
        found.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        found.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        found.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        found.append(MinPLogitsWarper(params.min_p))
    return LogitsProcessorList(found)


def probabilities(
    logits: torch.Tensor,
    params: SamplingParams,
    seen: Iterable[int] = (0,),
    prompt_length: int = 1,
    eos: Sequence[int] = (),
) -> torch.Tensor:
    """Of one row [vocabulary]; 0 for what may not be drawn."""
    ids = torch.tensor([list(seen)])
    scores = processors(params, prompt_length, eos)(ids, logits.double()[None])
    return scores.softmax(-1)[0]
