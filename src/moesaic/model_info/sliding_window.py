"""Sliding windows: which layers of a model have one, and how many tokens of a sequence the KV cache
of such a layer keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moesaic.core.parsing import short
from moesaic.model_info.config_reader import ConfigReader

FULL, SLIDING = "full_attention", "sliding_attention"
REWIND = 32  # tokens a sequence may be shortened by, whatever has left the window: drafts, reruns
SCORES = 1 << 22  # of attention with sinks, computed at once
_QWEN2_LAYERS = 28  # of `max_window_layers`, where a file does not state it


@dataclass(frozen=True, slots=True)
class WindowRule:
    """How a family states its windows."""

    layers: Callable[[ConfigReader, int], tuple[int, ...]]  # that have one, if the file says none
    states_layers: bool = False  # `layer_types` says which layers have it
    off_unless_switched: bool = False  # it counts only where `use_sliding_window` is true


def every(_: ConfigReader, layers: int) -> tuple[int, ...]:
    return tuple(range(layers))


def alternate(_: ConfigReader, layers: int) -> tuple[int, ...]:
    return tuple(range(0, layers, 2))


def alternate_first(config: ConfigReader, layers: int) -> tuple[int, ...]:
    """Qwen2-MoE: every other one of the first `max_window_layers`."""
    field = "max_window_layers"
    first = config.count(field, minimum=0) if config.has(field) else _QWEN2_LAYERS
    return tuple(range(0, min(first, layers), 2))


def beyond_first(config: ConfigReader, layers: int) -> tuple[int, ...]:
    """dots.llm1: all but the first `max_window_layers`."""
    return tuple(range(config.count("max_window_layers", minimum=0), layers))


def read_windows(
    config: ConfigReader, rule: WindowRule | None, layers: int, context: int
) -> tuple[int, tuple[int, ...]]:
    """Tokens that a token sees where there is a window, itself included, and the layers that have
    it. 0, () for none: a window as wide as the context hides nothing."""
    window = 0 if rule is None else _stated_window(config, rule)
    stated = _layer_types(config, layers)
    found: tuple[int, ...] = ()
    if rule is not None and window:
        found = rule.layers(config, layers)
        if rule.states_layers and stated is not None:
            found = stated
    if stated is not None and stated != found:
        what = f"a window on layers {list(stated)}, and the other fields on {list(found)}"
        config.fail("layer_types", f"says there is {what}")
    return (window, found) if found and window < context else (0, ())


def _stated_window(config: ConfigReader, rule: WindowRule) -> int:
    stated = config.count("sliding_window", minimum=0) if config.has("sliding_window") else 0
    switch = "use_sliding_window"
    on = config.flag(switch) if config.has(switch) else not rule.off_unless_switched
    return stated if on else 0


def _layer_types(config: ConfigReader, layers: int) -> tuple[int, ...] | None:
    """The layers that `layer_types` says have a window; None where it is not there."""
    stated = config.value("layer_types")
    if not stated:
        return None
    if not isinstance(stated, list) or any(kind not in (FULL, SLIDING) for kind in stated):
        what = f"expected a list of {FULL} and {SLIDING}, not {short(stated)}"
        config.fail("layer_types", what)
    if len(stated) != layers:
        config.fail("layer_types", f"expected {layers} (layers), not {len(stated)}")
    return tuple(number for number, kind in enumerate(stated) if kind == SLIDING)


def window_rows(window: int, length: int, step_tokens: int) -> int:
    """Tokens of a sequence that a layer with a window keeps: what the first token of a step sees,
    what a shortened sequence needs again, and the step's own."""
    return min(length, window - 1 + REWIND + step_tokens)
