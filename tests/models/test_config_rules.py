"""Rules a config states, read one by one: what holds where a field is missing, switched off or
does not apply to the family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stock
from moesaic.core.errors import ImpossibleSetting
from moesaic.model_info.network import GroupedAttentionSpec, LinearAttentionSpec
from moesaic.models.configs.architecture import Architecture
from moesaic.models.configs.network_reader import read_architecture
from moesaic.models.open_model import open_model, with_experts_per_token


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
