"""The small files of a model directory: what is read beside the weights, by name. Copies and
fetches of a model take these."""

from __future__ import annotations

CONFIG = "config.json"
SMALL_FILES = (
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
