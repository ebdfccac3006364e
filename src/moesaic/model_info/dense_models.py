"""Models without experts: how they are recognised, and the message about them."""

from __future__ import annotations

from moesaic.core.parsing import short
from moesaic.model_info.config_reader import ConfigReader

DENSE = (
    "a dense model: it has no experts. Moesaic runs mixture-of-experts models; run this one with "
    "transformers, vLLM or llama.cpp"
)
_SIGNS = ("expert", "moe")  # in the name of a field, or of an architecture


def refuse_dense(config: ConfigReader) -> None:
    """BadConfig where an architecture is named and nothing in the file is about experts. Only
    for architectures that are not known: the fields of those are read by name."""
    model_type = config.value("model_type")
    if not isinstance(model_type, str) or not model_type:
        return
    names = (model_type, *config.names())
    if not any(sign in name.lower() for name in names for sign in _SIGNS):
        config.fail("model_type", f"{short(model_type)} is {DENSE}")
