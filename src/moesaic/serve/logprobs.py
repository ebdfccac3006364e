"""Log-probabilities of tokens in the two forms of the published API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moesaic.engine.request import Request
from moesaic.engine.sampling.sampled import Sampled
from moesaic.models.text.tokenizer import Tokenizer

_PART = "\N{REPLACEMENT CHARACTER}"  # of a character, which has no text of its own


def shown(request: Request, sampled: Sampled | None) -> list[Sampled]:
    """The token, unless it was not asked for or only ends the answer."""
    return [] if sampled is None or sampled.token in request.eos else [sampled]


def chat_logprobs(tokens: Sequence[Sampled], tokenizer: Tokenizer) -> dict[str, Any]:
    def fields(token: int, logprob: float | None) -> dict[str, Any]:
        text = tokenizer.token_text(token)
        whole = None if _PART in text else list(text.encode())
        return {"token": text, "logprob": logprob, "bytes": whole}

    content = [
        {
            **fields(each.token, each.logprob),
            "top_logprobs": [fields(*other) for other in each.alternatives],
        }
        for each in tokens
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """The older form: parallel lists, with the place of every token in the text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0

    def of(self, tokens: Sequence[Sampled]) -> dict[str, Any]:
        """Of the next tokens of the text."""
        texts = [self._tokenizer.token_text(each.token) for each in tokens]
        offsets = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [each.logprob for each in tokens],
            "top_logprobs": [
                {self._tokenizer.token_text(other): value for other, value in each.alternatives}
                for each in tokens
            ],
            "text_offset": offsets,
        }
