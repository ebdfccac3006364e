"""Is every field of a config read, known not to matter, or refused?"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import stock
from moesaic.core.errors import BadConfig, ImpossibleSetting, MoesaicError
from moesaic.model_info.network import GroupedAttentionSpec, LinearAttentionSpec
from moesaic.models.configs.architecture import Architecture
from moesaic.models.configs.families import RUNNABLE
from moesaic.models.configs.network_reader import read_architecture
from moesaic.models.open_model import open_model, with_experts_per_token
from stock_text import prompt, stock_logits

CONFIGS = Path(__file__).parents[3] / "shared" / "data" / "configs"
TOLERANCE = 1e-4  # as in test_parity


def changed(name: str, folder: Path, **changes: Any) -> Path:
    """The config of one of the stock models, with some fields changed."""
    config = json.loads((stock.saved(name).folder / "config.json").read_text())
    path = folder / "config.json"
    path.write_text(json.dumps(config | changes))
    return path


def refusal(path: Path) -> BadConfig:
    with pytest.raises(BadConfig) as caught:
        read_architecture(path)
    return caught.value


def another(value: Any) -> Any:
    """A value of the same kind."""
    match value:
        case bool():
            return not value
        case int():
            return 2 * value + 2
        case float():
            return 2 * value + 0.5
        case str():
            return f"another {value}"
        case list():
            return [*value[1:], "another"]
        case _:
            return 6


def own_fields(name: str) -> list[str]:
    """What the stock class of a family knows beyond any model's bookkeeping, as it saves it."""
    config = stock.saved(name).model.config
    common = {field.name for field in fields(transformers.PreTrainedConfig)}
    known = {field.name for field in fields(config)} - common
    return sorted(known & config.to_diff_dict().keys() - {"rope_parameters"} | {"mlp_bias"})


def stock_answer(name: str, **changes: Any) -> torch.Tensor:
    """What the stock model says with its weights and another config."""
    model = stock.saved(name).model
    config = type(model.config)(**(model.config.to_dict() | changes))
    same_weights = type(model)(config).eval()
    same_weights.load_state_dict(model.state_dict())
    return stock_logits(same_weights, prompt(20))[0]


def meaning(path: Path) -> Architecture | None:
    """None: it is refused."""
    try:
        return read_architecture(path)
    except MoesaicError:
        return None


@pytest.mark.parametrize("name", stock.FAMILIES)
def test_what_we_leave_unread_the_stock_model_does_too(name: str, tmp_path: Path) -> None:
    """Each field of the stock class in turn at another value: that changes what we compute, or is
    refused, or the stock model answers as before."""
    plain = read_architecture(changed(name, tmp_path))
    saved = json.loads((stock.saved(name).folder / "config.json").read_text())
    answer, ignored = stock_answer(name), []
    for field in own_fields(name):
        value = another(saved.get(field))
        if meaning(changed(name, tmp_path, **{field: value})) == plain:
            ignored.append(field)
            assert torch.equal(stock_answer(name, **{field: value}), answer), field
    assert "initializer_range" in ignored, "the comparison looks at fields that are not read"


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("deepseek-v2", "mlp_bias", True),
        ("deepseek-v2", "norm_topk_prob", True),
        ("deepseek-v2", "scoring_func", "sigmoid"),
        ("deepseek-v2", "topk_method", "noaux_tc"),
        ("deepseek-v2", "num_key_value_heads", 2),
        ("deepseek-v2", "num_nextn_predict_layers", 1),
        ("glm-4.5", "topk_method", "greedy"),
        ("glm-4.5", "scoring_func", "softmax"),
        ("mixtral", "norm_topk_prob", False),
        ("mixtral", "attention_bias", True),
        ("mixtral", "clip_qkv", 0.5),
        ("mixtral", "partial_rotary_factor", 0.5),
        ("mixtral", "original_max_position_embeddings", 64),
        ("mixtral", "num_experts", 5),
        ("qwen2-moe", "use_qk_norm", True),
        ("qwen2-moe", "layer_types", 3),
        ("qwen2-moe", "layer_types", ["full_attention", "linear_attention", "full_attention"]),
        ("qwen2-moe", "layer_types", ["full_attention", "sliding_attention", "full_attention"]),
        ("qwen3-moe", "use_qk_norm", False),
        ("qwen3-moe", "shared_expert_intermediate_size", 64),
        ("qwen3-moe", "num_experts", 13),
        ("olmoe", "attention_sinks", {"count": 4}),
        ("olmoe", "logit_softcapping", 30.0),
        ("olmoe", "rope_scaling", {"factor": 2.0}),
    ],
)
def test_a_field_that_may_change_the_arithmetic(
    name: str, field: str, value: Any, tmp_path: Path
) -> None:
    error = refusal(changed(name, tmp_path, **{field: value}))
    assert error.field in (field, "factor", "num_local_experts")
    assert str(error.path) == str(tmp_path / "config.json")


def test_an_unknown_field_is_named_with_its_value_and_what_to_do(tmp_path: Path) -> None:
    said = str(refusal(changed("olmoe", tmp_path, head_scale=2.5)))
    assert "head_scale: 2.5 is not understood and may change what the model computes" in said
    assert said.endswith("if it does not, delete the field")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("olmoe", {"logit_softcapping": None, "use_sinks": False, "sinks": [], "extra": 0}),
        ("olmoe", {"_attn_implementation_autoset": True, "transformers_version": "9.9"}),
        ("olmoe", {"partial_rotary_factor": 1.0}),
        ("qwen3-moe", {"use_qk_norm": True, "qkv_bias": False}),
        ("glm-4.5", {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}),
        ("deepseek-v2", {"scoring_func": "softmax", "qk_head_dim": 20, "head_dim": 8}),
        ("mixtral", {"norm_topk_prob": True, "temperature": 0.7, "top_k": 50}),
        ("qwen2-moe", {"sliding_window": 8, "max_window_layers": 2}),
    ],
)
def test_what_changes_nothing_is_accepted(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    plain = read_architecture(changed(name, tmp_path))
    assert read_architecture(changed(name, tmp_path, **changes)) == plain


ROPE: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}


@pytest.mark.parametrize(
    ("rope", "field"),
    [
        (ROPE | {"low_freq_factor": 1.0}, "low_freq_factor"),
        (ROPE | {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (ROPE | {"full_attention": {"rope_type": "default"}}, "full_attention"),
        ({"rope_theta": 1e4, "factor": 4.0}, "factor"),
        ({"rope_theta": 1e4, "attention_factor": 1.5}, "attention_factor"),
        (ROPE | {"rope_type": "linear", "beta_fast": 16}, "beta_fast"),
    ],
)
def test_rope_settings_that_are_not_understood(
    rope: dict[str, Any], field: str, tmp_path: Path
) -> None:
    assert refusal(changed("mixtral", tmp_path, rope_parameters=rope)).field == field


def test_a_default_beside_the_table_gives_way_to_it(tmp_path: Path) -> None:
    """As transformers 5.17 writes Qwen3-Next and computes it."""
    path = changed("qwen3-next", tmp_path, partial_rotary_factor=0.25)
    (rope,) = read_architecture(path).network.ropes
    assert rope.dim == 8, "half of a head of 16"


def test_rope_stated_twice_must_agree(tmp_path: Path) -> None:
    path = changed("mixtral", tmp_path, rope_parameters=ROPE, rope_scaling=ROPE, rope_theta=1e4)
    assert [rope.factor for rope in read_architecture(path).network.ropes] == [4.0]
    path = changed("mixtral", tmp_path, rope_parameters=ROPE, rope_scaling=ROPE | {"factor": 8.0})
    assert "factor: is stated twice, as 4.0 and as 8.0" in str(refusal(path))
    assert refusal(changed("mixtral", tmp_path, rope_theta=5e5)).field == "rope_theta"


@pytest.mark.parametrize("share", [0.2, 0.0, 1.5])
def test_a_share_of_a_head_that_cannot_turn(share: float, tmp_path: Path) -> None:
    """Of 16 values: 3, none, 24."""
    rope = stock.PLAIN_ROPE | {"partial_rotary_factor": share}
    said = str(refusal(changed("glm-4.5", tmp_path, rope_parameters=rope)))
    assert "partial_rotary_factor: expected an even share of 16 (head_dim)" in said


WINDOW = 24
WINDOWED: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "mixtral": ({}, (0, 1, 2)),
    "qwen2-moe": ({"use_sliding_window": True, "layer_types": None}, (0, 2)),
    "qwen3-moe": ({"use_sliding_window": True}, (0, 1, 2)),
    "gpt-oss": ({"layer_types": None}, (0, 2)),
}


@pytest.mark.parametrize("name", WINDOWED)
def test_a_sliding_window_is_read_with_the_layers_that_have_it(name: str, tmp_path: Path) -> None:
    """As the stock configuration reads the same fields; the context is what it was."""
    fields, layers = WINDOWED[name]
    plain = read_architecture(changed(name, tmp_path, **fields, sliding_window=None)).spec
    assert (plain.sliding_window, plain.window_layers) == (0, ())
    path = changed(name, tmp_path, **fields, sliding_window=WINDOW)
    spec = read_architecture(path).spec
    assert (spec.sliding_window, spec.window_layers) == (WINDOW, layers)
    assert spec.max_context == plain.max_context


@pytest.mark.parametrize(
    ("name", "kinds", "message"),
    [
        ("mixtral", ["full_attention"] * 3, r"window on layers \[\], and the other fields on"),
        ("olmoe", ["sliding_attention"] * 3, r"window on layers \[0, 1, 2\]"),
        ("gpt-oss", ["full_attention"], "expected 3"),
        ("gpt-oss", ["chunked_attention"] * 3, "expected a list of full_attention"),
    ],
)
def test_layer_types_that_contradict_the_family(
    name: str, kinds: list[str], message: str, tmp_path: Path
) -> None:
    window = None if name == "olmoe" else WINDOW
    path = changed(name, tmp_path, layer_types=kinds, sliding_window=window)
    assert re.search(message, str(refusal(path)))


def test_a_window_in_a_family_without_is_refused(tmp_path: Path) -> None:
    assert "sliding_window" in str(refusal(changed("olmoe", tmp_path, sliding_window=WINDOW)))


@pytest.mark.parametrize("fields", [{}, {"use_sliding_window": False}, {"sliding_window": 0}])
def test_a_window_that_is_off_or_wide_hides_nothing(fields: dict[str, Any], tmp_path: Path) -> None:
    path = changed("qwen3-moe", tmp_path, **{"sliding_window": 24, **fields})
    assert not read_architecture(path).spec.window_layers
    path = changed("mixtral", tmp_path, sliding_window=4096)
    assert not read_architecture(path).spec.window_layers


def test_published_configs_are_understood(tmp_path: Path) -> None:
    if not CONFIGS.is_dir():
        pytest.skip("the real config.json files are not here (looked for ../shared/data/configs)")
    read = []
    for path in sorted(CONFIGS.glob("*.json")):
        fields = json.loads(path.read_text())
        if fields.get("model_type") in RUNNABLE:
            fields.pop("quantization_config", None)  # how weights are stored is another matter
            (tmp_path / "config.json").write_text(json.dumps(fields))
            read.append(read_architecture(tmp_path).spec.family)
    elsewhere = {"dots1", "glm4_moe_lite", "ernie4_5_moe", "qwen3_5_moe_text"}
    assert set(read) >= RUNNABLE.keys() - elsewhere, "of the others a published config is here"


# Rules a config states, read one by one: what holds where a field is missing, switched off or
# does not apply to the family.


def read(name: str, folder: Path, without: tuple[str, ...] = (), **changes: Any) -> Architecture:
    """One of the stock models' configs, with some fields changed or left out."""
    config = json.loads((stock.saved(name).folder / "config.json").read_text()) | changes
    for field in without:
        del config[field]
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return read_architecture(path)


def test_a_greedy_router_knows_no_groups(tmp_path: Path) -> None:
    """Whatever the file says of them, as in the stock implementation."""
    router = read("deepseek-v2", tmp_path, topk_method="greedy", n_group=4, topk_group=2).router
    assert (router.groups, router.top_groups) == (1, 1)
    router = read("deepseek-v2", tmp_path, n_group=4, topk_group=2).router
    assert (router.groups, router.top_groups) == (4, 2)
    router = read("deepseek-v2", tmp_path, without=("topk_method",), n_group=4).router
    assert (router.groups, router.top_groups) == (1, 1), "greedy where nothing is stated"


@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe", "qwen3-moe", "olmoe"])
def test_weights_are_scaled_only_in_families_that_do(name: str, tmp_path: Path) -> None:
    assert read(name, tmp_path).router.factor == 1.0


@pytest.mark.parametrize(
    ("name", "fields", "applies"),
    [
        ("mixtral", {}, True),
        ("mixtral", {"use_sliding_window": False}, False),
        ("qwen3-moe", {"use_sliding_window": True}, True),
    ],
)
def test_a_window_applies_where_its_switch_says_so(
    name: str, fields: dict[str, Any], applies: bool, tmp_path: Path
) -> None:
    found = read(name, tmp_path, sliding_window=24, **fields).spec.sliding_window
    assert found == (24 if applies else 0)


@pytest.mark.parametrize(
    ("name", "fields", "input_bias", "output_bias", "norm"),
    [
        ("mixtral", {}, False, False, "none"),
        ("olmoe", {}, False, False, "projection"),
        ("olmoe", {"attention_bias": True}, True, True, "projection"),
        ("qwen2-moe", {}, True, False, "none"),
        ("qwen2-moe", {"qkv_bias": False}, False, False, "none"),
        ("qwen3-moe", {"attention_bias": True}, True, True, "head"),
        ("glm-4.5", {}, True, False, "head"),
        ("glm-4.5", {"use_qk_norm": False, "attention_bias": False}, False, False, "none"),
    ],
)
def test_biases_and_norms_of_attention(
    name: str,
    fields: dict[str, Any],
    input_bias: bool,
    output_bias: bool,
    norm: str,
    tmp_path: Path,
) -> None:
    rule = read(name, tmp_path, **fields).network.layers[0].attention
    assert not isinstance(rule, LinearAttentionSpec)
    found = "none"
    if isinstance(rule, GroupedAttentionSpec) and rule.qk_norm is not None:
        found = rule.qk_norm.scope
    assert (rule.input_bias, rule.output_bias, found) == (input_bias, output_bias, norm)


def test_qwen2_has_biases_where_the_field_is_older_than_the_file(tmp_path: Path) -> None:
    (first, *_) = read("qwen2-moe", tmp_path, without=("qkv_bias",)).network.layers
    assert isinstance(first.attention, GroupedAttentionSpec)
    assert first.attention.input_bias is True


@pytest.mark.parametrize(
    ("fields", "unused"),
    [
        ({}, 0),
        ({"num_nextn_predict_layers": 2}, 2),
        ({"num_mtp_layers": 3}, 3),
        ({"num_nextn_predict_layers": 2, "num_mtp_layers": 1}, 2),
    ],
)
def test_layers_for_speculative_decoding_are_counted_under_either_name(
    fields: dict[str, Any], unused: int, tmp_path: Path
) -> None:
    known = {"num_nextn_predict_layers": 0, "num_mtp_layers": 0}
    assert read("glm-4.5", tmp_path, **(known | fields)).unused_layers == unused


def test_fewer_experts_per_token_in_shapes_and_router_alike() -> None:
    model = open_model(stock.saved("mixtral").folder)
    for count in (1, 2):
        narrowed = with_experts_per_token(model, count).architecture
        assert (narrowed.spec.top_k, narrowed.router.top_k) == (count, count)
    with pytest.raises(ImpossibleSetting, match="3 experts per token were asked for"):
        with_experts_per_token(model, 3)
