"""Do the commands take a GGUF file where they take a model directory?"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import gguf
import pytest
from command import only_answer, refused, run, run_json

import gguf_models
import quantized_models
import stock
from chat_models import CHATML, talking
from gguf_models import Type
from hub_server import Repo, serving
from quantized_models import FORMS
from small_tokenizers import trained

TEXT = "The router of a mixture of experts"
GREEDY = ("--temperature", 0, "--max-tokens", 8, "--dtype", "fp32", "--threads", 1)


@cache
def file(kind: Type = Type.F32) -> Path:
    def add(writer: gguf.GGUFWriter) -> None:
        content = json.loads(trained("byte-level"))
        gguf_models.write_tokenizer(writer, content, "gpt-2", 512)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_chat_template(CHATML)

    folder = Path(mkdtemp(prefix="moesaic-gguf-"))
    return gguf_models.convert(talking().folder, folder / "talking.gguf", kind, add=add)


def test_run_writes_the_same_text() -> None:
    words = ("-p", TEXT, *GREEDY)
    said, same = run_json("run", file(), *words), only_answer(talking().folder, *words)
    (mine,) = said["answers"]
    assert mine["tokens"] == same["tokens"]
    assert mine["text"] == same["text"]
    assert said["model"] == "talking"


def test_chat_uses_the_template_of_the_file() -> None:
    words = ("-p", TEXT, "--chat", *GREEDY)
    mine, same = only_answer(file(), *words), only_answer(talking().folder, *words)
    assert mine["tokens"] == same["tokens"]
    assert mine["prompt_tokens"] == same["prompt_tokens"]


def test_plan_holds_experts_in_about_what_they_are_stored_in() -> None:
    """Rows of 24 weights are no blocks: the down projections stay in fp32."""
    assert run_json("plan", file(), "--dtype", "auto")["expert_dtype"] == "fp32"
    assert run_json("plan", file(Type.Q8_0), "--dtype", "auto")["dtype"] == "bf16"


def test_repacking_says_what_it_costs() -> None:
    words = ("-p", TEXT, "--max-tokens", 2, "--threads", 1)
    said = run("run", file(Type.Q8_0), *words, "--expert-dtype", "int4").err
    assert "experts are stored as Q8_0 and repacked as int4, rounded to other codes, which" in said
    percent = float(said.split("moves weights by ")[1].split("%")[0])
    assert 4 < percent < 14, "int4 in groups of 32, see kernels/quantize"
    assert "repacked" not in run("run", file(), *words).err


def test_bench_and_eval() -> None:
    said = run_json("bench", file(), "-p", 8, "-n", 2, "--repetitions", 1, "--threads", 1)
    assert [row["test"] for row in said["rows"]] == ["pp8", "tg2"]
    words = ("--task", "perplexity", "--window", 16, "--limit", 2, "--dtype", "fp32")
    mine, same = run_json("eval", file(), *words), run_json("eval", talking().folder, *words)
    assert mine["texts"][0]["bits_per_byte"] == same["texts"][0]["bits_per_byte"]
    assert list(mine["settings"]["model_files"]) == ["talking.gguf"]


def test_a_damaged_file_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "a.gguf"
    damaged.write_bytes(file().read_bytes()[:3000])
    for command in (("run", "-p", TEXT), ("plan",), ("bench",)):
        said = refused(monkeypatch, capsys, command[0], damaged, *command[1:])
        assert "a.gguf" in said
        assert "truncated" in said


def test_a_file_is_fetched_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path / "cache", monkeypatch) as hub:
        hub.repos["owner/g"] = Repo({"q8/g.gguf": b"", "f32/talking.gguf": file().read_bytes()})
        said = run_json("run", "owner/g:f32/talking.gguf", "-p", TEXT, *GREEDY)
        assert hub.fetched() == {"f32/talking.gguf"}
    (mine,) = said["answers"]
    assert mine["tokens"] == only_answer(file(), "-p", TEXT, *GREEDY)["tokens"]
    assert said["model"] == "talking"


def test_a_file_is_not_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(monkeypatch, capsys, "pack", file(), "-o", tmp_path / "x")
    assert "a model is packed from a directory" in said


# Do the commands take a quantized checkpoint, and say what repacking its experts costs?

WORDS = ("--prompt-ids", "1,2,3", "--max-tokens", 4, "--temperature", 0, "--threads", 1)


def test_run_and_plan(tmp_path: Path) -> None:
    pair = quantized_models.write(stock.saved("qwen3-moe").folder, tmp_path, FORMS["gptq"])
    exact = ("--dtype", "fp32", "--expert-dtype", "fp32")
    mine = only_answer(pair.quantized, *WORDS, *exact)
    assert mine["tokens"] == only_answer(pair.values, *WORDS, *exact)["tokens"]
    assert run_json("plan", pair.quantized, "--dtype", "auto")["expert_dtype"] == "int4"
    said = run("run", pair.quantized, *WORDS).err
    assert "experts are stored as GPTQ 4-bit and repacked as int4, rounded to other codes" in said


def test_a_variant_that_is_not_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = quantized_models.write(stock.saved("qwen3-moe").folder, tmp_path, FORMS["awq"])
    config = json.loads((pair.quantized / "config.json").read_text())
    config["quantization_config"]["version"] = "gemv"
    (pair.quantized / "config.json").write_text(json.dumps(config))
    said = refused(monkeypatch, capsys, "run", pair.quantized, *WORDS)
    assert "quantization_config.version: expected the layout gemm, not 'gemv'" in said
    cannot = run_json("plan", pair.quantized)["cannot_run"]
    assert "quantization_config.version: expected the layout gemm" in cannot
