"""Models that also see images: the fields, and the tensors, of their text model.

Their config.json has it in a table of its own, and their files have its tensors under a name of its
own. Images are not read: what is left is a language model like others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Hugging Face model_type of the whole -> of its text model
TEXT_MODELS = {"qwen3_5_moe": "qwen3_5_moe_text"}
_TABLE = "text_config"
_OF_THE_WHOLE = ("quantization_config", "tie_word_embeddings", "dtype", "torch_dtype")
_PREFIX, _PLAIN = "model.language_model.", "model."


def text_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of the text model, where there is one inside; else all fields as they are."""
    whole, inner = fields.get("model_type"), fields.get(_TABLE)
    if not isinstance(whole, str) or whole not in TEXT_MODELS or not isinstance(inner, dict):
        return fields
    outer = {name: fields[name] for name in _OF_THE_WHOLE if name in fields}
    return {"model_type": TEXT_MODELS[whole], **outer, **inner}


def text_name(tensor: str) -> str:
    """What a tensor would be called in a file of the text model alone."""
    return _PLAIN + tensor.removeprefix(_PREFIX) if tensor.startswith(_PREFIX) else tensor
