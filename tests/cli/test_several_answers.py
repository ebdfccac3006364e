"""Are several prompts and completions answered together, and shown in the order given?"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from command import only_answer, run, run_json

import stock
from chat_models import talking
from moesaic.cli.command_line import app
from moesaic.cli.main import main
from moesaic.cli.run import several_answers
from moesaic.core.errors import StuckGrammar
from moesaic.engine import replanning
from moesaic.engine.batcher import Batcher
from moesaic.engine.request import Request
from moesaic.engine.sampling.sampler import Sampler
from moesaic.workloads.source import open_trace

TOKENS = 12
GREEDY = ("--temperature", 0, "--max-tokens", TOKENS, "--dtype", "fp32", "--threads", 1)
FIRST, FROM_FILE, LAST = "The router of a mixture", "Weights that are not", "def plan(view)"


@pytest.fixture
def words(tmp_path: Path) -> tuple[object, ...]:
    """Three prompts, the second of them from a file."""
    file = tmp_path / "prompt.txt"
    file.write_text(f"{FROM_FILE}\n")
    return (talking().folder, "-p", FIRST, "-f", file, "-p", LAST, *GREEDY)


def headed(answers: list[dict[str, Any]]) -> str:
    """As the answers must be printed."""
    several = len(answers)
    return "".join(
        f"--- answer {number} of {several} ---\n{answer['text']}\n"
        for number, answer in enumerate(answers, start=1)
    )


def test_they_run_together_in_the_order_given(words: tuple[object, ...]) -> None:
    """Each is what it is alone; and each step has a token of every answer."""
    alone = [
        only_answer(talking().folder, "-p", text, *GREEDY)["tokens"]
        for text in (FIRST, FROM_FILE, LAST)
    ]
    said = run_json("run", *words)
    assert [answer["tokens"] for answer in said["answers"]] == alone
    assert [answer["prompt_index"] for answer in said["answers"]] == [0, 1, 2]
    assert said["memory"]["capacity"]["sequences"] == 3
    longest = max(len(answer["prompt_tokens"]) for answer in said["answers"])
    assert said["memory"]["capacity"]["length"] == longest + TOKENS
    assert said["stats"]["steps"] < 2 * TOKENS
    given = shlex.split(said["command"])
    assert [given[3], given[5], given[7]] == ["-p", "-f", "-p"]
    streams = run("run", *words)
    assert streams.out == headed(said["answers"])
    *summary, total = streams.err.splitlines()[-4:]
    assert [line[:8] for line in summary] == ["answer 1", "answer 2", "answer 3"]
    assert total.startswith(f"total     {3 * TOKENS} tokens in ")


def test_fewer_may_run_at_a_time(words: tuple[object, ...]) -> None:
    together = run_json("run", *words)
    for few in (("--max-sequences", 1), ("--batch-invariant",)):
        said = run_json("run", *words, *few)
        assert [a["tokens"] for a in said["answers"]] == [a["tokens"] for a in together["answers"]]
        assert said["stats"]["steps"] >= 3 * TOKENS


def test_where_memory_is_short_fewer_run_at_a_time(
    words: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small computer: the plan of two sequences or more does not fit."""
    monkeypatch.setattr(replanning, "memory", lambda: (1, 1))
    streams = run("run", *words)
    assert "1 of 3 answers are generated at a time: memory allows no more" in streams.err
    assert streams.out.count("--- answer ") == 3


def test_there_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several_answers, "MAX_SEQUENCES", 2)
    ids = ("--prompt-ids", "1,2", "--prompt-ids", "3", "--prompt-ids", "4,5,6")
    said = run_json("run", stock.saved("olmoe").folder, *ids, *GREEDY)
    assert said["memory"]["capacity"]["sequences"] == 2
    assert [answer["prompt_tokens"] for answer in said["answers"]] == [[1, 2], [3], [4, 5, 6]]
    out = run("run", stock.saved("olmoe").folder, *ids, *GREEDY).out.splitlines()
    assert out[1::2] == [" ".join(map(str, answer["tokens"])) for answer in said["answers"]]


def test_completions_are_numbered_too(words: tuple[object, ...]) -> None:
    drawn = (*words[:5], "--completions", 2, "--seed", 3, "-n", 3, "--threads", 1)
    said = run_json("run", *drawn)["answers"]
    assert [(one["prompt_index"], one["index"]) for one in said] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert "--- answer 3 of 4 (prompt 2, completion 1) ---\n" in run("run", *drawn).out


def test_the_first_appears_while_it_is_generated(
    words: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What later answers have meanwhile is held back."""
    shown: list[str] = []
    whole = Batcher.step

    def step(self: Batcher, *args: Any) -> Any:
        shown.append("|")
        return whole(self, *args)

    monkeypatch.setattr(Batcher, "step", step)

    def echo(text: str = "", err: bool = False, **how: Any) -> None:
        shown.append("" if err else text)

    monkeypatch.setattr("click.echo", echo)
    result = CliRunner().invoke(app, ["run", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0
    pieces = "".join(shown).split("|")
    assert sum(1 for piece in pieces if piece) > TOKENS // 2
    assert "--- answer 2" in pieces[-1]
    assert not any("--- answer 2" in piece for piece in pieces[:-1])


def test_a_recording_has_a_document_for_each(words: tuple[object, ...], tmp_path: Path) -> None:
    trace = tmp_path / "trace.moet"
    said = run_json("run", *words, "--record", trace)["answers"]
    documents = [each for block in open_trace(trace).blocks() for each in block.documents.tolist()]
    lengths = [len(one["prompt_tokens"]) + len(one["tokens"]) - 1 for one in said]
    assert [documents.count(document) for document in range(3)] == lengths


def test_one_that_fails_leaves_the_others(
    words: tuple[object, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Request.accept

    def accept(self: Request, sampled: Any) -> Any:
        if self.id % 3 == 1 and len(self.sampled) == 4:
            return self.fail(StuckGrammar({0: "too complex"}))
        return whole(self, sampled)

    monkeypatch.setattr(Request, "accept", accept)
    monkeypatch.setattr(sys, "argv", ["moesaic", "run", *map(str, words), "--json"])
    with pytest.raises(SystemExit) as caught:
        main()
    streams = capsys.readouterr()
    assert caught.value.code == 2
    first, failed, last = json.loads(streams.out)["answers"]
    assert "too complex" in failed["error"]
    assert [len(one["tokens"]) for one in (first, failed, last)] == [TOKENS, 4, TOKENS]
    assert "too complex" in streams.err.splitlines()[-1]


def test_ctrl_c_keeps_what_there_is_of_all(
    words: tuple[object, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [only_answer(words[0], "-p", text, *GREEDY) for text in (FIRST, FROM_FILE, LAST)]
    sample, left = Sampler.sample, iter(range(4))

    def interrupted(*args: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return sample(*args)

    monkeypatch.setattr(Sampler, "sample", interrupted)
    monkeypatch.setattr(sys, "argv", ["moesaic", "run", *map(str, words)])
    with pytest.raises(SystemExit) as caught:
        main()
    streams = capsys.readouterr()
    assert caught.value.code == 130
    assert streams.err.splitlines()[-1] == "interrupted"
    parts = streams.out.split("--- answer ")[1:]
    assert len(parts) == 3
    for part, alone in zip(parts, whole, strict=True):
        kept = part.split("---\n")[1].removesuffix("\n")
        assert kept
        assert alone["text"].startswith(kept)


def cut(*more: object) -> tuple[int, str, str]:
    asked = ("run", talking().folder, "--regex", "[ab]{30}", *GREEDY, *more)
    done = CliRunner().invoke(app, list(map(str, asked)), catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


def test_a_cut_text_is_reported_as_incomplete() -> None:
    """By the exit status, in words and in JSON; of several answers by its number."""
    status, _, err = cut("-p", FIRST, "--max-tokens", 3)
    why = "incomplete: cut at --max-tokens 3 before it matched --regex"
    assert status == 3
    assert f"; {why}" in err
    assert err.splitlines()[-1] == f"warning: the answer is {why}; raise --max-tokens"
    status, out, err = cut("-p", FIRST, "-p", LAST, "--max-tokens", 3, "--json")
    assert status == 3
    assert [one["finish_reason"] for one in json.loads(out)["answers"]] == ["incomplete"] * 2
    assert [line.split(" is ")[0] for line in err.splitlines()[-2:]] == [
        *("warning: answer 1", "warning: answer 2")
    ]
    length = len(only_answer(talking().folder, "-p", FIRST, *GREEDY)["prompt_tokens"]) + 5
    *_, err = cut("-p", FIRST, "--max-model-len", length)
    assert f"the context of {length} tokens is full before it matched" in err
    assert cut("-p", FIRST, "--max-tokens", 40)[0] == 0


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_chat_reports_it_too(form: tuple[str, ...]) -> None:
    words = ["chat", str(talking().folder), "--regex", "[ab]{30}", "-n", "3", "--threads", "1"]
    done = CliRunner().invoke(app, [*words, *form], input="Hello\n", catch_exceptions=False)
    assert done.exit_code == 3
    assert "incomplete: cut at --max-tokens 3 before it matched --regex" in done.stderr


def test_a_chat_prints_its_stats_after_every_answer() -> None:
    words = ["chat", str(talking().folder), *map(str, GREEDY), "--stats"]
    done = CliRunner().invoke(app, words, input="Hello\nAgain\n", catch_exceptions=False)
    assert done.stderr.count("so far") == 2
