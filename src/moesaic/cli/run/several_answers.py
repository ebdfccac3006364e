"""Several answers at once: how many sequences they get, and how they are shown in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from moesaic.cli.shared.engine_options import MAX_SEQUENCES
from moesaic.core.errors import ImpossibleSetting

if TYPE_CHECKING:
    from moesaic.engine.completion import Chunk
    from moesaic.engine.preparation import Prepared
    from moesaic.engine.request import Request


def planned_for(prepared: Prepared, answers: int, length: int, fixed: bool) -> Prepared:
    """Plan for as many sequences at once as there are answers, up to MAX_SEQUENCES, each of
    `length` tokens (the longest prompt and its answer) or, where that is `fixed`, of what was asked
    for; fewer where memory does not allow it. `prepared` is planned for one sequence."""
    from moesaic.engine.replanning import with_capacity

    one = prepared.plan.capacity.length
    wanted = sequences = min(answers, MAX_SEQUENCES)
    while sequences > 1:
        try:
            found = with_capacity(prepared, sequences, one if fixed else min(one, length))
        except ImpossibleSetting:  # it does not fit; one sequence does
            sequences //= 2
            continue
        break
    if sequences < wanted:
        click.echo(
            f"{sequences} of {answers} answers are generated at a time: memory allows no more",
            err=True,
        )
    return prepared if sequences == 1 else found


class AnswerPrinter:
    """Writes answers to standard output in their order. The first one that has not ended appears
    while it is generated; what the others have is held back until it is their turn."""

    def __init__(self, requests: Sequence[Request], completions: int) -> None:
        """`completions` is the number of answers to each prompt."""
        self._requests, self._completions = requests, completions
        self._held: dict[Request, list[str]] = {request: [] for request in requests}
        self._ended: set[Request] = set()  # whose last chunk was given to `show`
        self._current = 0
        self._begun = False  # the current answer
        self._ends_line = False  # what was written of it

    def show(self, request: Request, chunk: Chunk) -> None:
        held = self._held[request]
        if request.output.text is not None:
            held.append(chunk.text)
        elif chunk.token is not None:  # the model has no tokenizer
            held.append(f"{' ' if request.sampling.generated > 1 else ''}{chunk.token}")
        if chunk.finish_reason is not None:
            self._ended.add(request)
        if request is self._requests[self._current]:
            self._advance()

    def finish(self) -> None:
        """Write what is held back of answers that were interrupted."""
        for request in self._requests[self._current :]:
            if self._begun or any(self._held[request]):
                self._write(request)
                self._end(request)

    def _advance(self) -> None:
        """Write the current answer, and those after it as far as they can be."""
        while self._current < len(self._requests):
            request = self._requests[self._current]
            self._write(request)
            if request not in self._ended:
                break
            self._end(request)
            self._current += 1

    def _write(self, request: Request) -> None:
        if not self._begun and len(self._requests) > 1:
            click.echo(self._heading(self._requests.index(request)))
        self._begun = True
        text = "".join(self._held[request])
        self._held[request].clear()
        if text:
            click.echo(text, nl=False)
            self._ends_line = text.endswith("\n")

    def _end(self, request: Request) -> None:
        if request.sampled and not self._ends_line:
            click.echo()
        self._begun = self._ends_line = False

    def _heading(self, index: int) -> str:
        prompt, completion = divmod(index, self._completions)
        several = 1 < self._completions < len(self._requests)
        detail = f" (prompt {prompt + 1}, completion {completion + 1})" if several else ""
        return f"--- answer {index + 1} of {len(self._requests)}{detail} ---"
