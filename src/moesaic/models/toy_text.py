"""The page of text a toy model learns: its sentences, and a tokenizer made for it."""

from __future__ import annotations

import re

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from moesaic.models.toy_training import Lesson

END = "<|end|>"  # of a paragraph
_MOST_TOKENS = 768  # of the vocabulary: words that occur often are one token
_BLANK_LINE = re.compile(r"\n\s*\n")
_NEXT_SENTENCE = re.compile(r"(?<=[.!?])\s+")


class Page:
    def __init__(self, text: str) -> None:
        """Paragraphs have blank lines between them."""
        self.words = len(text.split())
        self.tokenizer = _tokenizer(text)
        end_id = self.tokenizer.token_to_id(END)
        assert end_id is not None, "the tokenizer was made with it"
        self.end_id = end_id
        paragraphs = _BLANK_LINE.split(text.strip())
        self._paragraphs = [_NEXT_SENTENCE.split(paragraph) for paragraph in paragraphs]

    def openings(self, count: int, words: int = 5) -> list[str]:
        """How sentences from all over the page begin: what one who knows it can go on with."""
        sentences = [sentence.split() for part in self._paragraphs for sentence in part]
        long = [sentence for sentence in sentences if len(sentence) > words]
        chosen = long[:: max(1, len(long) // count)][:count]
        return [" ".join(sentence[:words]) for sentence in chosen]

    def lesson(self) -> Lesson:
        tokens: list[int] = []
        starts = []
        for paragraph in self._paragraphs:
            for sentence in paragraph:
                starts.append(len(tokens))
                tokens += self.tokenizer.encode(sentence).ids
            tokens.append(self.end_id)
        return Lesson(tokens, starts)


def _tokenizer(text: str) -> tokenizers.Tokenizer:
    """Tokens are strings of bytes. Every word has its space before it, a text's first one too: a
    sentence is the same tokens wherever it stands."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_MOST_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[END],
        show_progress=False,
    )
    made.train_from_iterator([text], trainer)
    return made
