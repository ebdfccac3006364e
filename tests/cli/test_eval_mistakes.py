"""Does `moesaic eval` refuse what cannot be meant, in one line, before weights are read?"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command import refused

import small_tokenizers
import stock
from chat_models import talking
from moesaic.engine import loading

GSM8K = ("--task", "gsm8k", "--file")
LINES = [{"question": f"{n}?", "answer": f"#### {n}"} for n in range(3)]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: object) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr(loading, "load_decoder", forbidden)
    monkeypatch.chdir(tmp_path)
    Path("latin.txt").write_bytes(b"caf\xe9")
    Path("empty.txt").write_text("")
    Path("text.txt").write_text("some text")
    Path("three.jsonl").write_text("\n".join(map(json.dumps, LINES)))
    Path("broken.jsonl").write_text('{"question": "?"}\n{"answer": "#### 3"}\n')
    Path("torn.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00nonsense")
    Path("folder").mkdir()


MISTAKES = [
    (("--task", "probelms"), "unknown task 'probelms'. Did you mean 'problems'?"),
    (("--task", ","), "give at least one name"),
    (("--task", "gsm8k"), "gsm8k needs its questions: give --file gsm8k=PATH"),
    (("--task", "humaneval"), "humaneval needs its questions"),
    (("--file", "text.txt"), "belongs to no task"),
    ((*GSM8K, "absent.jsonl"), "absent.jsonl: No such file"),
    ((*GSM8K, "folder"), "is a directory"),
    ((*GSM8K, "torn.jsonl.gz"), "cannot be decompressed"),
    ((*GSM8K, "latin.txt", "--shots", 0), "is not UTF-8 text"),
    ((*GSM8K, "empty.txt", "--shots", 0), "'empty.txt' has nothing to ask"),
    ((*GSM8K, "three.jsonl"), "8 examples were asked for and 'three.jsonl' has 3"),
    ((*GSM8K, "broken.jsonl", "--shots", 0), "broken.jsonl, line 1: the field 'answer' is missing"),
    ((*GSM8K, "three.jsonl", "--file", "text.txt"), "gsm8k has two files"),
    ((*GSM8K, "humaneval=three.jsonl"), "which task does it belong to?"),
    (("--task", "gsm8k,humaneval", "--file", "three.jsonl"), "Write it as gsm8k=PATH"),
    (
        (*GSM8K, "three.jsonl", "--shots", 1, "--max-model-len", 9),
        "a sequence may have 9: ask with",
    ),
    (("--task", "perplexity", "--file", "empty.txt"), "has nothing to ask"),
    (("--task", "perplexity", "--window", 9999), "--window is 9999, and a sequence may have 256"),
    (("--task", "perplexity", "--window", 8, "--stride", 9), "--stride 9 is more than --window 8"),
    (("--task", "perplexity", "--stride", 999), "--stride is 999 in windows of 256"),
    (("--split", "train"), "unknown split 'train'"),
    (("--form", "poem"), "unknown form 'poem'"),
    (("--limit", 0), "--limit is 0; it must be at least 1"),
    (("--limit", 1001), "1000 come with the package: ask for at most 1000"),
    (("--max-tokens", 0), "--max-tokens is 0"),
    (("--top-k", 0), "--top-k is 0"),
    (("--top-k", 9), "9 experts per token were asked for"),
    (("--shots", 3), "--shots is about gsm8k, but the task is problems"),
    (("--window", 3), "--window is about perplexity"),
    (("--time-limit", 3), "--time-limit is about humaneval"),
    (("--task", "perplexity", "--form", "chat"), "--form is about problems"),
    (("--task", "humaneval", "--file", "three.jsonl", "--time-limit", 0), "--time-limit is 0"),
    (("--restart",), "give --out DIR, too"),
    (("--out", "text.txt"), "is a file: give the name of a folder"),
    (("--plot", "eval.gif"), "must end in .png"),
    (("--cache-ratio", 0.5), "add --accelerator emulated"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=lambda value: str(value)[:50])
def test_mistakes_are_refused(
    words: tuple[object, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = refused(monkeypatch, capsys, "eval", talking().folder, *words)
    assert message in said
    assert not Path("out").exists()


def test_models_that_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(monkeypatch, capsys, "eval", stock.saved("olmoe").folder)
    assert "has no tokenizer.json" in said
    assert "needs its weights" in refused(monkeypatch, capsys, "eval", "mixtral-8x7b")
    silent = tmp_path / "silent"
    shutil.copytree(talking().folder, silent)
    (silent / "chat_template.jinja").unlink(missing_ok=True)
    small_tokenizers.write(silent / "tokenizer_config.json", {})
    said = refused(monkeypatch, capsys, "eval", silent, "--form", "chat")
    assert "--form chat puts questions in the model's chat template, and it has none" in said


def test_results_of_another_evaluation_are_not_mixed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("out").mkdir()
    Path("out/settings.json").write_text('{"limit": 3}')
    words = ("eval", talking().folder, "--limit", 2, "--max-tokens", 4, "--out", "out")
    said = refused(monkeypatch, capsys, *words)
    assert "limit was 3 and is 2" in said
    assert "--restart" in said
    Path("out/settings.json").write_text("nonsense")
    assert "is damaged" in refused(monkeypatch, capsys, *words)
