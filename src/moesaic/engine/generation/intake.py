"""From what people ask to requests: everything that can be wrong is said here, before any work."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from numbers import Integral
from operator import index

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.model import ModelSpec
from moesaic.engine.generation.output_text import OutputText
from moesaic.engine.generation.request import Request
from moesaic.engine.generation.row_state import RowState
from moesaic.engine.generation.sampling_params import SamplingParams
from moesaic.models.tokenizer import Messages, Tokenizer

Prompt = str | Sequence[int]  # text or token ids
Prompts = Prompt | Sequence[Prompt]
Params = SamplingParams | Sequence[SamplingParams] | None


class Intake:
    """`context` is the most tokens a sequence may have, prompt and answer together."""

    def __init__(
        self,
        spec: ModelSpec,
        tokenizer: Tokenizer | None,
        eos_ids: frozenset[int],
        context: int,
    ) -> None:
        self._spec, self._tokenizer = spec, tokenizer
        self._eos_ids, self._context = eos_ids, context
        self._ids = count()

    def requests(self, prompts: Prompts, params: Params = None) -> list[Request]:
        """One per prompt, in order; one prompt alone need not stand in a list."""
        asked = _several(prompts)
        wishes = _per_prompt(params, len(asked))
        return [self.request(*each) for each in zip(asked, wishes, strict=True)]

    def request(self, prompt: Prompt, params: SamplingParams | None = None) -> Request:
        return self._checked(self._tokens(prompt), params or SamplingParams())

    def conversation(self, messages: Messages, params: SamplingParams | None = None) -> Request:
        """The model's answer to the last message."""
        return self._checked(
            self._known_tokenizer("a conversation").encode_chat(messages),
            params or SamplingParams(),
        )

    def _tokens(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            return self._ids_of(prompt)
        tokenizer = self._known_tokenizer("text")
        tokens = tokenizer.encode(prompt)
        if tokens or tokenizer.bos_id is None:
            return tokens
        return [tokenizer.bos_id]

    def _ids_of(self, prompt: Sequence[int]) -> list[int]:
        try:
            tokens = [index(token) for token in prompt]
        except TypeError:
            raise ImpossibleSetting(
                f"the prompt {str(prompt)[:60]!r} is neither text nor a list of token ids"
            ) from None
        for token in tokens:
            if not 0 <= token < self._spec.vocab_size:
                raise ImpossibleSetting(
                    f"the prompt has token id {token}; {self._spec.name} knows ids from 0 to "
                    f"{self._spec.vocab_size - 1}"
                )
        return tokens

    def _checked(self, prompt: list[int], params: SamplingParams) -> Request:
        if not prompt:
            raise ImpossibleSetting(
                "the prompt has no tokens, and the model no token that begins a text: a prompt "
                "needs at least one"
            )
        left = self._context - len(prompt)
        if left < 1:
            raise ImpossibleSetting(
                f"the prompt has {len(prompt)} tokens; a sequence may have {self._context} here, "
                f"at least one of them generated: {self._advice()}"
            )
        if params.stop:
            self._known_tokenizer("a stop string")
        return Request(
            id=next(self._ids),
            prompt=tuple(prompt),
            row=RowState.start(params, prompt),
            most=min(params.max_tokens, left),
            eos=frozenset() if params.ignore_eos else self._eos_ids,
            output=OutputText(self._tokenizer, params.stop),
        )

    def _advice(self) -> str:
        """What to do about a prompt that is too long."""
        context, most = self._context, self._spec.max_context  # 0: the model does not say
        ways = [f"shorten it to {context - 1}"] if context > 1 else []
        if not most or context < most:
            limit = f" to at most {most}" if most else ""
            ways.append(f"raise max_model_len (--max-model-len){limit}")
        return ", or ".join(ways) or "the model was made for no more, so it cannot answer"

    def _known_tokenizer(self, wanted: str) -> Tokenizer:
        if self._tokenizer is None:
            raise ImpossibleSetting(
                f"{self._spec.name} has no tokenizer.json, so {wanted} means nothing to it: give "
                "prompts as lists of token ids, such as [[1, 2, 3]], or add the file to its "
                "directory"
            )
        return self._tokenizer


def _several(prompts: Prompts) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    several: list[Prompt] = list(prompts)  # type: ignore[arg-type]
    if several and all(isinstance(each, Integral) for each in several):
        return [several]  # type: ignore[list-item]
    return several


def _per_prompt(params: Params, prompts: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * prompts
    given = list(params)
    if len(given) != prompts:
        raise ImpossibleSetting(
            f"{prompts} prompts and {len(given)} sampling parameters were given: give one for "
            "all, or as many as prompts"
        )
    return given
