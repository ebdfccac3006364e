"""Does `moesaic chat` remember what was said, obey its commands, and survive mistakes?"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from command import refused

import small_tokenizers
import stock
from chat_models import talking
from moesaic.cli.command_line import app
from moesaic.engine import loading
from moesaic.workloads.source import open_trace
from stock_text import greedy

TOKENS = 6
GREEDY = ("--temperature", "0", "--max-tokens", str(TOKENS), "--dtype", "fp32", "--threads", "1")


def talk(*lines: str, words: tuple[str, ...] = (), status: int = 0) -> Result:
    asked = ["chat", str(talking().folder), *GREEDY, *words]
    typed = "".join(f"{line}\n" for line in lines)
    result = CliRunner().invoke(app, asked, input=typed, catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def turns(*lines: str, words: tuple[str, ...] = (), status: int = 0) -> list[dict[str, Any]]:
    said = talk(*lines, words=("--json", *words), status=status).stdout
    return [json.loads(line) for line in said.splitlines()]


def prompt_of(*messages: tuple[str, str]) -> list[int]:
    """What the stock tokenizer makes of a conversation."""
    listed = [{"role": role, "content": content} for role, content in messages]
    ids: list[int] = talking().tokenizer.apply_chat_template(
        listed, add_generation_prompt=True, return_dict=False
    )
    return ids


def said_after(last: str) -> list[str]:
    """Lines on standard error, but for the first, which says what is used."""
    return talk("Hello", last, status=2).stderr.splitlines()[1:]


def test_the_model_sees_what_was_said() -> None:
    first, second = turns("Which experts rest?", "And why?")
    assert first["prompt_tokens"] == prompt_of(("user", "Which experts rest?"))
    written = greedy(talking().model, first["prompt_tokens"], TOKENS - 1)[1]
    assert first["tokens"] == written
    assert second["prompt_tokens"] == prompt_of(
        ("user", "Which experts rest?"), ("assistant", first["text"]), ("user", "And why?")
    )
    assert set(first) == {
        *("text", "tokens", "finish_reason", "prompt_tokens", "cached_tokens", "timings", "stats")
    }


def test_answers_alone_are_on_stdout() -> None:
    lines = ("Hello", "/stats", "", "Weights", "/help")
    result = talk(*lines)
    texts = [turn["text"] for turn in turns(*lines)]
    assert result.stdout == "".join(f"{text}\n" for text in texts)
    for words in (
        f"(cut at --max-tokens {TOKENS})",
        "first token after",
        "so far",
        "/save    FILE",
    ):
        assert words in result.stderr


def test_a_system_text_comes_first_and_can_be_taken_back() -> None:
    one, _, three = turns("/system Be brief.", "Hello", "/reset", "Hello", "/system", "/reset", "x")
    assert one["prompt_tokens"] == prompt_of(("system", "Be brief."), ("user", "Hello"))
    assert three["prompt_tokens"] == prompt_of(("user", "x"))


def test_reset_forgets_all_but_the_system_text() -> None:
    *_, last = turns("/system Be brief.", "Hello", "/reset", "Again")
    assert last["prompt_tokens"] == prompt_of(("system", "Be brief."), ("user", "Again"))


def test_a_slash_may_be_said_after_a_space() -> None:
    (said,) = turns(" /quit means what?")
    assert said["prompt_tokens"] == prompt_of(("user", "/quit means what?"))


@pytest.mark.parametrize("leave", ["/quit", "/exit"])
def test_quitting_leaves_the_rest_unanswered(leave: str) -> None:
    assert len(turns("Hello", leave, "Still there?")) == 1


def test_save_writes_the_conversation(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    (said,) = turns("/system Be brief.", "Hello", f"/save {file}")
    assert json.loads(file.read_text())["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": said["text"]},
    ]
    assert list(tmp_path.iterdir()) == [file]


def test_a_recording_is_a_trace_of_all_answers(tmp_path: Path) -> None:
    trace = tmp_path / "talk.moet"
    answers = turns("Hello", "And why?", words=("--record", str(trace)))
    lengths = [len(one["prompt_tokens"]) + len(one["tokens"]) - 1 for one in answers]
    opened = open_trace(trace)
    documents = np.concatenate([block.documents for block in opened.blocks()])
    assert np.bincount(documents).tolist() == lengths
    assert list(tmp_path.iterdir()) == [trace]


def test_a_recording_without_a_place_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("chat", talking().folder, "--record", "absent/talk.moet")
    assert "there is no directory 'absent'" in refused(monkeypatch, capsys, *words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/sav talk.json", "unknown command '/sav'. Did you mean '/save'?"),
        ("/save", "/save needs the name of a file"),
        ("/save absent/talk.json", "there is no directory 'absent'"),
        ("/save .", "is a directory"),
    ],
)
def test_a_mistaken_command_is_one_line(line: str, words: str) -> None:
    before = len(talk("Hello").stderr.splitlines())
    lines = said_after(line)
    assert len(lines) == before  # one more than without, but for the first
    assert lines[-1].startswith("error: ")
    assert words in lines[-1]


def test_a_full_context_says_what_to_do() -> None:
    words = ("--max-model-len", "40")
    first, error, last = turns("Hello", "x" * 60, "/reset", "Hello", words=words, status=2)
    assert "the context is full with 40: /reset begins a new one" in error["error"]
    assert last["tokens"] == first["tokens"]


def test_an_answer_that_fills_the_context_says_so() -> None:
    context = str(len(prompt_of(("user", "Hello"))) + 3)
    result = talk("Hello", words=("--max-model-len", context))
    assert f"the context of {context} tokens is full; /reset begins a new one" in result.stderr


def test_a_template_may_refuse_a_conversation(tmp_path: Path) -> None:
    """As Mixtral's does with roles it does not know; the next question is answered."""
    shutil.copytree(talking().folder, tmp_path, dirs_exist_ok=True)
    strict = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    small_tokenizers.write(
        tmp_path / "tokenizer_config.json",
        {"chat_template": strict + "{% endif %}{{ m.content }}{% endfor %}"},
    )
    asked = ["chat", str(tmp_path), *GREEDY, "--json"]
    lines = "/system Be brief.\nHello\n/system\nHello\n"
    result = CliRunner().invoke(app, asked, input=lines, catch_exceptions=False)
    error, answer = (json.loads(line) for line in result.stdout.splitlines())
    assert "refuses this conversation: no system" in error["error"]
    assert len(answer["tokens"]) == TOKENS


@pytest.mark.parametrize("missing", ["template", "tokenizer"])
def test_a_model_without_a_chat_template_is_refused_before_loading(
    missing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def forbidden(*args: object) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr(loading, "load_decoder", forbidden)
    shutil.copytree(talking().folder, tmp_path, dirs_exist_ok=True)
    small_tokenizers.write(tmp_path / "tokenizer_config.json", {"eos_token": "</s>"})
    if missing == "tokenizer":
        (tmp_path / "tokenizer.json").unlink()
    said = refused(monkeypatch, capsys, "chat", tmp_path)
    assert f"has no {'chat template' if missing == 'template' else 'tokenizer.json'}" in said
    assert "`moesaic run" in said


def test_chat_needs_weights_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "needs its weights" in refused(monkeypatch, capsys, "chat", "mixtral-8x7b")
    folder = stock.saved("mixtral").folder
    assert "Did you mean 'lfu'?" in refused(monkeypatch, capsys, "chat", folder, "--cache", "lfuu")
