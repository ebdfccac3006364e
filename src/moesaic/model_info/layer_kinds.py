"""Reads which layers of a model have linear attention, and its sizes."""

from __future__ import annotations

from moesaic.core.parsing import short
from moesaic.model_info.config_reader import ConfigReader
from moesaic.model_info.linear_attention import LinearAttentionSizes
from moesaic.model_info.sliding_window import FULL

LINEAR = "linear_attention"
_INTERVAL = 4  # every fourth layer sees all tokens, where a file does not say
_LONGEST_KERNEL = 64


def read_linear_layers(config: ConfigReader, layers: int) -> tuple[int, ...]:
    """The layers with linear attention: listed, or all but every n-th."""
    kinds, field = config.value("layer_types"), "full_attention_interval"
    interval = config.count(field) if config.has(field) else _INTERVAL
    by_interval = tuple(n for n in range(layers) if (n + 1) % interval)
    if not kinds:
        return by_interval
    if not isinstance(kinds, list) or any(kind not in (FULL, LINEAR) for kind in kinds):
        what = f"expected a list of {FULL} and {LINEAR}, not {short(kinds)}"
        config.fail("layer_types", what)
    if len(kinds) != layers:
        config.fail("layer_types", f"expected {layers} (layers), not {len(kinds)}")
    listed = tuple(number for number, kind in enumerate(kinds) if kind == LINEAR)
    if config.has(field) and listed != by_interval:
        config.fail(field, f"says {interval}, but layer_types lists other layers")
    return listed


def read_linear_attention(config: ConfigReader) -> LinearAttentionSizes:
    keys, values = config.count("linear_num_key_heads"), config.count("linear_num_value_heads")
    if values % keys:
        what = f"expected a multiple of {keys} (linear_num_key_heads), not {values}"
        config.fail("linear_num_value_heads", what)
    return LinearAttentionSizes(
        key_heads=keys,
        value_heads=values,
        key_dim=config.count("linear_key_head_dim"),
        value_dim=config.count("linear_value_head_dim"),
        conv_kernel=config.count("linear_conv_kernel_dim", minimum=2, maximum=_LONGEST_KERNEL),
    )
