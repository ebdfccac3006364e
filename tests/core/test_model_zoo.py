"""Are the packaged models the published ones?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from moesaic.core.errors import BadConfig, ImpossibleSetting, UnknownName
from moesaic.model_info.model_config import read_model_config
from moesaic.model_info.model_families import FAMILIES
from moesaic.model_info.model_zoo import known_models, load_model
from moesaic.models.bundled_model import NAME as OWN
from moesaic.models.bundled_model import default_model

CONFIGS = Path(__file__).parents[3] / "shared" / "data" / "configs"

# Billions of parameters as the publishers count them, total and active per token.
PUBLISHED: dict[str, tuple[float, float | None]] = {
    OWN: (0.02, None),
    "mixtral-8x7b": (46.7, 12.9),
    "mixtral-8x22b": (141.0, 39.0),
    "olmoe-1b-7b": (6.9, 1.3),
    "granite-3.0-1b-a400m": (1.3, 0.4),
    "qwen1.5-moe-a2.7b": (14.3, 2.7),
    "qwen2-57b-a14b": (57.4, 14.0),
    "qwen3-30b-a3b": (30.5, 3.3),
    "qwen3-235b-a22b": (235.0, 22.0),
    "qwen3-coder-480b-a35b": (480.0, 35.0),
    "qwen3-next-80b-a3b": (80.0, None),  # 3 without the embedding tables
    "deepseek-v2-lite": (15.7, None),  # 2.4 without the embedding tables
    "deepseek-v2": (236.0, 21.0),
    "deepseek-v3": (671.0, 37.0),
    "deepseek-r1": (671.0, 37.0),
    "kimi-k2": (1000.0, 32.0),
    "glm-4.5-air": (106.0, None),  # 12 without the embedding tables
    "gpt-oss-20b": (20.9, None),  # 3.6 without one of the embedding tables
    "gpt-oss-120b": (116.8, None),
}

# Packaged name -> the model repository's own name, where they differ by more than case.
RENAMED = {
    "mixtral-8x7b": "Mixtral-8x7B-v0.1",
    "mixtral-8x22b": "Mixtral-8x22B-v0.1",
    "olmoe-1b-7b": "OLMoE-1B-7B-0924",
    "granite-3.0-1b-a400m": "granite-3.0-1b-a400m-base",
    "qwen3-coder-480b-a35b": "Qwen3-Coder-480B-A35B-Instruct",
    "qwen3-next-80b-a3b": "Qwen3-Next-80B-A3B-Instruct",
    "kimi-k2": "Kimi-K2-Instruct",
}


def test_every_packaged_model_has_a_published_size() -> None:
    assert set(PUBLISHED) == set(known_models())


@pytest.mark.parametrize("name", known_models())
def test_parameters_are_as_published(name: str) -> None:
    spec = load_model(name)
    total, active = PUBLISHED[name]
    assert spec.total_params / 1e9 == pytest.approx(total, rel=0.03)
    if active is not None:
        per_token = spec.resident_params + spec.num_moe_layers * spec.top_k * spec.expert_params
        assert per_token / 1e9 == pytest.approx(active, rel=0.08)


def real_config(name: str) -> Path:
    if name == OWN:
        return default_model()
    if not CONFIGS.is_dir():
        pytest.skip("the real config.json files are not here (looked for ../shared/data/configs)")
    wanted = RENAMED.get(name, name).lower()
    (path,) = [p for p in CONFIGS.glob("*.json") if p.stem.lower() == wanted]
    return path


@pytest.mark.parametrize("name", known_models())
def test_shapes_are_those_of_the_real_config(name: str) -> None:
    packaged, real = load_model(name), read_model_config(real_config(name))
    assert packaged == replace(real, name=packaged.name, source=packaged.source)


@pytest.mark.parametrize("name", known_models())
def test_a_packaged_model_is_complete(name: str) -> None:
    spec = load_model(name)
    assert spec.name == name
    assert spec.source
    assert spec.family in FAMILIES
    assert 0 < spec.top_k <= spec.num_experts
    assert (spec.dense_intermediate == 0) == (spec.num_moe_layers == spec.num_layers)


def test_names_are_found_in_any_case() -> None:
    assert load_model("Qwen3-30B-A3B") is load_model("qwen3-30b-a3b")


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="mixtral-8x7b") as caught:
        load_model("mixtral-8x7")
    assert caught.value.nearest == "mixtral-8x7b"


@pytest.mark.parametrize(
    ("name", "meant", "id_"),
    [
        ("Qwen3.6-35B-A3B", None, "Qwen/Qwen3.6-35B-A3B"),
        ("mixtral-8x8b", None, "mistralai/mixtral-8x8b"),
        ("gpt-oss-12b", None, "openai/gpt-oss-12b"),
        ("mixtal-8x7b", "mixtral-8x7b", "OWNER/mixtal-8x7b"),
        ("gpt-os-120b", "gpt-oss-120b", "OWNER/gpt-os-120b"),
    ],
)
def test_another_model_is_not_suggested(name: str, meant: str | None, id_: str) -> None:
    """A name with other numbers is another model, and may be an id without its owner."""
    with pytest.raises(UnknownName) as caught:
        load_model(name)
    assert caught.value.nearest == meant
    assert ("Did you mean" in str(caught.value)) == (meant is not None)
    assert f"An id on Hugging Face needs its owner, as in {id_}; or give a folder." in (
        str(caught.value)
    )


def test_a_missing_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ImpossibleSetting, match=r"no file 'x\.gguf'; this folder has no \.gguf"):
        load_model("x.gguf")
    (tmp_path / "y.gguf").touch()
    with pytest.raises(ImpossibleSetting, match=r"no file 'x\.gguf'; this folder has y\.gguf"):
        load_model("x.gguf")
    with pytest.raises(ImpossibleSetting, match=r"x\.gguf'; the folder .* has y\.gguf"):
        load_model(str(tmp_path / "x.gguf"))
    with pytest.raises(ImpossibleSetting, match="there is no folder 'models/of'"):
        load_model("models/of/x.gguf")


def test_a_path_is_read(tmp_path: Path) -> None:
    fields = {
        "model_type": "olmoe",
        "hidden_size": 64,
        "intermediate_size": 32,
        "max_position_embeddings": 128,
        "norm_topk_prob": False,
        "num_attention_heads": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "vocab_size": 100,
    }
    (tmp_path / "config.json").write_text(json.dumps(fields))
    spec = load_model(str(tmp_path))
    assert spec == load_model(str(tmp_path / "config.json"))
    assert (spec.family, spec.tied_embeddings) == ("olmoe", True)


@pytest.mark.parametrize("path", ["absent.json", "no/such/model"])
def test_a_missing_path_names_the_known_models(path: str) -> None:
    with pytest.raises(BadConfig, match=r"none here.*olmoe-1b-7b"):
        load_model(path)
