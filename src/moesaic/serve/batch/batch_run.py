"""Runs a batch: keeps the engine's queue filled from the input, and writes answers as they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from moesaic.serve.batch.batch_input import BatchInput, NumberedLine
from moesaic.serve.batch.batch_output import BatchOutput
from moesaic.serve.batch.line_answer import OK, EngineLost, LineAnswer, answer_line
from moesaic.serve.service import Service

WAITING = 2  # requests in the engine for each that it runs: it never waits for the next one
_LEAST_REQUESTS = 16
_LOADING_S = 0.1  # between two looks at an engine that is started again


@dataclass(slots=True)
class BatchCounts:
    """Of the answers that this call has added."""

    answered: int = 0
    refused: int = 0  # of those, the ones whose response is an error
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0

    def add(self, answer: LineAnswer) -> None:
        self.answered += 1
        self.refused += answer.status != OK
        record = answer.record
        self.prompt_tokens += record.prompt_tokens or 0
        self.cached_tokens += record.cached_tokens or 0
        self.generated_tokens += record.generated_tokens or 0


def requests_at_once(sequences: int) -> int:
    return max(_LEAST_REQUESTS, WAITING * sequences)


class BatchRun:
    """`counts` is true at any time, also after `run` was cancelled."""

    def __init__(
        self,
        service: Service,
        source: BatchInput,
        output: BatchOutput,
        advance: Callable[[int], object],
    ) -> None:
        """`advance` is called with the number of answers that were added."""
        self.counts = BatchCounts()
        self._service, self._output, self._advance = service, output, advance
        self._requests: Iterator[NumberedLine] = source.requests(output.done)

    async def run(self) -> None:
        """Raises what keeps the rest from being answered."""
        several = requests_at_once(self._service.llm.sequences)
        tasks = [asyncio.create_task(self._work()) for _ in range(several)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _work(self) -> None:
        for number, line in self._requests:
            while True:
                await self._ready()
                try:
                    answer = await answer_line(self._service, line)
                    break
                except EngineLost:  # the line is answered by the next engine
                    continue
            fields = answer.fields(self._output.id_of(number), line.custom_id)
            self._output.add(number, msgspec.json.encode(fields))
            self.counts.add(answer)
            self._advance(1)

    async def _ready(self) -> None:
        while not (state := self._service.llm.state).ready:
            if state.failure is not None:
                raise state.failure
            await asyncio.sleep(_LOADING_S)
