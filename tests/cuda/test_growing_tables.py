"""Do captured steps find tokens whose blocks were given while steps were under way?"""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from test_graph_decoding import CAPACITY, runner_of

from moesaic.engine.batcher import Batcher
from moesaic.engine.output_text import OutputText
from moesaic.engine.request import Request
from moesaic.engine.runner import Runner
from moesaic.engine.sampling.sampler import Sampler
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.engine.sampling.sampling_state import SamplingState
from moesaic.machines.real.forward_pass import ForwardPass

HOW = ("gpu-only", "lru", "none")
LENGTHS = (40, 100, 60)
TOKENS = 150  # over two ends of blocks, by steps that are submitted ahead


def request(number: int, length: int, tokens: int) -> Request:
    params = SamplingParams(max_tokens=tokens, temperature=0.0)
    prompt = [(31 * at + 7 * number) % 900 for at in range(length)]
    return Request(
        id=number, number=0, prompt=tuple(prompt),
        sampling=SamplingState.start(params, prompt, 0, None), max_new_tokens=tokens,
        eos=frozenset(), output=OutputText(None, ()),
    )  # fmt: skip


class Counted:
    """A batcher whose submitted steps are counted."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self.submitted, self._submit = runner, 0, runner.submit
        runner.submit = self.submit  # type: ignore[method-assign]
        self.batcher = Batcher(runner, Sampler(), CAPACITY.sequences, 160)

    def submit(self, work: ForwardPass) -> None:
        self.submitted += 1
        self._submit(work)

    def run(self, *requests: Request) -> None:
        for each in requests:
            self.batcher.submit(each)
        while not self.batcher.idle:
            self.batcher.step()
        assert all(each.failure is None for each in requests)


def several() -> list[Request]:
    return [request(number, length, TOKENS) for number, length in enumerate(LENGTHS)]


def answers(scattered: bool, name: str) -> list[list[int]]:
    runner = runner_of(name, "bf16", HOW, scattered=scattered)
    counted, requests, again = Counted(runner), several(), request(1, LENGTHS[1], TOKENS)
    counted.run(*requests)
    counted.run(again)
    assert again.cached_tokens == LENGTHS[1] - 1, "its prompt is kept"
    assert counted.submitted > TOKENS
    runner.close()
    return [[*each.sampling.seen] for each in (*requests, again)]


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "deepseek-v2-lite"])
def test_text_is_the_same_wherever_blocks_are(name: str) -> None:
    assert answers(scattered=False, name=name) == answers(scattered=True, name=name)


def test_requests_that_run_out_of_blocks_go_on() -> None:
    """The first one admitted is never the one that makes room."""
    short = runner_of("qwen3-30b-a3b", "bf16", HOW, capacity=CAPACITY._replace(blocks=7))
    counted, requests, alone = Counted(short), several(), request(0, LENGTHS[0], TOKENS)
    counted.run(*requests)
    assert counted.batcher.stats().queue.preemptions > 0
    assert all(len(each.sampled) == TOKENS for each in requests)
    short.close()
    whole = runner_of("qwen3-30b-a3b", "bf16", HOW)
    Counted(whole).run(alone)
    whole.close()
    told, expected = ([*each.sampling.seen][: LENGTHS[0] + 8] for each in (requests[0], alone))
    assert told == expected
