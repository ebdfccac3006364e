"""Questions with short answers, from the package's file or the user's: lines of JSON.

`question` and `answer` (a text, several that are right, or null: it cannot be known, and saying so
is right), and where they are of use `kind` and `earlier` (the question before in the same
conversation, and its right answer).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import partial
from importlib.resources import files
from pathlib import Path

from moesaic.core.errors import ImpossibleSetting
from moesaic.lab.evaluation.final_answer import MARK, extract_answer, same_answer
from moesaic.lab.evaluation.input_files import Line, Unfit, read_lines
from moesaic.lab.evaluation.items import Item, Question, Unusable, Verdict
from moesaic.lab.evaluation.prompts import CHAT, Shot, ask, stops
from moesaic.models.text.tokenizer import Tokenizer

NAME = "questions"
MAX_TOKENS = 160
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?![\d:])")
_ARTICLE = re.compile(r"^(the|a|an) ", re.IGNORECASE)
_ADMITS = re.compile(
    r"\b(?:(?:do|does)(?: not|n't) (?:know|say|tell|have)|can(?:not|'t)|unable|unknown|only know|"
    r"no (?:idea|way|information)|not (?:sure|enough|possible|known|said|given))\b"
)


def bundled_questions() -> Path:
    return Path(str(files("moesaic.lab.evaluation") / "data" / "questions.jsonl"))


def question_items(
    file: Path,
    tokenizer: Tokenizer,
    form: str,
    limit: int | None = None,
    max_tokens: int = MAX_TOKENS,
) -> list[Item]:
    lines = list(read_lines(file))[:limit]
    return [_item(line, file, tokenizer, form, max_tokens) for line in lines]


def judge(accepted: Sequence[str], text: str) -> Verdict:
    """What stands behind `Answer:`, or else the last line, must be one of the accepted answers;
    of none, the text must say that it is not known."""
    if not accepted:
        admits = _ADMITS.search(text.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"))
        return Verdict(admits is not None, "" if admits else "it does not say that it cannot know")
    said = extract_answer(text)
    if said is None:
        said = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    if not said:
        return Verdict(False, "it says nothing")
    return Verdict(any(_same(said, answer) for answer in accepted))


def _same(said: str, answer: str) -> bool:
    """A number may stand in a sentence; it is the last one there."""
    if _NUMBER.fullmatch(answer):
        found = _NUMBER.findall(said.replace(",", ""))
        return bool(found) and Decimal(found[-1]) == Decimal(answer)
    return same_answer(_ARTICLE.sub("", said.strip()), _ARTICLE.sub("", answer))


def _item(line: Line, file: Path, tokenizer: Tokenizer, form: str, max_tokens: int) -> Item:
    name = f"line {line.number}"
    try:
        question, accepted = line.text("question"), list(_accepted(line))
        prompt = ask(tokenizer, form, question, _earlier(line, form))
        kind = line.text("kind") if "kind" in (line.fields or ()) else ""
    except (Unfit, ImpossibleSetting) as error:
        return Unusable(NAME, name, f"{file}, line {line.number}: {error}")
    return Question(
        NAME,
        name,
        prompt,
        max_tokens,
        partial(judge, accepted),
        " or ".join(accepted) or "it says that it cannot know",
        stops(form),
        kind=kind,
    )


def _accepted(line: Line) -> Iterator[str]:
    found = (line.fields or {}).get("answer", "")
    if isinstance(found, list) and found:
        for one in found:
            yield Line(line.number, {"answer": one}).text("answer")
    elif found is not None:
        yield line.text("answer")


def _earlier(line: Line, form: str) -> list[Shot]:
    """The turn before, answered as the bundled model answers."""
    found = (line.fields or {}).get("earlier")
    if found is None:
        return []
    if not isinstance(found, list) or len(found) != 2:
        raise Unfit("the field 'earlier' is no list of a question and its answer")
    question, answer = (Line(line.number, {"earlier": each}).text("earlier") for each in found)
    return [Shot(question, f"{MARK} {answer}" if form == CHAT else answer)]
