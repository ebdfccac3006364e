"""Are mistakes in asking for a batch refused before a model is loaded?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import refused

pytest.importorskip("starlette")

ASKED = {
    "custom_id": "one",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"model": "gpt", "messages": [{"role": "user", "content": "Hello."}]},
}


def test_mistakes_are_refused_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_text(json.dumps(ASKED) + "\n")

    def refusal(*words: object) -> str:
        return refused(monkeypatch, capsys, "batch", *words)

    assert "add --served-model-name gpt" in refusal(source, "-o", out)
    assert "there is no file" in refusal(tmp_path / "none", "-o", out)
    assert "is a directory" in refusal(tmp_path, "-o", out)
    assert "is the input" in refusal(source, "-o", source)
    assert "there is no directory" in refusal(source, "-o", tmp_path / "a" / "b")
    assert "is a device" in refusal(source, "-o", "/dev/full")
    assert "Missing option" in refusal(source)
    assert not out.exists()
    out.write_text("mine\n")
    words = (source, "-o", out, "--served-model-name", "gpt")
    assert "has something else than answers of a batch" in refusal(*words)
    assert out.read_text() == "mine\n"
