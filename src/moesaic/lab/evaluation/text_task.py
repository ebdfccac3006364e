"""Text as windows that overlap: every token is predicted once, from at least `window - stride`
tokens before it wherever the text has so many.

A text begins with the token that begins texts (or ends them, where the model has no other), so that
its first token is predicted, too; models without either begin with the first token itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from moesaic.core.errors import ImpossibleSetting
from moesaic.lab.evaluation.input_files import Line, Unfit, is_lines, read_lines, read_text
from moesaic.lab.evaluation.items import Item, TextWindow, Unusable
from moesaic.models.text.tokenizer import Tokenizer

NAME = "perplexity"
WINDOW = 1024


def text_items(
    file: Path, tokenizer: Tokenizer, window: int, stride: int, limit: int | None = None
) -> list[Item]:
    """At most `limit` windows; a text ends with the last of them."""
    assert 0 < stride <= window, f"{stride} is no stride in windows of {window}"
    if not is_lines(file):
        return list(windows("text", read_text(file), tokenizer, window, stride, limit))
    found: list[Item] = []
    for line in read_lines(file):
        left = None if limit is None else limit - len(found)
        if left == 0:
            break
        found += _windows_of_line(line, file, tokenizer, window, stride, left)
    return found


def _windows_of_line(
    line: Line, file: Path, tokenizer: Tokenizer, window: int, stride: int, limit: int | None
) -> Sequence[Item]:
    name = f"line {line.number}"
    try:
        return list(windows(name, line.text("text"), tokenizer, window, stride, limit))
    except (Unfit, ImpossibleSetting) as error:
        return [Unusable(NAME, name, f"{file}, {name}: {error}")]


def windows(
    name: str,
    text: str,
    tokenizer: Tokenizer,
    window: int,
    stride: int,
    limit: int | None = None,
) -> Iterator[TextWindow]:
    begin = (
        tokenizer.bos_id if tokenizer.bos_id is not None else min(tokenizer.eos_ids, default=None)
    )
    written = tokenizer.encode(text, special=False)
    if limit is not None and (end := window + (limit - 1) * stride) < len(written):
        written = written[: end + (begin is None)]
        text = tokenizer.decode(written, skip_special=False)
    tokens = written if begin is None else [begin, *written]
    predicted = len(tokens) - 1
    # The text's bytes and words belong to its tokens in equal parts.
    size, words = (
        len(text.encode()) / max(len(written), 1),
        len(text.split()) / max(len(written), 1),
    )
    known = 0
    while known < predicted:
        end = min(known + (stride if known else window), predicted)
        targets = tokens[known + 1 : end + 1]
        yield TextWindow(
            task=NAME,
            item=f"{name}, tokens {known + 1} to {end}",
            reads=tokens[max(0, end - window) : end],
            targets=targets,
            bytes=size * len(targets),
            words=words * len(targets),
        )
        known = end
