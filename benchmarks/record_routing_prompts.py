"""Prompts out of evaluation files as they are published: what is asked, and what it is about."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from training.problems import generate

from moesaic.core.errors import FileError

PROBLEMS = "problems"  # the word for those of the training recipe
_PROBLEMS_SPLIT, _MOST_PROBLEMS = "held_out_numbers", 400
_UNPACK: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".xz": lzma.decompress}
# Where a record has its question: GSM8K; HumanEval, Arena-Hard, ChatGPT prompts; CodeAlpaca.
_QUESTIONS = ("question", "prompt", "instruction")
_LEAST_LETTERS, _MOST_LETTERS = 200, 400  # of a paragraph that a text is begun with


class BadPrompts(FileError):
    kind = "prompts"


class Prompt(NamedTuple):
    text: str
    domain: str
    chat: bool = True  # False: a text to go on with


def read_prompts(source: str, seed: int) -> list[Prompt]:
    """Those of a file, in its order, or problems of the training recipe with unseen numbers."""
    if source == PROBLEMS:
        problems = generate(_PROBLEMS_SPLIT, seed, _MOST_PROBLEMS)
        return [Prompt(each.question, f"{PROBLEMS}/{each.kind}") for each in problems]
    path = Path(source)
    found = [prompt for prompt in _prompts(path, _text(path)) if prompt.text.strip()]
    if not found:
        raise BadPrompts(source, "file", "there is no prompt in it")
    return found


def name_of(source: str) -> str:
    """What a source is called: a file without its endings."""
    return Path(source).name.partition(".")[0]


def _text(path: Path) -> str:
    unpack = _UNPACK.get(path.suffix, bytes)
    try:
        return unpack(path.read_bytes()).decode("utf-8")
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError, UnicodeDecodeError) as error:
        raise BadPrompts(path, "file", f"cannot be read ({error})") from error


def _prompts(path: Path, text: str) -> Iterator[Prompt]:
    kind = next((s for s in reversed(path.suffixes) if s not in _UNPACK), "")
    name = name_of(str(path))
    if kind == ".txt":
        yield from (Prompt(begin, name, chat=False) for begin in _beginnings(text))
        return
    records = _records(path, kind, text)
    for number, record in enumerate(records, start=1):
        if not isinstance(record, dict):
            raise BadPrompts(path, f"record {number}", "must be an object with named fields")
        yield _prompt(path, number, name, record)


def _records(path: Path, kind: str, text: str) -> Iterator[Any]:
    try:
        if kind == ".jsonl":
            yield from (json.loads(line) for line in text.splitlines() if line.strip())
        elif kind == ".json":
            yield from json.loads(text)
        elif kind == ".csv":
            yield from csv.DictReader(io.StringIO(text))
        else:
            raise BadPrompts(path, "name", "must end in .jsonl, .json, .csv or .txt, packed or not")
    except (ValueError, TypeError, csv.Error) as error:
        raise BadPrompts(path, "file", f"cannot be read as {kind[1:]} ({error})") from error


def _prompt(path: Path, number: int, name: str, record: Mapping[str, Any]) -> Prompt:
    category = record.get("category")
    domain = name if category is None else f"{name}/{category}"
    turns = record.get("turns")
    if isinstance(turns, list) and turns:  # MT-Bench and Vicuna: the first turn stands alone
        return Prompt(str(turns[0]), domain)
    for field in _QUESTIONS:
        if isinstance(record.get(field), str):
            more = record.get("input") if field == "instruction" else None
            return Prompt("\n".join(filter(None, (record[field], more))), domain)
    wanted = ", ".join((*_QUESTIONS, "turns"))
    raise BadPrompts(path, f"record {number}", f"has none of the fields {wanted}")


def _beginnings(text: str) -> Iterator[str]:
    for line in text.splitlines():
        paragraph = line.strip()
        if len(paragraph) >= _LEAST_LETTERS:
            yield paragraph[:_MOST_LETTERS].rsplit(" ", 1)[0]
