"""What the tasks ask a model, from files and options, before anything is loaded. Needs torch's
neighbours (a tokenizer), not torch."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from moesaic.cli.study.eval_options import MAX_TOKENS, PROBLEMS, EvalRequest
from moesaic.core.errors import BadFile, ImpossibleSetting
from moesaic.lab.evaluation.gsm8k_task import gsm8k_items, read_gsm8k
from moesaic.lab.evaluation.humaneval_task import humaneval_items
from moesaic.lab.evaluation.items import Item, Unusable
from moesaic.lab.evaluation.problem_task import problem_items
from moesaic.lab.evaluation.prompts import CHAT, PLAIN, choose_form
from moesaic.lab.evaluation.question_task import bundled_questions, question_items
from moesaic.lab.evaluation.sandbox import Limits
from moesaic.lab.evaluation.text_task import WINDOW, text_items
from moesaic.model_info.model_spec import ModelSpec
from moesaic.models.text.tokenizer import Tokenizer, has_tokenizer


def open_tokenizer(folder: Path, spec: ModelSpec) -> Tokenizer:
    if not has_tokenizer(folder):
        raise ImpossibleSetting(
            f"{spec.name} has no tokenizer.json, so text means nothing to it, and tasks are text: "
            "add the file to its directory"
        )
    return Tokenizer.open(folder, spec.vocab_size)


def make_items(asked: EvalRequest, tokenizer: Tokenizer, context: int) -> list[Item]:
    """The items of all tasks; `context` is the most tokens a sequence may have, 0 if unknown."""
    makers = {
        "problems": _problems,
        "questions": _questions,
        "perplexity": _text,
        "gsm8k": _gsm8k,
        "humaneval": _humaneval,
    }
    found: list[Item] = []
    for task in asked.tasks:
        items = makers[task](asked, tokenizer, context)
        if not items:
            raise BadFile(f"{str(asked.files[task])!r} has nothing to ask: it is empty")
        found += items
    return found


def refuse_if_nothing_can_be_asked(items: Sequence[Item]) -> None:
    for task in dict.fromkeys(item.task for item in items):
        mine = [item for item in items if item.task == task]
        first = mine[0]
        if all(isinstance(item, Unusable) for item in mine) and isinstance(first, Unusable):
            raise ImpossibleSetting(f"nothing of {task} can be asked; {first.why}")


def _problems(asked: EvalRequest, tokenizer: Tokenizer, context: int) -> list[Item]:
    form = choose_form(asked.form, CHAT, tokenizer)
    count = PROBLEMS if asked.limit is None else asked.limit
    max_tokens = _max_tokens("problems", asked)
    return list(problem_items(tokenizer, form, count, asked.splits, max_tokens))


def _questions(asked: EvalRequest, tokenizer: Tokenizer, context: int) -> list[Item]:
    file, form = asked.files.get("questions"), choose_form(asked.form, CHAT, tokenizer)
    max_tokens = _max_tokens("questions", asked)
    return question_items(file or bundled_questions(), tokenizer, form, asked.limit, max_tokens)


def _text(asked: EvalRequest, tokenizer: Tokenizer, context: int) -> list[Item]:
    window = asked.window or min(WINDOW, context or WINDOW)
    if context and window > context:
        raise ImpossibleSetting(
            f"--window is {window}, and a sequence may have {context} tokens: give at most as many"
        )
    stride = asked.stride or max(1, window // 2)
    if stride > window:
        raise ImpossibleSetting(f"--stride is {stride} in windows of {window} tokens: give less")
    file = asked.files.get("perplexity") or _sample()
    return text_items(file, tokenizer, window, stride, asked.limit)


def _gsm8k(asked: EvalRequest, tokenizer: Tokenizer, context: int) -> list[Item]:
    file, form = asked.files["gsm8k"], choose_form(asked.form, PLAIN, tokenizer)
    parts = read_gsm8k(file, asked.shots_file, asked.shots)
    parts = parts._replace(lines=parts.lines[: asked.limit])
    return gsm8k_items(parts, file, tokenizer, form, _max_tokens("gsm8k", asked))


def _humaneval(asked: EvalRequest, tokenizer: Tokenizer, context: int) -> list[Item]:
    form = choose_form(asked.form, PLAIN, tokenizer)
    limits = Limits(seconds=asked.time_limit)
    items = humaneval_items(
        asked.files["humaneval"], tokenizer, form, limits, _max_tokens("humaneval", asked)
    )
    return items[: asked.limit]


def _max_tokens(task: str, asked: EvalRequest) -> int:
    return asked.max_tokens or MAX_TOKENS[task]


def _sample() -> Path:
    return Path(str(files("moesaic.cli.study") / "data" / "quality_text.txt"))
