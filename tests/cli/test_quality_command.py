"""Does `moesaic quality` report what the stock model's own logits say, one precision at a time?"""

from __future__ import annotations

import copy
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from command import refused, run, run_json
from torch.nn import functional

import small_tokenizers
import stock
from chat_models import CHATML, talking
from made_up import long
from moesaic import LLM, SamplingParams
from moesaic.cli.study import quality
from moesaic.engine import loading
from moesaic.kernels.quantize import FORMATS, dequantize, pack_codes, quantize
from moesaic.lab.evaluation import problem_task
from moesaic.lab.evaluation.problem_set import SPLITS, HeldOutProblem
from moesaic.machines.real.expert_store import ExpertStore

TOKENS = 90
ONE = ("--threads", 1, "--dtype", "fp32", "--tokens", TOKENS)


def sample() -> list[int]:
    """The beginning of the packaged text."""
    ids: list[int] = talking().tokenizer(quality._text(None))["input_ids"]
    return ids[: TOKENS + 1]


def stock_logprobs(model: Any, tokens: list[int], window: int) -> torch.Tensor:
    """Of what comes after every token but the last; the context is cleared with every window."""
    parts = torch.tensor(tokens[:-1]).split(window)
    with torch.inference_mode():
        logits = torch.cat([model(part[None]).logits[0] for part in parts])
    return functional.log_softmax(logits.double(), -1)


def with_stored_experts(model: Any, dtype: str) -> Any:
    """The stock model with what is left of its experts' weights."""
    changed, form = copy.deepcopy(model), FORMATS[dtype]
    for name, weights in changed.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            flat = weights.data.flatten(0, 1)
            codes, scales = quantize(flat, form)
            back = dequantize(pack_codes(codes, form), scales, flat.shape[1], form, torch.float32)
            weights.data = back.view(weights.shape)
    return changed


def expected(tokens: list[int], dtype: str, window: int) -> dict[str, float]:
    model = talking().model
    ours = stock_logprobs(model, tokens, window)
    changed = model if dtype == "fp32" else with_stored_experts(model, dtype)
    theirs = stock_logprobs(changed, tokens, window)
    divergence = functional.kl_div(theirs, ours, log_target=True, reduction="none").sum(-1)
    loss = functional.nll_loss(theirs, torch.tensor(tokens[1:]))
    return {
        "mean_kl": divergence.mean().item(),
        "p99_kl": divergence.sort().values[-(-len(divergence) * 99 // 100) - 1].item(),
        "same_top1": (ours.argmax(-1) == theirs.argmax(-1)).double().mean().item(),
        "perplexity": loss.exp().item(),
    }


EMULATED = ("--accelerator", "emulated", "--check")


@pytest.mark.parametrize(
    ("window", "machine"), [(None, EMULATED), (32, ()), long(None, ()), long(32, EMULATED)]
)
def test_figures_are_the_stock_models(window: int | None, machine: tuple[str, ...]) -> None:
    words = () if window is None else ("--max-model-len", window)
    output = run_json("quality", talking().folder, *ONE, *words, *machine, "--kernel", "reference")
    assert output["tokens"] == TOKENS
    assert output["window"] == (window or TOKENS)
    assert (output["reference"], output["text"]) == ("fp32", None)
    assert [row["expert_dtype"] for row in output["rows"]] == ["fp32", "int8", "int4"]
    for row in output["rows"]:
        figures = expected(sample(), row["expert_dtype"], window or TOKENS)
        for name, value in figures.items():
            assert row[name] == pytest.approx(value, rel=1e-2, abs=1e-6), name
    sizes = [row["expert_bytes"] for row in output["rows"]]
    assert sizes == sorted(sizes, reverse=True)
    assert all(row["load_s"] > 0 for row in output["rows"])


def test_the_table_has_a_row_for_each(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The router of a mixture of experts sends every token to a few experts.")
    said = run("quality", talking().folder, "--threads", 1, "--text", text).out
    count = len(talking().tokenizer(text.read_text())["input_ids"]) - 1
    assert f"{count} tokens of" in " ".join(said.split())
    rows = [line.split("│")[1:3] for line in said.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == ["fp32", "int8", "int4"]


def test_a_kv_cache_in_int8_is_compared(tmp_path: Path) -> None:
    words = ("--threads", 1, "--tokens", 60, "--problems", 0)
    output = run_json("quality", talking().folder, *words, "--kv-dtypes", "int8,auto")
    rows = output["rows"]
    assert [(row["expert_dtype"], row["kv_dtype"]) for row in rows] == [
        ("fp32", "fp32"), ("fp32", "int8"),
    ]  # fmt: skip
    assert rows[0]["mean_kl"] == 0
    assert 0 < rows[1]["mean_kl"] < 0.1


def test_every_precision_solves_the_same_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that the stock model solves, one that it does not: the answer is the whole text."""
    folder = small_tokenizers.save(tmp_path, "byte-level", chat_template=CHATML)
    model = stock.save(stock.make("olmoe", vocab_size=512, max_position_embeddings=512), folder)
    question, tokens = "Who rests?", 5
    monkeypatch.setattr(problem_task, "extract_answer", lambda text: text)
    monkeypatch.setattr(problem_task.problem_items, "__defaults__", (SPLITS, tokens))
    with LLM(model, dtype="fp32", threads=1) as llm:
        message = [{"role": "user", "content": question}]
        answer = llm.chat(message, SamplingParams(max_tokens=tokens, temperature=0.0)).text

    def held_out_problems(split: str, count: int) -> list[HeldOutProblem]:
        known = [HeldOutProblem(question, answer or "", "word")] * 2
        return [*known, HeldOutProblem(question, "something else", "word")][:count]

    monkeypatch.setattr(problem_task, "held_out_problems", held_out_problems)
    words = ("--dtype", "fp32", "--threads", 1, "--tokens", 20, "--expert-dtypes", "int8")
    output = run_json("quality", model, *words, "--problems", 3)
    assert [row["expert_dtype"] for row in output["rows"]] == ["fp32", "int8"]
    reference = output["rows"][0]["exact_match"]
    assert [(s["group"], s["right"], s["asked"]) for s in reference] == [
        (split, 2, 3) for split in SPLITS
    ]
    assert all(score["asked"] == 3 for score in output["rows"][1]["exact_match"])
    assert output["window"] == 20, "the context of problems changes nothing about the text"
    said = run("quality", model, *words, "--problems", 3).out
    assert "exact match on 3 problems of each split" in said
    assert "66.7%" in said


def test_one_precision_is_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[ExpertStore]] = []
    alive: list[int] = []
    make = ExpertStore.__init__

    def counted(store: ExpertStore, *args: Any) -> None:
        alive.append(sum(before() is not None for before in made))
        made.append(weakref.ref(store))
        make(store, *args)

    monkeypatch.setattr(ExpertStore, "__init__", counted)
    run("quality", talking().folder, *ONE, "--accelerator", "emulated")
    assert alive == [0, 0, 0]


def test_nothing_stays_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run("quality", talking().folder, *ONE, "--expert-dtypes", "int4")
    assert list(tmp_path.iterdir()) == []


MISTAKES = [
    (("--expert-dtypes", "int8,int5"), "unknown expert dtype 'int5'"),
    (("--expert-dtypes", ","), "give at least one name"),
    (("--expert-dtypes", "fp32"), "nothing to compare fp32 experts with"),
    (("--expert-dtypes", "bf16"), "cannot be computed with activations in fp32"),
    (("--tokens", 0), "--tokens is 0"),
    (("--problems", -1), "--problems is -1"),
    (("--problems", 1001), "1001 problems of held_out_numbers were asked for, and 1000 come"),
    (("--problems", 1, "--max-model-len", 9), "and a sequence may have 9"),
    (("--text", "absent.txt"), "absent.txt: No such file"),
    (("--text", "latin.txt"), "is not UTF-8 text"),
    (("--text", "empty.txt"), "the text has 0 tokens"),
    (("--schedule", "gpu-only"), "add --accelerator emulated"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=lambda value: str(value)[:40])
def test_mistakes_are_refused_before_loading(
    words: tuple[object, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    forbid_loading(monkeypatch)
    monkeypatch.chdir(tmp_path)
    Path("latin.txt").write_bytes(b"caf\xe9")
    Path("empty.txt").write_text("")
    assert message in refused(monkeypatch, capsys, "quality", talking().folder, *words)


def test_a_model_without_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forbid_loading(monkeypatch)
    said = refused(monkeypatch, capsys, "quality", stock.saved("olmoe").folder)
    assert "has no tokenizer.json" in said
    shutil.copytree(talking().folder, tmp_path, dirs_exist_ok=True)
    small_tokenizers.write(tmp_path / "tokenizer.json", {})
    assert "tokenizer.json" in refused(monkeypatch, capsys, "quality", tmp_path)
    assert "needs its weights" in refused(monkeypatch, capsys, "quality", "mixtral-8x7b")


def forbid_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: object) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr(loading, "load_decoder", forbidden)
