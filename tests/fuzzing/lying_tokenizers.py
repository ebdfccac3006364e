"""Tokenizers that lie, for the fuzzer: ids that are shared, moved or beyond the vocabulary."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

from fuzzing.examples import tokenizer
from fuzzing.lies import Lie, SilentlyRead, lying, repeat_key
from moesaic.models.text.tokenizer import Tokenizer

_ROWS = 60  # of the model's vocabulary
_TEXT = "a word and another word"
Files = dict[str, Any]  # a text is written as it is


def _vocabulary(files: Files) -> dict[str, int]:
    found: dict[str, int] = files["tokenizer.json"]["model"]["vocab"]
    return found


def _two(files: Files, rng: random.Random) -> tuple[str, str]:
    """Tokens that are not special."""
    one, other = rng.sample(sorted(set(_vocabulary(files)) - {"<s>", "</s>"}), 2)
    return one, other


def _share(files: Files, rng: random.Random) -> None:
    one, other = _two(files, rng)
    _vocabulary(files)[one] = _vocabulary(files)[other]


def _exchange(files: Files, rng: random.Random) -> None:
    one, other = _two(files, rng)
    vocabulary = _vocabulary(files)
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]


def _beyond(files: Files, rng: random.Random) -> None:
    _vocabulary(files)[_two(files, rng)[0]] = _ROWS + rng.choice([0, 1, 100, 2**31, 2**32 - 61])


def _merge(files: Files, rng: random.Random) -> None:
    merges = files["tokenizer.json"]["model"]["merges"]
    merges.insert(rng.randrange(len(merges) + 1), rng.choice([["q", "zz"], ["a", "word"], ["a"]]))


def _move_added(files: Files, rng: random.Random) -> None:
    rng.choice(files["tokenizer.json"]["added_tokens"])["id"] = rng.choice([2, 7, 59, 60, 2**31])


def _add(files: Files, rng: random.Random) -> None:
    added = files["tokenizer.json"]["added_tokens"]
    added.append(added[0] | {"content": "<new>", "id": rng.choice([0, 5, 58, 1000])})


def _end(files: Files, rng: random.Random) -> None:
    files["generation_config.json"]["eos_token_id"] = rng.choice([_ROWS, -1, [2**30, 1]])


def _repeat(files: Files, rng: random.Random) -> None:
    name = rng.choice(["tokenizer_config.json", "generation_config.json"])
    files[name] = repeat_key(json.dumps(files[name]), rng)


_LIES = {
    "two tokens with one id": Lie(_share),
    "exchanged ids": Lie(_exchange, allowed=True),
    "an id beyond the vocabulary": Lie(_beyond),
    "a merge of unknown tokens": Lie(_merge),
    "another id of an added token": Lie(_move_added),
    "an added token with a taken id": Lie(_add),
    "an end of text beyond the vocabulary": Lie(_end, allowed=True),
    "a key twice": Lie(_repeat),
}


def _save(folder: Path, files: Files) -> None:
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text)


def _read(folder: Path) -> None:
    made = Tokenizer.open(folder, _ROWS)
    ids = made.encode(_TEXT)
    if max(ids) >= _ROWS or made.decode(ids) != _TEXT:
        raise SilentlyRead(f"{_TEXT!r} became {ids}, which became {made.decode(ids)!r}")


TOKENIZERS = lying(lambda: deepcopy(tokenizer()), _save, _LIES, _read)
