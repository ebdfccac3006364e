"""The passes of every gate with given tokens and scripted fallbacks, for machines that are to say
the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from moesaic.engine.runner import Runner
from moesaic.machines.real.forward_pass import ForwardPass, Piece, Replay

PROMPTS = ([5, 6, 7, 8, 900, 11, 3], [100, 200, 300], [9])
Replays = Callable[[int], Replay | None]  # by the number of tokens


def own_routers(tokens: int) -> None:
    """Nothing is replayed."""


def passes(runner: Runner, replays: Replays = own_routers) -> Iterator[torch.Tensor]:
    """The logits of each."""
    whole = True if runner.gate.draft else None  # else the last one is a token that is decoded
    prompts = [Piece(i, prompt, prompt=whole) for i, prompt in enumerate(PROMPTS)]
    yield _run(runner, prompts, replays)
    yield from (_drafted if runner.gate.draft else _decoded)(runner, replays)


def _run(runner: Runner, inputs: list[Piece], replays: Replays) -> torch.Tensor:
    return runner.step(
        ForwardPass(inputs, replay=replays(sum(len(each.tokens) for each in inputs)))
    )


def _decoded(runner: Runner, replays: Replays) -> Iterator[torch.Tensor]:
    """One sequence alone, then batches of up to three; of the tokens that may fall back, every
    other one does, beside the next tokens of the others, and once beside a prompt."""
    at, attempts = [0, 0, 0], [0, 0, 0]
    for number in range(14):
        turn = [1] if number < 4 else ([0, 1, 2], [1], [2, 0])[number % 3]
        going = [i for i in turn if not attempts[i]]
        going += [i for i in (2, 1, 0) if attempts[i]]
        inputs = [Piece(i, [17 * at[i] + i], attempt=attempts[i]) for i in going]
        others = [Piece(3, [1, 2, 3, 4])] if number == 8 else []
        yield _run(runner, inputs + others, replays)
        tried = [row for row, i in enumerate(going) if (at[i] + i) % 2 == 0]
        again = runner.take_back(ForwardPass(inputs + others), tried) if runner.gate.reruns else []
        for row, i in enumerate(going):
            attempts[i] = attempts[i] + 1 if row in again else 0
            at[i] += row not in again


def _drafted(runner: Runner, replays: Replays) -> Iterator[torch.Tensor]:
    """Two sequences with two drafts each, one with one, whose check comes beside a draft."""
    lengths = [runner.cache.length(slot) for slot in range(3)]
    drafts: list[list[int]] = [[], [], []]
    for number in range(9):
        inputs = []
        for slot, mine in enumerate(drafts):
            if len(mine) == (1 if slot == 1 else 2):
                runner.cache.truncate(slot, lengths[slot])
                tokens, attempt = [*mine, 7 * slot + number], 1
            else:
                mine.append(31 * number + slot)
                tokens, attempt = mine[-1:], 0
            inputs.append(Piece(slot, tokens, attempt > 0, False, attempt))
        yield _run(runner, inputs, replays)
        for slot, given in enumerate(inputs):
            if given.attempt:  # all drafts but the last one stand
                lengths[slot] += len(given.tokens) - 1
                runner.cache.truncate(slot, lengths[slot])
                drafts[slot] = []
