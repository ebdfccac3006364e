"""Self-speculative decoding in the batcher: what a sequence brings to a step, and which of its
drafts stand.

A draft is the little model's best token. The check samples from the full model's distribution at
every position, as without drafts, one number of the request's generator per token: so a seed leads
to the full model's text, greedy or not. For drafts that are not drawn themselves that is the
rejection rule of speculative sampling: a draft x stands with probability p(x), and else the token
has p's distribution without x."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from moesaic.engine.request import Request, Update
from moesaic.engine.runner import Runner
from moesaic.machines.real.forward_pass import Piece

Sample = Callable[[torch.Tensor, Sequence[Request]], list[Update]]


def drafts_wanted(request: Request, draft: int) -> int:
    """How many tokens to draft before a check: the check adds one of its own, and nothing may go
    beyond the request's limit, nor beyond its end."""
    left = request.max_new_tokens - request.sampling.generated
    if request.drafted and request.drafted[-1] in request.eos:
        return len(request.drafted)
    return min(draft, left - 1)


def drafting_piece(runner: Runner, request: Request, slot: int, draft: int) -> Piece:
    """The next draft, with few experts; or the check of all of them, with all experts."""
    last, drafted = request.sampling.seen[-1], request.drafted
    if len(drafted) < drafts_wanted(request, draft):
        return Piece(slot, [drafted[-1] if drafted else last], prompt=False)
    runner.cache.truncate(slot, request.computed_tokens)  # entries of the drafts
    return Piece(slot, [last, *drafted], all_logits=True, prompt=False, attempt=1)


def checked(request: Request, logits: torch.Tensor, sample: Sample) -> list[Update]:
    """The updates of a request whose last token and drafts were run with all experts: logits
    [drafts + 1, vocabulary]."""
    drafted, request.drafted = request.drafted, []
    updates: list[Update] = []
    for row, draft in enumerate([*drafted, None]):
        updates += sample(logits[row : row + 1], [request])
        if request.finish_reason is not None or updates[-1].chunk.token != draft:
            break
    request.computed_tokens += len(updates)
    return updates
