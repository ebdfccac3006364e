"""How each supported architecture writes its shapes into config.json.

A family is a row of the table at the end: which field holds what, and three small rules. What
a row says follows the architecture's reference implementation; values come from the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from moesaic.core.parsing import short
from moesaic.model_info.config_reader import MAX_EXPERTS, ConfigReader
from moesaic.model_info.sliding_window import (
    WindowRule,
    alternate,
    alternate_first,
    beyond_first,
    every,
)


@dataclass(frozen=True, slots=True)
class Family:
    """`scoring` and `normalized` are constants where the architecture leaves no choice."""

    experts: str  # field: routed experts per layer
    expert_width: str  # field: intermediate size of one routed expert
    moe_layers: Callable[[ConfigReader, int], tuple[int, ...]]
    shared_width: Callable[[ConfigReader], int]
    scoring: Callable[[ConfigReader], str]
    normalized: Callable[[ConfigReader], bool]
    latent_attention: bool = False
    top_k: str = "num_experts_per_tok"  # field
    experts_also: str | None = None  # another name of `experts`, in files a later library saved
    states_head_dim: bool = False  # heads are not hidden_size / num_attention_heads wide
    window: WindowRule | None = None  # None: no layer has a sliding window
    linear_attention: bool = False  # on most layers; the others have an output gate
    attention_sinks: bool = False
    expert_bias: bool = False


def _every_layer(_: ConfigReader, layers: int) -> tuple[int, ...]:
    return tuple(range(layers))


def _sparse_step(config: ConfigReader, layers: int) -> tuple[int, ...]:
    """Qwen: every n-th layer routes, except those listed as dense (older files list none)."""
    step = config.count("decoder_sparse_step")
    stated = config.indices("mlp_only_layers", layers) if config.has("mlp_only_layers") else ()
    dense = frozenset(stated)
    return tuple(i for i in range(layers) if (i + 1) % step == 0 and i not in dense)


def _after_dense(config: ConfigReader, layers: int) -> tuple[int, ...]:
    """DeepSeek and GLM: the first layers are dense. Files written by libraries that know no
    `moe_layer_freq` do not have it: then all later layers route."""
    first = config.count("first_k_dense_replace", minimum=0)
    step = config.count("moe_layer_freq") if config.has("moe_layer_freq") else 1
    return tuple(i for i in range(first, layers) if i % step == 0)


def _layer_kinds(config: ConfigReader, layers: int) -> tuple[int, ...]:
    """GLM-4.7-Flash: a list of `dense` and `sparse`; or the number of dense layers; or one."""
    kinds = config.value("mlp_layer_types")
    if kinds is None and config.has("first_k_dense_replace"):
        return _after_dense(config, layers)
    if kinds is None:
        return tuple(range(1, layers))
    expected = f"a list of {layers} words, dense or sparse"
    known = isinstance(kinds, list) and all(kind in ("dense", "sparse") for kind in kinds)
    if not known or len(kinds) != layers:
        config.fail("mlp_layer_types", f"expected {expected}, not {short(kinds)}")
    return tuple(number for number, kind in enumerate(kinds) if kind == "sparse")


def _interval(config: ConfigReader, layers: int) -> tuple[int, ...]:
    """ERNIE: every n-th layer between two, of which the last may be -1 for the model's."""
    step = config.count("moe_layer_interval")
    first = config.count("moe_layer_start_index", minimum=0)
    last = config.count("moe_layer_end_index", minimum=-1)
    last = layers - 1 if last < 0 else min(last, layers - 1)
    return tuple(i for i in range(first, last + 1) if (i + 1) % step == 0)


def _no_shared(_: ConfigReader) -> int:
    return 0


def _shared_stated(config: ConfigReader) -> int:
    return config.count("shared_expert_intermediate_size", minimum=0)


def _shared_counted(config: ConfigReader) -> int:
    shared = config.nullable_count("n_shared_experts", minimum=0, maximum=MAX_EXPERTS) or 0
    return shared * config.count("moe_intermediate_size")


def _shared_counted_as(field: str) -> Callable[[ConfigReader], int]:
    return lambda c: c.count(field, 0, MAX_EXPERTS) * c.count("moe_intermediate_size")


def _always(value: str) -> Callable[[ConfigReader], str]:
    return lambda _: value


def _scoring_stated_or(only: str) -> Callable[[ConfigReader], str]:
    """DeepSeek: the original files state it; the library's own classes know one kind each."""
    return lambda c: (
        c.choice("scoring_func", ("softmax", "sigmoid")) if c.has("scoring_func") else only
    )


def _normalized(_: ConfigReader) -> bool:
    return True


def _normalized_stated(config: ConfigReader) -> bool:
    return config.flag("norm_topk_prob")


# Softmax over all experts, then renormalised over the chosen ones, equals softmax over the
# chosen ones: Mixtral is stated as the former, Granite and gpt-oss as they compute it.
_MIXTRAL = Family(
    "num_local_experts",
    "intermediate_size",
    _every_layer,
    _no_shared,
    _always("softmax"),
    _normalized,
)
_TOPK_FIRST = replace(_MIXTRAL, scoring=_always("softmax-after-topk"))
_DEEPSEEK_V3 = Family(
    "n_routed_experts",
    "moe_intermediate_size",
    _after_dense,
    _shared_counted,
    _scoring_stated_or("sigmoid"),
    _normalized_stated,
    latent_attention=True,
)

_QWEN3_NEXT = Family(
    "num_experts",
    "moe_intermediate_size",
    _sparse_step,
    _shared_stated,
    _always("softmax"),
    _normalized_stated,
    states_head_dim=True,
    linear_attention=True,
)

# Hugging Face model_type -> family
FAMILIES: dict[str, Family] = {
    "mixtral": replace(_MIXTRAL, window=WindowRule(every)),
    "granitemoe": _TOPK_FIRST,
    "gpt_oss": replace(
        _TOPK_FIRST,
        states_head_dim=True,
        window=WindowRule(alternate, states_layers=True),
        attention_sinks=True,
        expert_bias=True,
    ),
    "olmoe": Family(
        "num_experts",
        "intermediate_size",
        _every_layer,
        _no_shared,
        _always("softmax"),
        _normalized_stated,
    ),
    "qwen2_moe": Family(
        "num_experts",
        "moe_intermediate_size",
        _sparse_step,
        _shared_stated,
        _always("softmax"),
        _normalized_stated,
        window=WindowRule(alternate_first, states_layers=True, off_unless_switched=True),
    ),
    "qwen3_moe": Family(
        "num_experts",
        "moe_intermediate_size",
        _sparse_step,
        _no_shared,
        _always("softmax"),
        _normalized_stated,
        experts_also="num_local_experts",
        states_head_dim=True,
        window=WindowRule(every, off_unless_switched=True),
    ),
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5_moe_text": replace(_QWEN3_NEXT, moe_layers=_every_layer, normalized=_normalized),
    "deepseek_v2": replace(_DEEPSEEK_V3, scoring=_scoring_stated_or("softmax")),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "glm4_moe_lite": replace(_DEEPSEEK_V3, moe_layers=_layer_kinds),
    "dots1": replace(
        _DEEPSEEK_V3, latent_attention=False, window=WindowRule(beyond_first, states_layers=True)
    ),
    "ernie4_5_moe": Family(
        "moe_num_experts",
        "moe_intermediate_size",
        _interval,
        _shared_counted_as("moe_num_shared_experts"),
        _always("softmax"),
        _normalized,
        top_k="moe_k",
    ),
    "glm4_moe": Family(
        "n_routed_experts",
        "moe_intermediate_size",
        _after_dense,
        _shared_counted,
        _always("sigmoid"),
        _normalized_stated,
        states_head_dim=True,
    ),
}
