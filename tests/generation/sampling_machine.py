"""A pretended machine that samples tokens itself, and requests for it."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock

import torch
from no_network import NoNetwork

from moesaic.engine.output_text import OutputText
from moesaic.engine.request import Request
from moesaic.engine.sampling.candidates import candidates
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.engine.sampling.sampling_state import SamplingState
from moesaic.machines.real.forward_pass import ForwardPass, RowSampling

BROKEN = 50  # after this token the model computes NaN


class Machine(NoNetwork):
    """Samples tokens itself where no logits are needed."""

    def __init__(self, finds: bool) -> None:
        super().__init__()
        self._finds = finds
        self.asked: list[bool] = []
        self.machine = SimpleNamespace(times=SimpleNamespace(step_ns=0))  # for the pace of prompts

    def step(self, work: ForwardPass) -> torch.Tensor:
        logits = super().step(work)
        for row, each in enumerate(work.pieces):
            if each.tokens[-1] == BROKEN:
                logits[row, 3] = float("nan")
        how = [each.sampling for each in work.pieces if each.sampling is not None]
        self.asked.append(len(how) == len(work.pieces))
        if not (self.asked[-1] and self._finds):
            return logits
        rows = zip(logits, how, strict=True)
        return torch.tensor(
            [sampled(row, each) if row.isfinite().all() else -1 for row, each in rows]
        )


def sampled(row: torch.Tensor, how: RowSampling) -> int:
    params = SamplingParams(
        temperature=how.temperature, top_k=how.top_k, top_p=how.top_p, min_p=how.min_p
    )
    (group,) = candidates(row[None], [params])
    return group.draw([how.number])[0]


def request(number: int, prompt: list[int], params: SamplingParams) -> Request:
    output = MagicMock(spec=OutputText)
    output.feed.return_value = output.finish.return_value = SimpleNamespace(text="", stopped=False)
    output.may_stop = False
    state = SamplingState.start(params, prompt)
    eos = frozenset(params.stop_token_ids)
    return Request(number, 0, tuple(prompt), state, params.max_tokens or 99, eos, output)
