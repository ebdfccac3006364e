"""A prompt piece batched with decoding sequences: described as it is, planned by its majority."""

from __future__ import annotations

import pytest
import torch

from moesaic.core.step import Step
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from real_runs import PROMPT, loaded, running, settings

NAME = "olmoe"
HOW = settings("static-experts", "pinned", "none", prefill_schedule="gpu-only")


@pytest.mark.parametrize(("piece", "phase"), [(2, "decode"), (3, "decode"), (4, "prefill")])
def test_the_majority_of_tokens_chooses_the_schedule(piece: int, phase: str) -> None:
    """Three sequences decode; kTransformers computes on the CPU in decode and loads experts in
    prefill."""
    model = loaded(NAME)
    with running(model, HOW, model.slots(0.5), sequences=4) as runner:
        runner.step(ForwardPass([Piece(slot, PROMPT[: 5 + slot]) for slot in range(3)]))
        inputs = [Piece(slot, [1]) for slot in range(3)] + [Piece(3, PROMPT[:piece])]
        assert runner.placed(ForwardPass(inputs)).step == Step.of(
            [(1, 5), (1, 6), (1, 7), (piece, 0)]
        )
        before = runner.bytes_moved
        runner.step(ForwardPass(inputs))
        assert (runner.bytes_moved > before) == (phase == "prefill")


def test_a_mixture_answers_what_its_sequences_answer_alone() -> None:
    model = loaded(NAME)
    with running(model, HOW, model.slots(0.5), sequences=2) as runner:
        runner.step(ForwardPass([Piece(0, PROMPT[:9])]))
        together = runner.step(ForwardPass([Piece(0, [3]), Piece(1, PROMPT[:6])]))
        for slot in range(2):
            runner.free_slot(slot)
        runner.step(ForwardPass([Piece(0, PROMPT[:9])]))
        alone = torch.cat(
            [
                runner.step(ForwardPass([Piece(0, [3])])),
                runner.step(ForwardPass([Piece(1, PROMPT[:6])])),
            ]
        )
    assert torch.allclose(together, alone, atol=1e-4)
