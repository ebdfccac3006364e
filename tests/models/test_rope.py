"""Do positions turn as the stock library says, at every setting it has?"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DeepseekV2Config, Qwen3MoeConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v2.modeling_deepseek_v2 import yarn_apply_mscale

import stock
from moesaic.core.errors import BadConfig
from moesaic.model_info.network import LatentAttentionSpec
from moesaic.models.attentions.rope import frequencies
from moesaic.models.configs.network_reader import read_architecture

# Values away from the defaults and from each other; None: the field is not there.
SETTINGS: dict[str, list[Any]] = {
    "rope_theta": [5000.0, 6.0],  # with the second, all dimensions turn often
    "factor": [1.0, 3.0],
    "original_max_position_embeddings": [40, 700],
    "beta_fast": [None, 0, 6, 1000],
    "beta_slow": [None, 0, 0.3, 7],  # with 7 and the shorter context, the ramp is a step
    "truncate": [None, False],
}
MAGNITUDES: list[dict[str, float]] = [
    {"attention_factor": 1.4},
    {"attention_factor": 1.4, "mscale": 0.7, "mscale_all_dim": 0.9},
    {"mscale": 0.7, "mscale_all_dim": 0.9},
    {"mscale": 0.7},
    {"mscale_all_dim": 0.9},
    {"mscale": 0.7, "mscale_all_dim": 0.0},
    {"mscale": 0.0, "mscale_all_dim": 0.9},
]


def settings() -> list[dict[str, Any]]:
    chosen = [
        {name: value for name, value in zip(SETTINGS, values, strict=True) if value is not None}
        for values in itertools.product(*SETTINGS.values())
    ]
    base = {"factor": 3.0, "original_max_position_embeddings": 700}
    return [*chosen, *(base | extra for extra in MAGNITUDES)]


def ours_and_theirs(
    folder: Path, kind: str, extra: dict[str, Any], family: str = "qwen3-moe"
) -> tuple[tuple[torch.Tensor, float], tuple[torch.Tensor, float]]:
    """Frequencies and magnitude."""
    rope = {"rope_type": kind, "rope_theta": 5000.0, **extra}
    fields = json.loads((stock.saved(family).folder / "config.json").read_text())
    fields |= {"rope_parameters": rope, "head_dim": 24, "max_position_embeddings": 2048}
    (folder / "config.json").write_text(json.dumps(fields))
    config = {"qwen3-moe": Qwen3MoeConfig, "deepseek-v2": DeepseekV2Config}[family]
    (read,) = read_architecture(folder).network.ropes
    theirs = ROPE_INIT_FUNCTIONS[kind](config(**json.loads(json.dumps(fields))), "cpu")
    return (frequencies(read), read.magnitude), theirs


def test_yarn_has_the_stock_frequencies_and_magnitude(tmp_path: Path) -> None:
    for extra in settings():
        (mine, magnitude), (theirs, factor) = ours_and_theirs(tmp_path, "yarn", extra)
        assert torch.equal(mine, theirs), extra
        assert magnitude == pytest.approx(factor, rel=1e-12), extra


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("linear", {"factor": 3.0}),
        ("linear", {"factor": 1.0, "rope_theta": 1.5}),
        ("yarn", {"factor": 1.5, "rope_theta": 1.5}),
        ("yarn", {"factor": 3.0}),  # the original context is the whole one
        ("yarn", {"factor": None, "original_max_position_embeddings": 700}),  # by the lengths
    ],
)
@pytest.mark.parametrize("family", ["qwen3-moe", "deepseek-v2"])
def test_what_is_not_stated_follows(
    kind: str, extra: dict[str, Any], family: str, tmp_path: Path
) -> None:
    (mine, magnitude), (theirs, factor) = ours_and_theirs(tmp_path, kind, extra, family)
    assert torch.equal(mine, theirs)
    assert magnitude == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("kind", ["default", "linear", "yarn"])
def test_latent_attention_sharpens_its_scores_as_the_stock_model_does(
    kind: str, tmp_path: Path
) -> None:
    stretched = {} if kind == "default" else {"factor": 3.0}
    for weight in (0.0, 0.9):
        rope = {"rope_type": kind, "rope_theta": 5000.0, "mscale_all_dim": weight, **stretched}
        fields = json.loads((stock.saved("deepseek-v2").folder / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(fields | {"rope_parameters": rope}))
        first = read_architecture(tmp_path).network.layers[0].attention
        assert isinstance(first, LatentAttentionSpec)
        scale = first.scale
        assert scale == pytest.approx(yarn_apply_mscale(rope, 20**-0.5), rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "extra", "said"),
    [
        ("default", {"rope_theta": 0.5}, "rope_theta: expected a number of 1 or more, not 0.5"),
        ("linear", {"factor": 0.5}, "factor: expected a number of 1 or more, not 0.5"),
        ("yarn", {"factor": 0.5}, "factor: expected a number of 1 or more, not 0.5"),
    ],
)
def test_positions_are_stretched_not_pressed(
    kind: str, extra: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BadConfig, match=said):
        ours_and_theirs(tmp_path, kind, extra)
