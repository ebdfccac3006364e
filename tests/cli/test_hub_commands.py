"""Can a model be named by its id wherever a model is named, and is what was fetched listed?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import refused, run, run_json
from huggingface_hub import constants

from chat_models import talking
from hub_server import Hub, Repo, serving
from moesaic import LLM, SamplingParams
from moesaic.core.errors import BadConfig, CannotFetch
from moesaic.hardware import host

ID = "owner/small"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path / "cache", monkeypatch) as hub:
        files = {p.name: p.read_bytes() for p in talking().folder.iterdir()}
        hub.repos[ID] = Repo(files | {"pytorch_model.bin": b"x" * 5000})
        yield hub


def changed(hub: Hub, name: str, **fields: object) -> str:
    """A model with another config."""
    files = hub.repos[ID].files
    config = json.dumps(json.loads(files["config.json"]) | fields).encode()
    hub.repos[name] = Repo(files | {"config.json": config})
    return name


def test_run_and_the_api(hub: Hub) -> None:
    asked = ("-p", "Weights", "--temperature", 0, "-n", 4, "--threads", 1)
    streams = run("run", ID, *asked)
    assert streams.out == run("run", talking().folder, *asked).out
    first, second, *_ = streams.err.splitlines()
    assert first.startswith(f"{ID}: runs here in ")
    assert second.startswith(f"fetching {ID} (commit ")
    hub.requests.clear()
    params = SamplingParams(max_tokens=4, temperature=0.0)
    with LLM(ID, threads=1) as model:
        assert model.generate("Weights", params)[0].text == streams.out.removesuffix("\n")
    assert hub.fetched() == set()


def test_plan_fetches_the_config_alone(hub: Hub) -> None:
    planned = run_json("plan", ID)
    assert hub.fetched() == {"config.json"}
    assert planned["model"] == "small"
    weights = len(hub.repos[ID].files["model.safetensors"])
    assert planned["download"]["bytes"] > planned["download"]["missing_bytes"] >= weights
    assert planned["download"]["fits"] is True
    assert f"To fetch: {ID} (commit " in run("plan", ID).out
    assert run_json("plan", talking().folder)["download"] is None


def test_the_simulator_takes_it_too(hub: Hub) -> None:
    assert run_json("models", ID)["name"] == run_json("plan", ID)["model"]
    assert run_json("models", ID)["name"] == "small"
    assert hub.fetched() == {"config.json"}


def test_revision_is_an_option_or_part_of_the_id(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = hub.repos[ID]
    config = json.loads(repo.files["config.json"]) | {"max_position_embeddings": 32}
    repo.tags["v1"] = repo.files | {"config.json": json.dumps(config).encode()}
    lengths = [
        run_json("plan", *words)["rows"][0]["context"]
        for words in ((f"{ID}@v1",), (ID, "--revision", "v1"), ("-m", ID, "--revision", "v1"))
    ]
    assert lengths == [32, 32, 32]
    assert run_json("plan", ID)["rows"][0]["context"] > 32
    for words in (("moesaic-20m",), ()):
        said = refused(monkeypatch, capsys, "plan", *words, "--revision", "v1")
        assert "--revision v1 is of models fetched by their id" in said


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"model_type": "llama"}, BadConfig),
        ({"quantization_config": {"quant_method": "other"}}, BadConfig),
    ],
)
def test_what_cannot_be_run_is_refused_by_its_config(
    hub: Hub, fields: dict[str, object], error: type[Exception]
) -> None:
    name = changed(hub, "owner/other", **fields)
    with pytest.raises(error):
        LLM(name)
    assert hub.fetched() == {"config.json"}


def test_what_does_not_fit_in_memory_is_not_fetched(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moesaic.engine.fetching.memory", lambda: (10**5, 10**5))
    with pytest.raises(CannotFetch, match=r"not fetched: small needs .* of main memory"):
        LLM(ID)
    assert hub.fetched() == {"config.json"}


def test_local_models(hub: Hub) -> None:
    assert "holds no models" in run("models", "--local").out
    run("plan", ID)
    changed(hub, "owner/simulated", quantization_config={"quant_method": "other"})
    changed(hub, "owner/dense", model_type="llama")
    for name in ("simulated", "dense"):
        with pytest.raises(BadConfig):
            LLM(f"owner/{name}")
    found = {each["id"]: each for each in run_json("models", "--local")["models"]}
    assert found[ID]["runs"] == "once 1 more files are fetched"
    assert found[ID]["fits"].startswith("as published, in ")
    assert found["owner/simulated"]["runs"] == "no: it can only be simulated"
    assert found["owner/dense"]["runs"].startswith("no: it is no mixture of experts")
    LLM(ID, threads=1).close()
    listed = run_json("models", "--local")
    assert listed["cache"] == str(hub.cache)
    assert {each["id"]: each["runs"] for each in listed["models"]}[ID] == "yes"
    assert ID in run("models", "--local").out


def test_local_models_that_do_not_fit(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    run("plan", ID)
    monkeypatch.setattr(host, "memory", lambda: (10**5, 10**5))
    (found,) = run_json("models", "--local")["models"]
    assert found["fits"] == "no, not even with int4 experts in 0.0 GB"


def test_mistakes_are_one_line(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there is no model a/b at" in refused(monkeypatch, capsys, "run", "a/b", "-p", "x")
    said = refused(monkeypatch, capsys, "plan", "Qwen/Qwen3-30B-A3B")
    assert "its shape is known without: qwen3-30b-a3b" in said
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    said = refused(monkeypatch, capsys, "run", ID, "-p", "x")
    assert "HF_HUB_OFFLINE forbids fetching it" in said
    said = refused(monkeypatch, capsys, "run", "Qwen3.6-35B-A3B", "-p", "x")
    assert "an id on Hugging Face needs its owner, as in Qwen/Qwen3.6-35B-A3B" in said
    said = refused(monkeypatch, capsys, "run", "models/x.gguf", "-p", "x")
    assert said == "error: there is no file 'models/x.gguf': there is no folder 'models'\n"
    with pytest.raises(BadConfig, match="needs its owner, as in Qwen/Qwen3-1T"):
        LLM("Qwen3-1T")
    assert "--local lists all" in refused(monkeypatch, capsys, "models", "--local", ID)
