"""The model's tokenizer: byte-level BPE, every digit a token of its own.

Arithmetic depends on the digits: "347" as one token would have to be learned a thousand times.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from moesaic.core.errors import ImpossibleSetting

END, USER, ASSISTANT = "<|endoftext|>", "<|user|>", "<|assistant|>"
SPECIAL = (END, USER, ASSISTANT)
END_ID = 0
FILE = "tokenizer.json"
# A system message is not part of any training text: it is passed over.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '" + USER + "' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}"
    "{{ '" + ASSISTANT + "' + message['content'] + '" + END + "' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + ASSISTANT + "' }}{% endif %}"
)


def learn_tokenizer(texts: Iterable[str], vocabulary: int) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    assert made.token_to_id(END) == END_ID, "special tokens come first"
    return made


def open_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    file = folder / FILE
    if not file.is_file():
        raise ImpossibleSetting(
            f"no {FILE} in {str(folder)!r}: make it with python -m training.prepare."
        )
    return tokenizers.Tokenizer.from_file(str(file))
