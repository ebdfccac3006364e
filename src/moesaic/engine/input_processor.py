"""From prompts and parameters to requests: every mistake is reported here, before any work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from copy import copy
from itertools import count
from numbers import Integral
from operator import index
from typing import Any

from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.output_text import OutputText
from moesaic.engine.request import Request, Sender
from moesaic.engine.sampling.constraint import Constraint, Constraints
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.engine.sampling.sampling_state import SamplingState
from moesaic.model_info.model_spec import ModelSpec
from moesaic.models.text.chat_messages import Messages
from moesaic.models.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]  # text or token ids
Prompts = Prompt | Sequence[Prompt]
Params = SamplingParams | Sequence[SamplingParams] | None

NOT_NAMED = Sender()


class InputProcessor:
    """`context` is the most tokens a sequence may have, prompt and answer together."""

    def __init__(
        self,
        spec: ModelSpec,
        tokenizer: Tokenizer | None,
        eos_ids: frozenset[int],
        context: int,
        defaults: SamplingParams | None = None,
    ) -> None:
        """`defaults` are for requests that say nothing of sampling."""
        self._spec, self._tokenizer = spec, tokenizer
        self._eos_ids, self._context = eos_ids, context
        self._defaults = defaults or SamplingParams()
        self._ids = count()
        self._constraints = None if tokenizer is None else Constraints(tokenizer, eos_ids)

    @property
    def family(self) -> str:
        """The model's."""
        return self._spec.family

    def requests(
        self, prompts: Prompts, params: Params = None, sender: Sender = NOT_NAMED
    ) -> list[Request]:
        """`n` for each prompt, in order; one prompt alone need not stand in a list."""
        asked = _several(prompts)
        several_params = _per_prompt(self._defaults if params is None else params, len(asked))
        return [
            request
            for each, own in zip(asked, several_params, strict=True)
            for request in self.completions(each, own, sender)
        ]

    def completions(
        self, prompt: Prompt, params: SamplingParams | None = None, sender: Sender = NOT_NAMED
    ) -> list[Request]:
        """The `n` requests of one prompt."""
        tokens, own = self._tokens(prompt), self._params(params)
        return [self._checked(tokens, own, number, sender) for number in range(own.n)]

    def request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        sender: Sender = NOT_NAMED,
        boundaries: Sequence[int] | None = None,
    ) -> Request:
        """Make one request; parameters that ask for several answers are refused. `boundaries`:
        where messages of the prompt end; None: behind special tokens."""
        tokens, own = self._tokens(prompt), self._alone(params)
        return self._checked(tokens, own, sender=sender, boundaries=boundaries)

    def conversation(
        self, messages: Messages, params: SamplingParams | None = None, sender: Sender = NOT_NAMED
    ) -> Request:
        """The model's answer to the last message."""
        tokens = self._known_tokenizer("a conversation").encode_chat(messages)
        return self._checked(self._of_text(tokens), self._alone(params), sender=sender)

    def of_tokens(self, tokens: list[int], params: SamplingParams, number: int) -> Request:
        """Completion `number` of a prompt whose text became tokens in another process."""
        if tokens and not 0 <= min(tokens) <= max(tokens) < self._spec.vocab_size:
            self._ids_of(tokens)  # says which
        return self._checked(tokens, params, number)

    def knows_form(self, form: str) -> bool:
        """Whether a constraint of this compiled form was made lately."""
        return self._constraints is not None and self._constraints.knows(form)

    def with_context(self, context: int) -> InputProcessor:
        """The same, for sequences of another length."""
        other = copy(self)
        other._context = context
        return other

    @property
    def context(self) -> int:
        """The most tokens a sequence may have, prompt and answer together."""
        return self._context

    @property
    def defaults(self) -> SamplingParams:
        """Of requests that say nothing of sampling."""
        return self._defaults

    @property
    def tokenizer(self) -> Tokenizer:
        """Refused where the model has none."""
        return self._known_tokenizer("text")

    def _alone(self, params: SamplingParams | None) -> SamplingParams:
        own = self._params(params)
        if own.n > 1:
            raise ImpossibleSetting(
                f"n is {own.n}, but a stream or a chat is one completion: use generate() (with "
                "tokenizer.apply_chat_template(messages) for a conversation), or n 1"
            )
        return own

    def _params(self, params: SamplingParams | None) -> SamplingParams:
        return self._defaults if params is None else _checked_params(params)

    def _tokens(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            return self._ids_of(prompt)
        tokenizer = self._known_tokenizer("text")
        tokens = tokenizer.encode(prompt)
        if not tokens and tokenizer.bos_id is not None:
            tokens = [tokenizer.bos_id]
        return self._of_text(tokens)

    def _of_text(self, tokens: list[int]) -> list[int]:
        """A tokenizer may make ids that its own vocabulary, which was checked, does not have: its
        post-processor puts tokens around a text by number."""
        unknown = [token for token in tokens if token >= self._spec.vocab_size]
        if unknown:
            raise ImpossibleSetting(
                f"the tokenizer makes token id {unknown[0]} of this text, but {self._spec.name} "
                f"knows ids from 0 to {self._spec.vocab_size - 1}: use the tokenizer.json "
                "published with the model, or give prompts as token ids"
            )
        return tokens

    def _ids_of(self, prompt: Sequence[int]) -> list[int]:
        tokens = [_id(token, prompt) for token in _listed(prompt)]
        for token in tokens:
            if not 0 <= token < self._spec.vocab_size:
                raise ImpossibleSetting(
                    f"the prompt has token id {token}; {self._spec.name} knows ids from 0 to "
                    f"{self._spec.vocab_size - 1}"
                )
        return tokens

    def _checked(
        self,
        prompt: list[int],
        params: SamplingParams,
        number: int = 0,
        sender: Sender = NOT_NAMED,
        boundaries: Sequence[int] | None = None,
    ) -> Request:
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
        self._check_named_tokens(params)
        constraint = self._constraint(params)
        return Request(
            id=next(self._ids),
            number=number,
            prompt=tuple(prompt),
            sampling=SamplingState.start(params, prompt, number, constraint),
            max_new_tokens=min(params.max_tokens, left),
            eos=frozenset(params.stop_token_ids) | (set() if params.ignore_eos else self._eos_ids),
            output=OutputText(self._tokenizer, params.stop, params.keep_special_tokens),
            client=sender.client,
            priority=sender.priority,
            boundaries=self._message_ends(prompt) if boundaries is None else tuple(boundaries),
        )

    def _message_ends(self, prompt: Sequence[int]) -> tuple[int, ...]:
        special = self._eos_ids if self._tokenizer is None else self._tokenizer.special
        return tuple(at for at, token in enumerate(prompt, start=1) if token in special)

    def _constraint(self, params: SamplingParams) -> Constraint | None:
        if params.form is None:
            return None
        self._known_tokenizer("a schema, a grammar or a regular expression")
        assert self._constraints is not None, "there is a tokenizer"
        return self._constraints.of(params)

    def _check_named_tokens(self, params: SamplingParams) -> None:
        """Check a bias or an end: the model knows the tokens, and has others left before an end."""
        biased = [token for token, _ in params.biases]
        for name, tokens in (("logit_bias", biased), ("stop_token_ids", params.stop_token_ids)):
            unknown = [token for token in tokens if token >= self._spec.vocab_size]
            if unknown:
                raise ImpossibleSetting(
                    f"{name} has token id {unknown[0]}; {self._spec.name} knows ids from 0 to "
                    f"{self._spec.vocab_size - 1}"
                )
        ends = {*params.stop_token_ids, *self._eos_ids}
        if params.min_tokens and len(ends) >= self._spec.vocab_size:
            raise ImpossibleSetting(
                f"min_tokens is {params.min_tokens}, but stop_token_ids are all tokens of "
                f"{self._spec.name}: name fewer"
            )

    def _advice(self) -> str:
        """What to do about a prompt that is too long."""
        context, limit = self._context, self._spec.max_context  # 0: the model does not say
        ways = [f"shorten it to {context - 1}"] if context > 1 else []
        if not limit or context < limit:
            up_to = f" to at most {limit}" if limit else ""
            ways.append(f"raise max_model_len (--max-model-len){up_to}")
        return ", or ".join(ways) or "that is the model's limit, so it cannot answer"

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
    several = _listed(prompts)
    if several and all(isinstance(each, Integral) for each in several):
        return [several]
    return several


def _listed(prompt: object) -> list[Any]:
    """The items in order. Bytes iterate as integers in Python, but are not token ids."""
    if isinstance(prompt, bytes | bytearray | memoryview | Mapping | Set):
        raise _no_prompt(prompt)
    try:
        return list(prompt)  # type: ignore[call-overload, no-any-return]
    except TypeError:
        raise _no_prompt(prompt) from None


def _id(token: object, prompt: object) -> int:
    if isinstance(token, bool):
        raise _no_prompt(prompt)
    try:
        return index(token)  # type: ignore[arg-type]
    except TypeError:
        raise _no_prompt(prompt) from None


def _no_prompt(asked: object) -> ImpossibleSetting:
    return ImpossibleSetting(
        f"the prompt {repr(asked)[:60]} is neither text nor a list of token ids: give a string, "
        "or whole numbers such as [1, 2, 3]"
    )


def _per_prompt(params: Params, prompts: int) -> list[SamplingParams]:
    if isinstance(params, str) or not isinstance(params, Sequence):
        return [_checked_params(params)] * prompts
    if len(params) != prompts:
        raise ImpossibleSetting(
            f"{prompts} prompts and {len(params)} sampling parameters were given: give one for "
            "all, or as many as prompts"
        )
    return [_checked_params(each) for each in params]


def _checked_params(params: object) -> SamplingParams:
    if not isinstance(params, SamplingParams):
        raise ImpossibleSetting(
            f"the sampling parameters are {repr(params)[:60]}: give SamplingParams, such as "
            "SamplingParams(max_tokens=3)"
        )
    return params
