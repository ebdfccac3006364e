"""The small files beside a tokenizer.json: which tokens have a name, which ones end a text, and
the chat template. All of them may be absent; one that exists and is malformed is BadTokenizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from moesaic.core.errors import BadTokenizer
from moesaic.core.files import has_regular_file
from moesaic.core.parsing import read_bounded, read_json, short
from moesaic.model_info.text_config import text_fields

CONFIG = "tokenizer_config.json"
_NAMES = "special_tokens_map.json"
_TEMPLATE = "chat_template.jinja"
MAX_TEMPLATE_BYTES = 4 << 20
_LARGEST_ID = 1 << 31
GENERATION = "generation_config.json"
_END_OF_TEXT = (GENERATION, "config.json")


class TemplateFile(NamedTuple):
    source: str
    path: Path  # where it stands


def read_config(folder: Path) -> dict[str, Any]:
    """The tokenizer's config. Older checkpoints keep the special tokens in a file of their own,
    which then has the last word."""
    config = _fields(folder / CONFIG)
    if "added_tokens_decoder" in config:
        return config
    return config | _fields(folder / _NAMES)


def read_template(folder: Path, config: dict[str, Any]) -> TemplateFile | None:
    """The model's chat template: a file of its own comes before what the config has."""
    own = folder / _TEMPLATE
    if has_regular_file(own, BadTokenizer):
        return TemplateFile(_text(own), own)
    found = config.get("chat_template")
    if isinstance(found, list):
        found = _named_templates(folder, found).get("default")
    if found is None:
        return None
    if not isinstance(found, str):
        what = "expected a template, or a list of templates with name and template"
        raise BadTokenizer(folder / CONFIG, "chat_template", what)
    return TemplateFile(found, folder / CONFIG)


def read_eos_ids(folder: Path, eos_id: int | None) -> frozenset[int]:
    """The tokens that end a text: what generation says, else the model, else the tokenizer."""
    for name in _END_OF_TEXT:
        fields = _fields(folder / name)
        found = fields.get("eos_token_id", text_fields(fields).get("eos_token_id"))
        ids = found if isinstance(found, list) else [] if found is None else [found]
        if not all(type(item) is int and abs(item) < _LARGEST_ID for item in ids):
            what = f"expected a token id or a list of them, not {short(found)}"
            raise BadTokenizer(folder / name, "eos_token_id", what)
        if ids:
            return frozenset(ids)
    return frozenset() if eos_id is None else frozenset({eos_id})


def read_generation_fields(folder: Path) -> dict[str, Any]:
    return _fields(folder / GENERATION)


def _named_templates(folder: Path, entries: list[Any]) -> dict[str, Any]:
    try:
        return {entry["name"]: entry["template"] for entry in entries}
    except (KeyError, TypeError):
        what = "expected every template in the list to have name and template"
        raise BadTokenizer(folder / CONFIG, "chat_template", what) from None


def _fields(file: Path) -> dict[str, Any]:
    """A JSON object's fields; none where there is no such file."""
    if not has_regular_file(file, BadTokenizer):
        return {}
    content = read_json(file, BadTokenizer)
    if not isinstance(content, dict):
        raise BadTokenizer(file, "file", "expected a JSON object")
    return content


def _text(file: Path) -> str:
    try:
        return read_bounded(file, BadTokenizer, MAX_TEMPLATE_BYTES).decode()
    except UnicodeDecodeError as error:
        raise BadTokenizer(file, "file", f"expected UTF-8 text: {error}") from None
