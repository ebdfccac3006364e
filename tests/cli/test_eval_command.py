"""Does `moesaic eval` score what the stock model would write, and go on after what goes wrong?"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from command import refused, run, run_json
from torch.nn import functional

import small_tokenizers
import stock
from chat_models import CHATML
from moesaic.cli.main import main
from moesaic.engine.sampling.sampler import Sampler
from moesaic.lab.evaluation import humaneval_task, problem_task
from moesaic.lab.evaluation.problem_set import HeldOutProblem

TOKENS = 6
ONE = ("--threads", 1, "--dtype", "fp32")
SHORT = (*ONE, "--max-tokens", TOKENS)
EXERCISE = {"entry_point": "twice", "test": "def check(f):\n    assert f(3) == 6\n"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("talks")
    small_tokenizers.save(place, "byte-level", chat_template=CHATML)
    return stock.save(stock.make("olmoe", vocab_size=512, max_position_embeddings=1024), place)


@pytest.fixture(scope="module")
def model() -> Any:
    return stock.make("olmoe", vocab_size=512, max_position_embeddings=1024)


def written(model: Any, folder: Path, text: str) -> str:
    """What the stock model goes on with."""
    tokenizer = small_tokenizers.stock(folder)
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    with torch.inference_mode():
        mask = torch.ones_like(ids)
        made = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=TOKENS)
    new = made[0, ids.shape[1] :].tolist()
    if tokenizer.eos_token_id in new:
        new = new[: new.index(tokenizer.eos_token_id)]
    return str(tokenizer.decode(new, skip_special_tokens=True))


def expect(monkeypatch: pytest.MonkeyPatch, answers: dict[str, str]) -> None:
    """Problems whose answer is a whole text; every second one's answer is another."""

    def held_out_problems(split: str, count: int) -> list[HeldOutProblem]:
        questions = list(answers)[:count]
        right = [answers[q] if n % 2 == 0 else "nothing" for n, q in enumerate(questions)]
        kinds = ["word" if n < 2 else "list" for n in range(count)]
        return [
            HeldOutProblem(question, answer, kind)
            for question, answer, kind in zip(questions, right, kinds, strict=True)
        ]

    monkeypatch.setattr(problem_task, "held_out_problems", held_out_problems)
    monkeypatch.setattr(problem_task, "extract_answer", lambda text: text)


QUESTIONS = ("Who rests?", "How many experts?", "Which token?", "Why wait?", "Where?")


def score_rows(output: Any) -> list[tuple[str, str, int, int]]:
    return [(s["group"], s["kind"], s["right"], s["asked"]) for s in output["scores"]]


@pytest.mark.parametrize("form", ["plain", "chat"])
def test_scores_are_of_what_the_stock_model_writes(
    form: str, folder: Path, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    forms = {
        "plain": "Question: {}\nAnswer:",
        "chat": "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    }
    texts = {q: written(model, folder, forms[form].format(q)) for q in QUESTIONS}
    assert len(set(texts.values())) > 3, "the comparison would say little"
    expect(monkeypatch, texts)
    asked = ("eval", folder, "--limit", 5, "--form", form, "--split", "held_out_numbers", *SHORT)
    output = run_json(*asked)
    assert score_rows(output) == [
        ("held_out_numbers", "", 3, 5),
        ("held_out_numbers", "list", 2, 3),
        ("held_out_numbers", "word", 1, 2),
    ]
    assert output["scores"][0]["low"] == pytest.approx(0.2307, abs=1e-3)
    assert [mistake["answer"] for mistake in output["mistakes"]] == [
        texts[QUESTIONS[1]],
        texts[QUESTIONS[3]],
    ]
    policies = ("--accelerator", "emulated", "--cache-ratio", 0.5, "--policies", "hybrimoe")
    again = run_json(*asked, *policies, "--check", "--max-sequences", 2)
    assert score_rows(again) == score_rows(output)
    assert again["settings"]["policies"]["cache"].startswith("mrs:alpha=0.3")


def test_fewer_experts_are_asked_for(folder: Path) -> None:
    output = run_json("eval", folder, "--limit", 1, "--top-k", 2, *SHORT)
    assert output["settings"]["experts_per_token"] == 2
    assert [score["asked"] for score in output["scores"]] == [1, 1]


def test_a_gates_fallbacks_are_said(folder: Path) -> None:
    asked = ("eval", folder, "--limit", 1, "--split", "held_out_numbers", *SHORT)
    assert "100.0% of tokens ran again" in run(*asked, "--gate", "big-little:gamma=1").err
    assert "ran again" not in run(*asked).err


def test_the_table_and_the_picture(folder: Path, tmp_path: Path) -> None:
    plot = tmp_path / "eval.png"
    words = ("--task", "problems,perplexity", "--limit", 2, "--plot", plot)
    said = run("eval", folder, *words, *SHORT).out
    assert "held_out_templates" in said
    assert "bits per byte" in said
    assert plot.read_bytes().startswith(b"\x89PNG")


def interrupted(
    monkeypatch: pytest.MonkeyPatch, calls: int, *words: object, by: signal.Signals = signal.SIGINT
) -> None:
    """After so many steps."""
    whole, left = Sampler.sample, iter(range(calls))

    def sample(*args: Any) -> Any:
        if next(left, None) is None:
            signal.raise_signal(by)
        return whole(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "sample", sample)
        patch.setattr(sys, "argv", ["moesaic", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            main()
    assert caught.value.code == 128 + by


def test_ctrl_c_loses_nothing(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("eval", folder, "--limit", 3, *SHORT, "--max-sequences", 2)
    whole = run_json(*words)
    out = tmp_path / "out"
    interrupted(monkeypatch, 15, *words, "--out", out)
    said = capsys.readouterr().err.splitlines()
    assert said[-2:] == [
        "4 of 6 are done and kept: the same command goes on from there",
        "interrupted",
    ]
    with (out / "results.jsonl").open("a") as file:
        file.write('{"task": "prob')  # a line that was not finished
    streams = run(*words, "--out", out, "--json")
    assert "4 of 6 are done already" in streams.err
    output = json.loads(streams.out)
    assert score_rows(output) == score_rows(whole)
    assert output["mistakes"] == whole["mistakes"]
    assert json.loads((out / "summary.json").read_text()) == output
    monkeypatch.setattr("moesaic.engine.loading.load_decoder", None)
    assert run_json(*words, "--out", out)["scores"] == output["scores"], (
        "nothing is left to load for"
    )


def test_a_signal_says_how_to_go_on_too(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("eval", folder, "--limit", 3, *SHORT, "--max-sequences", 2, "--out", tmp_path / "out")
    interrupted(monkeypatch, 15, *words, by=signal.SIGTERM)
    assert "4 of 6 are done and kept: the same" in capsys.readouterr().err


def test_other_problems_under_the_same_names_are_not_mixed(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("eval", folder, "--limit", 1, *SHORT, "--out", tmp_path / "out")
    run(*words)
    expect(monkeypatch, {"Another?": "one"})
    assert "questions was" in refused(monkeypatch, capsys, *words)


def test_answers_at_their_limit_are_cut_and_counted(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "test.jsonl"
    file.write_text(json.dumps({"question": "1 + 1?", "answer": "#### 2"}))
    words = ("--task", "gsm8k", "--file", file, "--shots", 0, "--max-model-len", 40, "--json")
    streams = run("eval", folder, *words, *ONE)
    (score,) = json.loads(streams.out)["scores"]
    assert (score["cut"], score["asked"]) == (1, 1)
    assert "tokens instead of 256, and is cut there: raise --max-model-len" in streams.err


def test_without_a_folder_ctrl_c_says_what_is_lost(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted(monkeypatch, 5, "eval", folder, "--limit", 2, *SHORT)
    said = capsys.readouterr()
    assert "were done and are lost: with --out DIR they would be kept" in said.err
    assert said.out == ""


def test_hostile_programs_are_reported_and_the_evaluation_goes_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    bodies = {
        "good": "return 2 * x",
        "wrong": "return x",
        "loop": "while True: pass",
        "fork": "import os; os.fork()",
        "memory": "return [0] * (1 << 40)",
        "write": f"open({str(outside)!r}, 'w')",
    }
    monkeypatch.setattr(
        humaneval_task,
        "completed",
        lambda prompt, text, form, entry: f"{prompt}    {bodies[prompt.split()[1]]}\n",
    )
    lines = [
        {"task_id": name, "prompt": f"# {name}\ndef twice(x):\n", **EXERCISE} for name in bodies
    ]
    file = tmp_path / "exercises.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in [*lines, {"task_id": "broken"}]))
    words = ("--task", "humaneval", "--file", file, "--time-limit", 2)
    streams = run("eval", folder, *words, *SHORT, "--out", tmp_path / "out", "--json")
    (score,) = json.loads(streams.out)["scores"]
    assert (score["right"], score["asked"], score["left_out"]) == (1, 6, 1)
    results = map(json.loads, (tmp_path / "out" / "results.jsonl").read_text().splitlines())
    why = {result["item"]: result.get("why", "") for result in results}
    assert why.pop("write").startswith("PermissionError")
    assert why == {
        "good": "",
        "wrong": "AssertionError",
        "loop": "out of time",
        "fork": "PermissionError: os.fork is not allowed here",
        "memory": "out of memory",
        "line 7": f"{file}, line 7: the field 'prompt' is missing",
    }
    assert f"left out: {file}, line 7: the field 'prompt' is missing" in streams.err
    assert not outside.exists()


def test_missing_walls_are_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moesaic.lab.evaluation.sandbox.walls", lambda: ("network",))
    monkeypatch.setattr(
        humaneval_task, "completed", lambda prompt, text, form, entry: "def twice(x): 1"
    )
    file = folder / "one.jsonl"
    file.write_text(json.dumps({"task_id": "a", "prompt": "def twice(x):\n", **EXERCISE}))
    said = run("eval", folder, "--task", "humaneval", "--file", file, *SHORT).err
    assert "does not separate generated programs from its processes, files" in said


def test_gsm8k_goes_on_after_a_broken_line(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "test.jsonl"
    lines = [{"question": f"{n} + 1?", "answer": f"#### {n + 1}"} for n in range(4)]
    file.write_text("\n".join(map(json.dumps, [*lines, {"question": "?"}])))
    output = run_json("eval", folder, "--task", "gsm8k", "--file", file, "--shots", 1, *SHORT)
    (score,) = output["scores"]
    assert (score["asked"], score["left_out"]) == (3, 1)
    assert output["left_out"] == [
        {"task": "gsm8k", "item": "line 5", "why": f"{file}, line 5: the field 'answer' is missing"}
    ]


def test_perplexity_is_the_stock_models(folder: Path, model: Any, tmp_path: Path) -> None:
    text = "The router of a mixture of experts sends every token to a few experts. " * 2
    file = tmp_path / "text.txt"
    file.write_text(text)
    window, stride = 24, 8
    words = ("--task", "perplexity", "--file", file, "--window", window, "--stride", stride)
    (output,) = run_json("eval", folder, *words, *ONE)["texts"]
    tokenizer = small_tokenizers.stock(folder)
    ids = [
        tokenizer.convert_tokens_to_ids("<s>"),
        *tokenizer(text, add_special_tokens=False)["input_ids"],
    ]
    loss, known = 0.0, 0
    while known < len(ids) - 1:
        end = min(known + stride if known else window, len(ids) - 1)
        with torch.inference_mode():
            logits = model(torch.tensor([ids[max(0, end - window) : end]])).logits[0]
        targets = torch.tensor(ids[known + 1 : end + 1])
        loss += functional.cross_entropy(
            logits[known - end :].double(), targets, reduction="sum"
        ).item()
        known = end
    assert output["tokens"] == len(ids) - 1
    assert output["token_perplexity"] == pytest.approx(math.exp(loss / (len(ids) - 1)), rel=1e-3)
    assert output["bits_per_byte"] == pytest.approx(loss / math.log(2) / len(text), rel=1e-3)
    assert output["word_perplexity"] == pytest.approx(math.exp(loss / len(text.split())), rel=1e-3)


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import atexit, sys; atexit.register(lambda: print('loaded:', *sys.modules)); "
        "from moesaic.cli.main import main; main()"
    )
    words = [sys.executable, "-c", code, "eval", "--help"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    loaded = done.stdout.rsplit("loaded:", 1)[1].split()
    assert "moesaic.cli.study.eval" in loaded
    assert not {"numpy", "numba", "rich", "matplotlib", "torch"} & set(loaded)
