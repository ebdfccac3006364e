"""What is done to scores before any choice, greedy or not: penalties and tokens not allowed yet.

Scores are fp32, [rows, vocabulary], and changed in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from moesaic.engine.sampling.sampling_state import SamplingState


def apply_repetition_penalty(scores: torch.Tensor, rows: Sequence[SamplingState]) -> None:
    """Stock transformers' rule: every seen token once, positive scores divided by the penalty,
    negative ones multiplied with it."""
    fined = [(i, row) for i, row in enumerate(rows) if row.params.repetition_penalty != 1.0]
    if not fined:
        return
    lengths = [len(row.seen) for _, row in fined]
    tokens = np.concatenate([np.array(row.seen, dtype=np.int64) for _, row in fined])
    repeated = np.repeat(np.array([i for i, _ in fined]), lengths)
    penalties = np.repeat([np.float32(row.params.repetition_penalty) for _, row in fined], lengths)
    # A model may read more tokens than it can write.
    known = tokens < scores.shape[1]
    where = tuple(torch.from_numpy(a[known]).to(scores.device) for a in (repeated, tokens))
    penalty = torch.from_numpy(penalties[known]).to(scores.device)
    old = scores[where]
    # A token seen twice is written twice with the same value.
    scores[where] = torch.where(old < 0, old * penalty, old / penalty)


def apply_output_penalties(scores: torch.Tensor, rows: Sequence[SamplingState]) -> None:
    """OpenAI's rule: of every token of the output (not of the prompt), the presence penalty once
    and the frequency penalty as often as it occurs are subtracted."""
    for index, row in enumerate(rows):
        presence, frequency = row.params.presence_penalty, row.params.frequency_penalty
        output = np.array(row.seen, dtype=np.int64)[len(row.seen) - row.generated :]
        if not (presence or frequency) or not len(output):
            continue
        tokens, counts = np.unique(output, return_counts=True)
        off = (presence + frequency * counts).astype(np.float32)
        scores[index, torch.from_numpy(tokens).to(scores.device)] -= torch.from_numpy(off).to(
            scores.device
        )


def apply_logit_bias(scores: torch.Tensor, rows: Sequence[SamplingState]) -> None:
    for index, row in enumerate(rows):
        if row.params.biases:
            tokens, bias = zip(*row.params.biases, strict=True)
            at = torch.tensor(tokens, device=scores.device)
            scores[index, at] += torch.tensor(bias, device=scores.device)


def mask_tokens(scores: torch.Tensor, rows: Sequence[int], tokens: Sequence[int]) -> None:
    """Exclude these tokens in the given rows."""
    written = [token for token in tokens if token < scores.shape[1]]
    if rows and written:
        at = torch.tensor(rows, device=scores.device)
        scores[at[:, None], torch.tensor(written, device=scores.device)] = float("-inf")


def mask_forbidden(scores: torch.Tensor, rows: Sequence[SamplingState]) -> None:
    """Exclude what the constraints of rows do not allow."""
    for index, row in enumerate(rows):
        if row.constraint is not None:
            forbidden = row.constraint.forbidden(scores.shape[1]).to(scores.device)
            scores[index].masked_fill_(forbidden, float("-inf"))
