"""Problems as packed rows: what a worker process makes. Same shard number, same rows.

No torch here: a worker starts in a blink and stays small.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from training.documents import Document, mixed, plain, talk
from training.packing import PERCENT, Encoded, Rows, pack
from training.problems import generate
from training.tokenizer import open_tokenizer

_FAR = 1_000_003  # seeds of neighbouring runs do not share shards


@dataclass(frozen=True, slots=True)
class ShardMaker:
    folder: str  # where the tokenizer lies
    length: int
    problems: int
    question_percent: int
    seed: int

    def __call__(self, number: int) -> Rows:
        """Training problems that no other shard number of this seed has, shuffled row by row."""
        seed = self.seed * _FAR + number
        random = Random(seed)
        documents = list(mixed(generate("train", seed, self.problems), random))
        rows = pack(self._encode(documents), self.length)
        order = np.array(random.sample(range(len(rows.tokens)), len(rows.tokens)), np.int64)
        return rows.only(order)

    def held_out(self, split: str, count: int) -> Rows:
        """Rows to measure the loss on: half of them plain, half as talks. Questions count
        nothing there: only answers can be right."""
        documents = [
            talk([problem]) if number % 2 else plain(problem)
            for number, problem in enumerate(generate(split, self.seed, count))
        ]
        return pack(self._encode(documents, question_percent=0), self.length)

    def _encode(
        self, documents: Iterable[Document], question_percent: int | None = None
    ) -> list[Encoded]:
        asked = self.question_percent if question_percent is None else question_percent
        tokenizer = open_tokenizer(Path(self.folder))
        all_documents = list(documents)
        texts = [piece.text for document in all_documents for piece in document]
        encoded = iter(tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        return [
            _join(document, [next(encoded).ids for _ in document], asked)
            for document in all_documents
        ]


def _join(document: Document, ids: Sequence[Sequence[int]], asked: int) -> Encoded:
    tokens = [token for piece in ids for token in piece]
    percent: list[int] = []
    for piece, its in zip(document, ids, strict=True):
        percent.extend([PERCENT if piece.answered else asked] * len(its))
    return Encoded(tokens, percent)
