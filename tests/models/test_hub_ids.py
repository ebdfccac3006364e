"""Is a name taken for an id of the hub where it is one, and what of a repository is needed?"""

from __future__ import annotations

from pathlib import Path

import pytest

from moesaic.core.errors import CannotFetch
from moesaic.model_info.hub.hub_id import HubId, parse_hub_id, with_revision
from moesaic.model_info.hub.wanted_files import all_parts, wanted_files

QWEN = "Qwen/Qwen3-30B-A3B"
CONFIGS = ["config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (QWEN, HubId(QWEN)),
        (f"hf://{QWEN}", HubId(QWEN)),
        (f"{QWEN}@v1.2", HubId(QWEN, "v1.2")),
        (f"{QWEN}@refs/pr/3", HubId(QWEN, "refs/pr/3")),
        ("a/b:Q4/b-00001-of-00002.gguf", HubId("a/b", None, "Q4/b-00001-of-00002.gguf")),
        ("a/b@main:b.gguf", HubId("a/b", "main", "b.gguf")),
        ("qwen3-30b-a3b", None),
        ("moesaic-20m", None),
        ("./a/b", None),
        ("/a/b", None),
        ("a/b/c", None),
        ("a/b.gguf", None),
        ("a/config.json", None),
        ("a/b@", None),
        ("a/b:x.bin", None),
        ("../a", None),
        ("a b/c", None),
        ("", None),
    ],
)
def test_names(name: str, expected: HubId | None) -> None:
    assert parse_hub_id(name) == expected


def test_a_path_that_is_there_or_whose_folder_is_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen").mkdir()
    assert parse_hub_id(QWEN) is None
    assert parse_hub_id(f"hf://{QWEN}") == HubId(QWEN)
    assert parse_hub_id(tmp_path) is None


def test_a_revision_given_apart() -> None:
    assert parse_hub_id(with_revision(f"{QWEN}@old", "new")) == HubId(QWEN, "new")
    assert with_revision("qwen3-30b-a3b", "new") is None
    assert with_revision(QWEN, "no such#thing") is None


def needed(*names: str, file: str | None = None) -> list[str]:
    return wanted_files(HubId("a/b", None, file), dict.fromkeys(names, 1))


def test_weights_are_wanted_once() -> None:
    index = "model.safetensors.index.json"
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    others = [
        "README.md", ".gitattributes", "pytorch_model-00001-of-00002.bin", "b.gguf",
        "consolidated-00001-of-00002.safetensors", "consolidated.safetensors",
        "original/model.safetensors", "metal/model.bin", "model.safetensors", "tf_model.h5",
        "onnx/model.onnx", "figures/a.png",
    ]  # fmt: skip
    assert needed(*CONFIGS, *others, index, *shards) == [*CONFIGS, index, *shards]
    assert needed(*CONFIGS, *others) == [*CONFIGS, "model.safetensors"]


def test_a_gguf_file_and_all_its_parts() -> None:
    parts = [f"Q4/b-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    other = "Q8/b-00001-of-00003.gguf"
    assert needed(*CONFIGS, *parts, other, file=parts[0]) == parts
    assert needed(*CONFIGS, "b.gguf", file="b.gguf") == ["b.gguf"]
    with pytest.raises(CannotFetch, match=r"no file Q8/b-00002-of-00003\.gguf, a part of"):
        needed(*parts, other, file=other)
    huge = "b-00001-of-999999999.gguf"
    assert all_parts(huge) == [huge]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("config.json", "pytorch_model.bin"), "pickled weights are not read"),
        (("b.Q4.gguf", "b.Q8.gguf"), "name one, as in a/b:b.Q4.gguf"),
        (("README.md",), "is it a language model"),
        (("original/model.safetensors",), "is it a language model"),
    ],
)
def test_what_to_do_where_there_are_no_weights(names: tuple[str, ...], words: str) -> None:
    with pytest.raises(CannotFetch, match=words):
        needed(*names)
