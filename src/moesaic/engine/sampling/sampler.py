"""From logits to tokens: every row of a batch by its own request's parameters.

In the order of stock transformers: repetition penalty (then penalties on the output and biases,
which it has not got), no end before `min_tokens`, only what a grammar allows, then argmax (greedy)
or temperature, top-k, top-p, min-p and a draw. Does not know when a request is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from moesaic.core.errors import BrokenModel, StuckGrammar
from moesaic.engine.sampling.candidates import MIN_TEMPERATURE, candidates
from moesaic.engine.sampling.sampled import Sampled, with_logprobs
from moesaic.engine.sampling.sampling_state import SamplingState
from moesaic.machines.real.forward_pass import GREEDY, RowSampling


class Sampler:
    def __init__(self, eos: Iterable[int] = ()) -> None:
        """`eos`: the tokens that end a sequence, which `min_tokens` forbids for a while."""
        self._eos = tuple(sorted(set(eos)))

    def sample(self, logits: torch.Tensor, rows: Sequence[SamplingState]) -> list[Sampled]:
        """One token per row of `logits` [rows, vocabulary], which stay as they are. Advances the
        generators of the rows that draw, or of none where it fails; the caller appends the tokens
        to the rows. Where the rows need no more of them (`row_sampling`), `logits` may be tokens
        that a machine sampled [rows], -1 where logits were not finite."""
        assert len(logits) == len(rows), "every row of logits belongs to a request"
        if logits.dim() == 1:
            return self._accepted(logits.tolist(), rows)
        _check_constraints(rows)
        with torch.inference_mode():
            scores = logits.float()
            tokens = _checked_argmax(scores)
            changed = [index for index, row in enumerate(rows) if self._changed(row)]
            if changed:
                mine = scores[changed]  # a copy
                best = self._change(mine, [rows[index] for index in changed])
                _put(tokens, changed, best)
                whole = len(changed) == len(rows)
                scores = mine if whole else scores.index_copy(0, torch.tensor(changed), mine)
            _put(tokens, *_drawn(scores, rows))
            sampled = with_logprobs(logits, tokens, [row.params for row in rows])
        _advance_generators(rows)
        return sampled

    def row_sampling(self, row: SamplingState, later: int = 0) -> RowSampling | None:
        """How a machine may sample the row's next token, or the one so many `later`; None: its
        logits are needed for more."""
        params = row.params
        if self._changed(row) or params.logprobs is not None:
            return None
        if params.greedy:
            return GREEDY
        temperature = max(params.temperature, MIN_TEMPERATURE)
        filters = params.top_k, params.top_p, params.min_p
        return RowSampling(row.next_number(later), temperature, *filters)

    def _accepted(self, tokens: list[int], rows: Sequence[SamplingState]) -> list[Sampled]:
        """Tokens that a machine has sampled."""
        assert all(self.row_sampling(row) for row in rows), "a row needs its logits"
        _checked(tokens, [token >= 0 for token in tokens])
        _advance_generators(rows)
        return [Sampled(token) for token in tokens]

    def _changed(self, row: SamplingState) -> bool:
        """Whether the row's scores are not the logits as they are."""
        return row.params.changes_logits or row.too_short or row.constraint is not None

    def _change(self, scores: torch.Tensor, rows: Sequence[SamplingState]) -> list[int]:
        """Change the scores, and find the best of each row."""
        apply_repetition_penalty(scores, rows)
        apply_output_penalties(scores, rows)
        apply_logit_bias(scores, rows)
        early = [index for index, row in enumerate(rows) if row.too_short]
        mask_tokens(scores, early, self._eos)
        for index in early:
            mask_tokens(scores, [index], rows[index].params.stop_token_ids)
        mask_forbidden(scores, rows)
        best = _argmax(scores)
        assert best.scores.isfinite().all(), "a token must be left that does not end the sequence"
        tokens: list[int] = best.tokens.tolist()
        return tokens


def _drawn(scores: torch.Tensor, rows: Sequence[SamplingState]) -> tuple[list[int], list[int]]:
    """The rows that draw, and their tokens."""
    draws = [index for index, row in enumerate(rows) if not row.params.greedy]
    if not draws:
        return [], []
    drawing = scores if len(draws) == len(rows) else scores[draws]
    tokens: list[int] = []
    for group in candidates(drawing, [rows[index].params for index in draws]):
        tokens += group.draw([rows[draws[i]].next_number() for i in group.rows])
    return draws, tokens


def _advance_generators(rows: Sequence[SamplingState]) -> None:
    for row in rows:
        if not row.params.greedy:
            row.take_number()


def _put(tokens: list[int], rows: Sequence[int], new: Sequence[int]) -> None:
    for row, token in zip(rows, new, strict=True):
        tokens[row] = token


def _check_constraints(rows: Sequence[SamplingState]) -> None:
    """Before anything is drawn, so that the other rows can be sampled afterwards."""
    failed = {
        index: row.constraint.failure
        for index, row in enumerate(rows)
        if row.constraint is not None and row.constraint.failure is not None
    }
    if failed:
        raise StuckGrammar(failed)


class _Best(NamedTuple):
    tokens: torch.Tensor  # [rows], the first of equals
    scores: torch.Tensor  # [rows], not finite if any of the row is NaN or +inf, or all are -inf


def _argmax(scores: torch.Tensor) -> _Best:
    if scores.device.type == "cpu":
        # numpy's takes some 15 us for a vocabulary of 150 000, torch's 500.
        tokens = torch.from_numpy(scores.detach().float().numpy().argmax(-1))
    else:
        tokens = scores.argmax(-1)
    # Both count NaN as the largest, so NaN and infinity always win.
    return _Best(tokens, scores.gather(1, tokens[:, None])[:, 0])


def _checked_argmax(logits: torch.Tensor) -> list[int]:
    best = _argmax(logits)
    return _checked(best.tokens.tolist(), best.scores.isfinite().tolist())


def _checked(tokens: list[int], fine: list[bool]) -> list[int]:
    if not all(fine):
        raise BrokenModel([row for row, is_fine in enumerate(fine) if not is_fine], len(fine))
    return tokens


# What is done to scores before any choice, greedy or not: penalties and tokens not allowed yet.
# Scores are fp32, [rows, vocabulary], and changed in place.


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
