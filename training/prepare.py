"""Makes what training reads: the tokenizer and the corpus as tokens, a part of it held out.

python -m training.prepare --corpus FOLDER --out FOLDER
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import tokenizers

from training.command import run_command
from training.corpus import documents
from training.documents import plain
from training.problems import generate
from training.prose_rows import HELD_OUT_PROSE, TRAINING_PROSE
from training.recipe import BUNDLED, read_recipe
from training.token_file import Tokens, write_tokens
from training.tokenizer import END_ID, FILE, learn_tokenizer

_EVERY = 4  # the tokenizer learns from every fourth document: more changes next to nothing
_PROBLEMS = 20_000  # and from some problems, whose words are to be tokens of their own
_AT_ONCE = 64  # documents
_SAMPLE_SEED = 7


def tokenizer_texts(corpus: Path, problems: int) -> Iterator[str]:
    yield from islice(documents(corpus, held_out=False), 0, None, _EVERY)
    for problem in generate("train", _SAMPLE_SEED, problems):
        yield "".join(piece.text for piece in plain(problem))


def encode_all(tokenizer: tokenizers.Tokenizer, texts: Iterator[str]) -> Tokens:
    """All documents, each with the end of a text after it."""
    parts: list[Tokens] = []
    while some := list(islice(texts, _AT_ONCE)):
        for encoding in tokenizer.encode_batch_fast(some, add_special_tokens=False):
            parts.append(np.array([*encoding.ids, END_ID], np.uint16))
    return np.concatenate(parts)


def prepare(corpus: Path, out: Path, vocabulary: int, problems: int = _PROBLEMS) -> None:
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = learn_tokenizer(tokenizer_texts(corpus, problems), vocabulary)
    tokenizer.save(str(out / FILE))
    for name, held_out in ((TRAINING_PROSE, False), (HELD_OUT_PROSE, True)):
        tokens = encode_all(tokenizer, documents(corpus, held_out))
        write_tokens(out / name, tokens)
        size = (out / name).stat().st_size
        letters = sum(len(text) for text in documents(corpus, held_out))
        print(
            f"{name}: {len(tokens):,} tokens of {letters / len(tokens):.2f} characters, "
            f"{size / 2**20:.1f} MiB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.prepare", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="folder with *.jsonl.xz")
    parser.add_argument("--out", type=Path, required=True, help="folder to fill")
    parser.add_argument("--recipe", type=Path, default=BUNDLED)
    options = parser.parse_args()
    prepare(options.corpus, options.out, read_recipe(options.recipe).shape.vocabulary)


if __name__ == "__main__":
    run_command(main)
