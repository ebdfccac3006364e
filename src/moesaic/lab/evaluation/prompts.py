"""Questions as a model is asked them: as plain text, or as a conversation in its own template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from moesaic.core.errors import ImpossibleSetting
from moesaic.models.text.tokenizer import Tokenizer

CHAT, PLAIN = "chat", "plain"
FORMS = (CHAT, PLAIN)
NEXT = "\nQuestion:"  # plain text goes on with another question where a model does not stop


class Shot(NamedTuple):
    """A question with its answer, as an example."""

    question: str
    answer: str


def choose_form(asked: str | None, usual: str, tokenizer: Tokenizer) -> str:
    """What was asked for; otherwise the usual one, where the model has a template for it."""
    if asked == CHAT and not tokenizer.has_chat_template:
        raise ImpossibleSetting(
            "--form chat puts questions in the model's chat template, and it has none: use --form "
            "plain, or add a chat_template.jinja to its directory"
        )
    if asked is not None:
        return asked
    return usual if tokenizer.has_chat_template else PLAIN


def ask(tokenizer: Tokenizer, form: str, question: str, shots: Sequence[Shot] = ()) -> list[int]:
    if form == CHAT:
        return tokenizer.encode_chat(_conversation(question, shots))
    examples = [f"Question: {shot.question}\nAnswer: {shot.answer}\n\n" for shot in shots]
    return tokenizer.encode("".join(examples) + f"Question: {question}\nAnswer:")


def stops(form: str) -> tuple[str, ...]:
    return (NEXT,) if form == PLAIN else ()


def _conversation(question: str, shots: Sequence[Shot]) -> list[dict[str, str]]:
    messages = []
    for shot in shots:
        messages.append({"role": "user", "content": shot.question})
        messages.append({"role": "assistant", "content": shot.answer})
    return [*messages, {"role": "user", "content": question}]
