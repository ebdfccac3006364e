"""A conversation with a model: its messages so far, and the next answer.

Every turn is a whole prompt; the batcher reads only what the KV cache does not hold of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from moesaic.cli.run.answer_output import Limits
from moesaic.cli.run.generating import follow
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.files import whole_file

if TYPE_CHECKING:
    from moesaic.engine.completion import Chunk, Completion
    from moesaic.engine.loading import LoadedModel
    from moesaic.engine.sampling.sampling_params import SamplingParams

Message = dict[str, str]


class Conversation:
    def __init__(
        self, model: LoadedModel, params: SamplingParams, system: str | None = None
    ) -> None:
        self.model = model
        self.system = system  # the system message
        self.latest: Completion | None = None  # the last answer
        self.limits = Limits.of(params, model.plan.capacity.length)
        self._params = params
        self._said: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        before = [] if self.system is None else [_message("system", self.system)]
        return [*before, *self._said]

    def answer(self, text: str, show: Callable[[Chunk], None]) -> Completion:
        """Kept as far as it was shown; where nothing was, the question is dropped too."""
        question = _message("user", text)
        request = self.model.input_processor.request(
            self._tokens([*self.messages, question]), self._params
        )
        self.latest = follow(self.model, request, show)
        if self.latest.text:
            self._said += [question, _message("assistant", self.latest.text)]
        return self.latest

    def reset(self) -> None:
        self._said.clear()

    def save(self, path: str) -> None:
        content = {"model": self.model.spec.name, "messages": self.messages}
        with whole_file(path, "w") as stream:
            json.dump(content, stream, indent=2, ensure_ascii=False)
            stream.write("\n")

    def _tokens(self, messages: list[Message]) -> list[int]:
        assert self.model.tokenizer is not None, "models without one are refused before"
        tokens = self.model.tokenizer.encode_chat(messages)
        context = self.model.plan.capacity.length
        if len(tokens) >= context:
            raise ImpossibleSetting(
                f"the conversation has {len(tokens)} tokens and the context is full with "
                f"{context}: /reset begins a new one (/save FILE keeps this one), or "
                "ask more briefly"
            )
        return tokens


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
