"""Is a model fetched by its id once, wholly, and only as far as it is needed?"""

from __future__ import annotations

import json
import logging
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

import stock
from hub_server import TOKEN, Hub, Repo, serving
from moesaic.core.errors import CannotFetch
from moesaic.model_info.hub import fetch
from moesaic.model_info.hub.cached import cached_models
from moesaic.model_info.hub.fetch import fetch_config, fetch_model
from moesaic.model_info.hub.hub_id import HubId, parse_hub_id, with_revision
from moesaic.model_info.hub.listing import read_listing
from moesaic.model_info.hub.wanted_files import all_parts, wanted_files
from moesaic.models.open_model import open_model

ID = HubId("owner/small")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(tmp_path / "cache", monkeypatch) as hub:
        files = {p.name: p.read_bytes() for p in stock.saved("olmoe").folder.iterdir()}
        others = dict.fromkeys(["pytorch_model.bin", "original/model.safetensors"], b"x" * 5000)
        hub.repos[ID.repo] = Repo(files | others | {"README.md": b"# Small"})
        yield hub


def refusal(hub_id: HubId = ID) -> str:
    with pytest.raises(CannotFetch) as caught:
        fetch_model(hub_id)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_only_what_is_needed_is_fetched_and_only_once(hub: Hub) -> None:
    said: list[str] = []
    folder = fetch_model(ID, report=said.append)
    assert open_model(folder).architecture.spec.name == "small"
    needed = {"config.json", "generation_config.json", "model.safetensors"}
    assert hub.fetched() == needed
    (line,) = said
    assert line.startswith("fetching owner/small (commit ")
    assert "3 files" in line
    assert "GB are free in" in line
    hub.requests.clear()
    assert fetch_model(ID, report=said.append) == folder
    assert hub.fetched() == set()
    assert len(said) == 1


def test_the_config_alone_is_fetched_for_a_plan(hub: Hub) -> None:
    fetch_config(ID)
    assert hub.fetched() == {"config.json"}
    listing = read_listing(ID)
    assert listing.cached == {"config.json"}
    files = hub.repos[ID.repo].files
    assert listing.missing_bytes == sum(
        len(files[name]) for name in ("generation_config.json", "model.safetensors")
    )


def test_a_model_that_is_refused_costs_its_config(hub: Hub) -> None:
    def refuse(folder: Path) -> None:
        assert (folder / "config.json").is_file()
        raise CannotFetch("no")

    with pytest.raises(CannotFetch, match="no"):
        fetch_model(ID, refuse)
    assert hub.fetched() == {"config.json"}


def test_an_interrupted_file_is_resumed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.cut_after = 5000
    folder = fetch_model(ID)
    path = folder / "model.safetensors"
    assert path.read_bytes() == hub.repos[ID.repo].files[path.name]
    ranges = [r for method, name, r in hub.requests if method == "GET" and "cdn" in name]
    assert ranges == [None, "bytes=5000-"]


def test_shards_are_those_of_the_index(hub: Hub, tmp_path: Path) -> None:
    saved = stock.save(stock.saved("olmoe").model, tmp_path / "s", max_shard_size="30KB")
    hub.repos["owner/shards"] = Repo({p.name: p.read_bytes() for p in saved.iterdir()})
    folder = fetch_model(HubId("owner/shards"))
    expected = {p.name for p in saved.glob("*.safetensors")}
    assert len(expected) > 1
    assert {p.name for p in folder.glob("*.safetensors")} == expected
    open_model(folder)


def test_the_index_may_name_files_that_are_not_numbered(hub: Hub, tmp_path: Path) -> None:
    """As where layers for speculative decoding were added to quantized weights."""
    saved = stock.save(stock.saved("olmoe").model, tmp_path / "s", max_shard_size="30KB")
    files = {p.name: p.read_bytes() for p in saved.iterdir()}
    last = max(name for name in files if name.endswith(".safetensors"))
    files["extra.safetensors"] = files.pop(last)
    index = "model.safetensors.index.json"
    files[index] = files[index].replace(last.encode(), b"extra.safetensors")
    hub.repos["owner/extra"] = Repo(files | {"unnamed.safetensors": b"x" * 5000})
    open_model(fetch_model(HubId("owner/extra")))
    assert "unnamed.safetensors" not in hub.fetched()


def test_a_commit_that_another_program_has_fetched_in_part(hub: Hub) -> None:
    """transformers fetches a model's weights without its tokenizer."""
    hub.repos[ID.repo].files["tokenizer.json"] = b"{}"
    folder = fetch_model(ID)
    (folder / "tokenizer.json").unlink()
    assert fetch_model(ID._replace(revision=folder.name)) == folder
    assert (folder / "tokenizer.json").is_file()


def test_revisions(hub: Hub) -> None:
    repo = hub.repos[ID.repo]
    repo.files["tokenizer.json"] = b"{}"
    tagged = json.loads(repo.files["config.json"]) | {"max_position_embeddings": 64}
    repo.tags["v1"] = repo.files | {"config.json": json.dumps(tagged).encode()}
    folder = fetch_model(ID._replace(revision="v1"))
    assert json.loads((folder / "config.json").read_text())["max_position_embeddings"] == 64
    commit = folder.name
    hub.requests.clear()
    assert fetch_model(ID._replace(revision=commit)) == folder
    assert hub.requests == []  # a commit does not change
    assert fetch_model(ID) != folder
    (other, main) = sorted(cached_models(), key=lambda each: each.hub_id.revision is None)
    assert (other.hub_id.revision, main.hub_id.revision) == ("v1", None)


def test_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert "HF_HUB_OFFLINE forbids fetching it" in refusal()
    fetch_config(ID)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "not completely, in the cache" in refusal()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    folder = fetch_model(ID)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert fetch_model(ID) == folder
    assert hub.requests == []


def test_a_hub_that_cannot_be_reached(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    said = refusal()
    assert said.startswith("cannot reach http://127.0.0.1:9 to fetch owner/small (")
    assert "or give a model directory" in said
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    folder = fetch_model(ID)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    words: list[str] = []
    assert fetch_model(ID, report=words.append) == folder
    assert "Using the copy in the cache" in words[0]


@pytest.mark.parametrize("fault", ["refused", "no name"])
def test_one_attempt_and_no_warnings_without_a_network(
    hub: Hub, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`huggingface_hub` would try six times, with two lines on standard error each time."""

    def unknown(host: str, *_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    def no_retry(seconds: float) -> None:
        raise AssertionError("a second attempt")

    folder = fetch_config(ID)
    shown: list[logging.LogRecord] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", shown.append)
    logger = logging.getLogger("huggingface_hub")
    logger.addHandler(handler)
    address = "http://127.0.0.1:9"
    if fault == "no name":
        address = "http://hub.invalid"
        monkeypatch.setattr(socket, "getaddrinfo", unknown)
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("time.sleep", no_retry)
    try:
        for fetched in (fetch_config, fetch_model):
            with pytest.raises(CannotFetch, match=f"cannot reach {address} to fetch owner/other"):
                fetched(HubId("owner/other"))
        assert fetch_config(ID) == folder, "it is in the cache"
    finally:
        logger.removeHandler(handler)
    assert shown == []


@pytest.mark.parametrize("name", ["owner/a--b", "owner/a.", "owner/a.git"])
def test_names_that_no_model_has(hub: Hub, name: str) -> None:
    assert refusal(HubId(name)).startswith(f"{name!r} is no id of a model: ")


def test_unknown_models_and_revisions(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no model owner/none at http" in refusal(HubId("owner/none"))
    assert "log in with `hf auth login`" in refusal(HubId("owner/none"))
    assert "owner/small has no revision 'v9'" in refusal(ID._replace(revision="v9"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert "your token does not show it" in refusal(HubId("owner/none"))
    hub.repos["owner/text"] = Repo({"model.safetensors": b"x"})
    assert "owner/text has no config.json" in refusal(HubId("owner/text"))


def test_gated_models(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos[ID.repo].gated = True
    said = refusal()
    assert f"is gated: accept its terms at {hub.address}/owner/small, then log in" in said
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    assert "with the account of your token" in refusal()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    open_model(fetch_model(ID))


@pytest.mark.parametrize(("status", "words"), [(403, "refuses"), (451, "answered with status 451")])
def test_other_answers(hub: Hub, status: int, words: str) -> None:
    hub.status = status
    assert words in refusal()


def test_a_full_disk_is_foreseen(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    full = SimpleNamespace(total=2 << 30, used=1 << 30, free=1 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    said = refusal()
    assert "on the disk of the cache" in said
    assert "1.07 GB free" in said
    assert hub.fetched() == {"config.json"}


def test_a_gguf_file(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "reads_gguf", lambda: True)
    hub.repos["owner/g"] = Repo({"q4/g.gguf": b"GGUF" * 2000, "q8/g.gguf": b"GGUF" * 4000})
    path = fetch_model(HubId("owner/g", None, "q4/g.gguf"))
    assert path.read_bytes() == b"GGUF" * 2000
    assert hub.fetched() == {"q4/g.gguf"}
    assert fetch_model(HubId("owner/g", None, "q4/g.gguf")) == path


def test_a_gguf_file_is_not_fetched_where_none_is_read(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "reads_gguf", lambda: False)
    assert "GGUF is not read here" in refusal(HubId("owner/g", None, "g.gguf"))
    assert hub.requests == []


def test_half_of_a_model_in_the_cache_is_known_to_be_half(hub: Hub) -> None:
    assert cached_models() == []
    fetch_config(ID)
    (half,) = cached_models()
    assert half.missing == ("model.safetensors",)
    fetch_model(ID)
    (whole,) = cached_models()
    assert whole.missing == ()
    assert whole.bytes > 10_000


# Is a name taken for an id of the hub where it is one, and what of a repository is needed?

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
