"""How a model's publishers want its tokens chosen, where a request does not say: sampling fields of
generation_config.json. Its ends of a text are read with the tokenizer's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moesaic.core.errors import BadTokenizer
from moesaic.models.text.tokenizer_files import GENERATION, read_generation_fields

_NUMBERS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def sampling_defaults(folder: Path) -> dict[str, Any]:
    """Defaults by the names of `SamplingParams`, whose ranges are checked there. `do_sample: false`
    is greedy, as in the stock implementation; the other fields then mean nothing."""
    fields = read_generation_fields(folder)
    found = {name: fields[name] for name in _NUMBERS if fields.get(name) is not None}
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadTokenizer(folder / GENERATION, name, f"expected a number, not {value!r}")
    if fields.get("do_sample") is False:
        penalty = found.get("repetition_penalty")
        return {"temperature": 0.0} | ({} if penalty is None else {"repetition_penalty": penalty})
    return found


def defaults_text(defaults: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in defaults.items())
