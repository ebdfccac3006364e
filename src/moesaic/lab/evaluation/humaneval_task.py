"""HumanEval from the user's file: a function is completed, and the file's tests must pass.

One greedy attempt (pass@1). Completions end where the original evaluation ends them: with the next
thing at the left margin.
"""

from __future__ import annotations

import re
from pathlib import Path

from moesaic.core.errors import ImpossibleSetting
from moesaic.lab.evaluation.input_files import Line, Unfit, read_lines
from moesaic.lab.evaluation.items import Item, Question, Unusable, Verdict
from moesaic.lab.evaluation.prompts import CHAT
from moesaic.lab.evaluation.sandbox import Limits, run_program
from moesaic.models.text.tokenizer import Tokenizer

NAME = "humaneval"
MAX_TOKENS = 512
STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
_FENCED = re.compile(r"```[\w.+-]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_ASKING = (
    "Complete this Python function. Answer with the whole function in one block of code.\n\n"
    "```python\n{prompt}\n```"
)


def humaneval_items(
    file: Path, tokenizer: Tokenizer, form: str, limits: Limits, max_tokens: int = MAX_TOKENS
) -> list[Item]:
    found: list[Item] = []
    seen: set[str] = set()
    for line in read_lines(file):
        try:
            name = line.text("task_id")
            if name in seen:
                raise Unfit(f"the task_id {name!r} stands in an earlier line, too")
            seen.add(name)
            found.append(_question(name, line, tokenizer, form, limits, max_tokens))
        except (Unfit, ImpossibleSetting) as error:
            what = f"{file}, line {line.number}: {error}"
            found.append(Unusable(NAME, f"line {line.number}", what))
    return found


def completed(prompt: str, text: str, form: str, entry_point: str) -> str:
    """The function's source: what was asked and its completion, or the code of an answer."""
    if form != CHAT:
        return prompt + text
    fenced = _FENCED.search(text)
    code = fenced[1] if fenced else text
    begins = re.compile(rf"^def {entry_point}\b", re.MULTILINE)
    asked = begins.search(prompt)
    if asked is None or begins.search(code) is None:
        return prompt + code
    # Imports and helpers of the exercise come first: an answer may repeat them or rely on them.
    return prompt[: asked.start()] + code


def program(source: str, test: str, entry_point: str) -> str:
    return f"{source}\n{test}\ncheck({entry_point})\n"


def _question(
    name: str, line: Line, tokenizer: Tokenizer, form: str, limits: Limits, max_tokens: int
) -> Question:
    prompt, test, entry = (line.text(field) for field in ("prompt", "test", "entry_point"))
    if not entry.isidentifier():
        raise Unfit(f"the field 'entry_point' is {entry[:40]!r}, expected the name of a function")
    if form == CHAT:
        asked = [{"role": "user", "content": _ASKING.format(prompt=prompt.strip())}]
        tokens = tokenizer.encode_chat(asked)
    else:
        tokens = tokenizer.encode(prompt)

    def judge(text: str) -> Verdict:
        outcome = run_program(program(completed(prompt, text, form, entry), test, entry), limits)
        return Verdict(outcome.passed, outcome.why)

    stop = () if form == CHAT else STOPS
    return Question(NAME, name, tokens, max_tokens, judge, stop=stop)
