"""A small stock model with a tokenizer and a chat template in its directory."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import small_tokenizers
import stock

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Talking(NamedTuple):
    """A stock model with a tokenizer in its directory."""

    model: Any
    tokenizer: Any  # the stock one
    folder: Path


@cache
def talking(kind: str = "byte-level") -> Talking:
    folder = Path(tempfile.mkdtemp(prefix="moesaic-talking-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    small_tokenizers.save(folder, kind, chat_template=CHATML)
    model = stock.make("qwen3-moe", vocab_size=512)
    stock.save(model, folder)  # also the config
    return Talking(model, small_tokenizers.stock(folder), folder)
