"""64 requests, of which some fail in one way or another: do only these end, and is every block of
the KV cache there afterwards?"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import torch
from small_llms import greedy

from chat_models import talking
from moesaic import AsyncLLM, SamplingParams
from moesaic.core.errors import BrokenModel, ImpossibleRequest
from moesaic.machines.real.forward_pass import ForwardPass
from moesaic.model_info.kv_blocks import KV_BLOCK

REQUESTS, TOKENS = 64, 24
FAILS_IN_STEP, NOT_FINITE = 7, 11  # tokens: of prompts whose steps fail
SETTINGS: dict[str, Any] = {
    "dtype": "fp32", "threads": 1, "max_sequences": 12, "max_step_tokens": 48,
    "max_model_len": 128, "kv_tokens": 14 * KV_BLOCK,
}  # fmt: skip
# What goes wrong, and the error that its client gets.
FAULTS: dict[str, type[BaseException] | None] = {
    "none": None,
    "step": RuntimeError,
    "not finite": BrokenModel,
    "grammar": ImpossibleRequest,
    "schema": ImpossibleRequest,
    "template": ImpossibleRequest,
    "cancelled": asyncio.CancelledError,
}


def prompts() -> list[tuple[str, list[int]]]:
    random = Random(3)
    kinds = [*FAULTS, *["none"] * (len(FAULTS) - 2)]
    found = []
    for number in range(REQUESTS):
        kind = kinds[number % len(kinds)]
        prompt = [random.randrange(20, 500) for _ in range(random.randint(5, 70))]
        if kind == "step":
            prompt[random.randrange(len(prompt))] = FAILS_IN_STEP
        elif kind == "not finite":
            prompt[-1] = NOT_FINITE  # whose logits are looked at
        found.append((kind, prompt))
    return found


def break_steps(model: AsyncLLM) -> None:
    """Steps with one of the tokens fail when all has been computed, or give no numbers."""
    runner = model.model.runner
    machine: Any = runner.machine
    run = machine.run

    def broken(work: ForwardPass, *given: Any) -> torch.Tensor:
        logits: torch.Tensor = run(work, *given)
        if FAILS_IN_STEP in work.numbers:
            raise RuntimeError("a step that fails")
        rows = [row for row, each in enumerate(work.pieces) if NOT_FINITE in each.tokens]
        logits[rows] = torch.nan
        return logits

    machine.run = broken


async def ask(model: AsyncLLM, kind: str, prompt: list[int]) -> tuple[int, ...]:
    params = greedy(TOKENS, logit_bias={FAILS_IN_STEP: -100, NOT_FINITE: -100})
    if kind == "template":
        await model.chat([{"role": "user"}], params)
    if kind == "grammar":
        params = SamplingParams(max_tokens=TOKENS, grammar="start: (")
    if kind == "schema":
        params = SamplingParams(max_tokens=TOKENS, json_schema={"enum": []})
    if kind == "cancelled":
        call = asyncio.ensure_future(model.generate([prompt], params))
        await asyncio.sleep(0.05)
        call.cancel()
        await call
    (one,) = await model.generate([prompt], params)
    return one.tokens


async def answers(asked: list[tuple[str, list[int]]], breaks: bool) -> list[Any]:
    async with AsyncLLM(talking().folder, **SETTINGS) as model:
        if breaks:
            break_steps(model)
        calls = [ask(model, kind, prompt) for kind, prompt in asked]
        said = await asyncio.gather(*calls, return_exceptions=True)
        batcher = model.model.batcher
        while not batcher.idle:
            await asyncio.sleep(0.01)
        blocks = model.stats().blocks
        assert blocks.used == blocks.kept, "nothing runs, so that all that is used is kept"
        batcher.forget()
        assert model.stats().blocks.used == 0
        return said


def test_only_the_guilty_end() -> None:
    asked = prompts()
    fine = [(kind, prompt) for kind, prompt in asked if kind == "none"]
    alone = asyncio.run(asyncio.wait_for(answers(fine, breaks=False), 120))
    said = asyncio.run(asyncio.wait_for(answers(asked, breaks=True), 240))
    whole = [one for (kind, _), one in zip(asked, said, strict=True) if kind == "none"]
    assert whole == alone
    for (kind, _), one in zip(asked, said, strict=True):
        wrong = FAULTS[kind]
        assert wrong is None or isinstance(one, wrong), f"{kind}: {one!r}"


def test_there_is_one_of_each() -> None:
    assert {kind for kind, _ in prompts()} == set(FAULTS)
    assert sum(kind == "none" for kind, _ in prompts()) > REQUESTS // 3
