"""A user's own prompts: lines of text, or of JSON with the expected answers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

from moesaic.core.errors import BadFile
from moesaic.lab.evaluation.final_answer import extract_answer, same_answer
from moesaic.lab.evaluation.input_files import Unfit, is_lines, read_lines, read_text
from moesaic.lab.evaluation.items import Question, Verdict
from moesaic.lab.evaluation.prompts import ask, stops
from moesaic.models.text.tokenizer import Tokenizer

TASK = "prompts"


class PromptLine(NamedTuple):
    prompt: str
    answer: str | None = None


def read_prompts(path: Path, limit: int | None) -> list[PromptLine]:
    """Prompts of a `.jsonl` (`prompt` or `question`, and `answer` where given), or of plain
    lines."""
    if is_lines(path):
        found = _json_prompts(path)
    else:
        texts = (line.strip() for line in read_text(path).splitlines())
        found = [PromptLine(text) for text in texts if text]
    if not found:
        raise BadFile(f"{str(path)!r} has no prompts: it is empty")
    return found[:limit]


def _json_prompts(path: Path) -> list[PromptLine]:
    found = []
    for line in read_lines(path):
        fields = line.fields or {}
        name = "question" if "prompt" not in fields and "question" in fields else "prompt"
        try:
            answer = line.text("answer") if "answer" in fields else None
            found.append(PromptLine(line.text(name), answer))
        except Unfit as error:
            raise BadFile(f"{str(path)!r}, line {line.number}: {error}") from None
    return found


def prompt_questions(
    prompts: list[PromptLine], tokenizer: Tokenizer, form: str, max_tokens: int
) -> list[Question]:
    return [
        Question(
            task=TASK,
            item=str(number),
            prompt=ask(tokenizer, form, line.prompt),
            max_tokens=max_tokens,
            judge=partial(_judge, line.answer),
            expected=line.answer,
            stop=stops(form),
        )
        for number, line in enumerate(prompts)
    ]


def _judge(expected: str | None, text: str) -> Verdict:
    """What stands behind the last "Answer:", or else all of the text."""
    return Verdict(same_answer(extract_answer(text) or text.strip(), expected))
