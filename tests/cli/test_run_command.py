"""Does `moesaic run` write what the stock model writes, show it as it comes, and say its cost?"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from command import only_answer, refused, run, run_json

import stock
from chat_models import talking
from made_up import in_turns
from moesaic.cli.command_line import app
from moesaic.engine.llm import LLM
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.policies.systems import SYSTEMS
from moesaic.workloads.source import open_trace
from stock_text import greedy, prompt, stock_logits

TOKENS = 12
TEXT = "The router of a mixture of experts"
GREEDY = ("--temperature", 0, "--max-tokens", TOKENS, "--dtype", "fp32", "--threads", 1)
REFUSED = "llama.cpp"  # by the emulated accelerator: it cannot follow its rule
EMULATED = ("--accelerator", "emulated", "--cache-ratio", 0.5, "--check")


def ids(tokens: list[int]) -> str:
    return ",".join(map(str, tokens))


def stock_tokens(model: Any, tokens: list[int]) -> list[int]:
    _, written = greedy(model, tokens, TOKENS - 1)
    return written


RUNNING = [name for name in SYSTEMS if name != REFUSED]


@pytest.mark.parametrize(("family", "system"), in_turns(list(stock.FAMILIES), RUNNING))
def test_every_family_under_every_system(family: str, system: str) -> None:
    saved, asked = stock.saved(family), prompt(9)
    words = ("--prompt-ids", ids(asked), *GREEDY, *EMULATED, "--policies", system)
    said = run_json("run", saved.folder, *words)
    assert said["answers"][0]["tokens"] == stock_tokens(saved.model, asked)
    assert said["settings"]["policies"]["schedule"] == str(SYSTEMS[system].policies.schedule)
    assert 0 < said["stats"]["hit_rate"] <= 1


def test_llama_cpps_rule_is_refused_by_the_emulated_accelerator_and_holds_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, asked = stock.saved("olmoe"), prompt(9)
    words = ("--prompt-ids", ids(asked), *GREEDY, "--policies", REFUSED)
    said = refused(monkeypatch, capsys, "run", saved.folder, *words, *EMULATED)
    assert "computes those of every layer itself" in said
    assert "moesaic simulate --policies llama.cpp" in said
    assert only_answer(saved.folder, *words)["tokens"] == stock_tokens(saved.model, asked)


def test_text_is_the_stock_models_and_nothing_else_is_on_stdout() -> None:
    known = talking()
    written = stock_tokens(known.model, known.tokenizer(TEXT)["input_ids"])
    streams = run("run", known.folder, "-p", TEXT, *GREEDY)
    text = known.tokenizer.decode(written, skip_special_tokens=True)
    assert streams.out.removesuffix("\n") == text
    first, *summary = streams.err.splitlines()
    used = "the CPU computes everything with the PyTorch reference kernel, fp32, 1 thread"
    slow = "decode: layerwise (cpu_step computes in bf16, not fp32)"
    assert first == f"no accelerator: {used}; {slow}"
    assert [line.split()[0] for line in summary] == ["prompt", "answer"]
    assert "first token after" in summary[0]
    assert re.search(
        rf"{TOKENS} tokens, [0-9.]+ tokens/s; cut at --max-tokens {TOKENS}$", streams.err
    )


def test_details_are_printed_when_asked_for() -> None:
    words = (talking().folder, "-p", TEXT, *GREEDY)
    shown = [line.split()[0] for line in run("run", *words, "--stats").err.splitlines()]
    first = shown.index("prompt")
    assert shown[first : first + 4] == ["prompt", "answer", "steps", "overhead"]


def test_options_as_in_llama_cpp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """-m names the model, -n the number of tokens, -f a file; the command says it again."""
    (tmp_path / "prompt.txt").write_text(TEXT)
    short = ("-m", talking().folder, "-f", tmp_path / "prompt.txt", "--temperature", 0, "-n", 5)
    said = run_json("run", *short)
    assert len(said["answers"][0]["tokens"]) == 5
    assert str(talking().folder) in shlex.split(said["command"])
    again = run_json(*shlex.split(said["command"].removesuffix("--json"))[1:])
    assert again["answers"][0]["tokens"] == said["answers"][0]["tokens"]
    twice = refused(monkeypatch, capsys, "run", "elsewhere", *short)
    assert "two models were given, 'elsewhere' and -m" in twice


def test_penalties_are_those_of_the_library() -> None:
    fields: dict[str, Any] = {"presence_penalty": 1.5, "frequency_penalty": 2.0, "ignore_eos": True}
    words = ("--presence-penalty", 1.5, "--frequency-penalty", 2, "--ignore-eos")
    said = only_answer(talking().folder, "-p", TEXT, *GREEDY, *words)["tokens"]
    with LLM(talking().folder, dtype="fp32", threads=1) as model:
        params = SamplingParams(temperature=0.0, max_tokens=TOKENS, **fields)
        assert list(model.generate(TEXT, params)[0].tokens) == said
        plain = replace(params, presence_penalty=0.0, frequency_penalty=0.0)
        assert list(model.generate(TEXT, plain)[0].tokens) != said
    assert len(said) == TOKENS


def test_help_says_when_a_seed_is_not_enough() -> None:
    assert "if asked alone" in " ".join(run("run", "--help").out.split())


def test_an_accelerator_is_part_of_the_summary() -> None:
    saved = stock.saved("olmoe")
    streams = run("run", saved.folder, "--prompt-ids", "1,2,3", *GREEDY, *EMULATED)
    assert streams.err.startswith("emulated accelerator: it holds 18 of 36 experts (50%), copies")
    (experts,) = (line for line in streams.err.splitlines() if line.startswith("experts"))
    assert re.fullmatch(r"experts +hit rate [0-9.]+% in the accelerator's memory", experts)
    assert "MB" not in streams.err, "it is a detail"


def test_a_model_without_a_tokenizer_answers_in_ids() -> None:
    saved, asked = stock.saved("olmoe"), prompt(5)
    said = run("run", saved.folder, "--prompt-ids", ids(asked), *GREEDY).out
    assert said == " ".join(map(str, stock_tokens(saved.model, asked))) + "\n"


def test_ids_are_answered_in_text_where_there_is_a_tokenizer() -> None:
    known, asked = talking(), prompt(5)
    said = run("run", known.folder, "--prompt-ids", ids(asked), *GREEDY).out
    written = stock_tokens(known.model, asked)
    assert said.removesuffix("\n") == known.tokenizer.decode(written, skip_special_tokens=True)


def test_the_command_itself() -> None:
    """In a process of its own, as a shell starts it."""
    saved, asked = stock.saved("olmoe"), prompt(5)
    call = [sys.executable, "-c", "from moesaic.cli.main import main; main()", "run"]
    words = [str(word) for word in (saved.folder, "--prompt-ids", ids(asked), *GREEDY)]
    done = subprocess.run([*call, *words], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [str(token) for token in stock_tokens(saved.model, asked)]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [(), ("-p", "-")])
@pytest.mark.parametrize("piped", [TEXT, f"{TEXT}\n", f"two\nlines: {TEXT}\n"])
def test_a_prompt_may_come_through_a_pipe(words: tuple[str, ...], piped: str) -> None:
    known = talking()
    asked = ["run", str(known.folder), *words, *map(str, GREEDY), "--json"]
    result = CliRunner().invoke(app, asked, input=piped, catch_exceptions=False)
    (output,) = json.loads(result.stdout)["answers"]
    assert output["prompt_tokens"] == known.tokenizer(piped.removesuffix("\n"))["input_ids"]


def test_a_prompt_may_be_a_users_message() -> None:
    known = talking()
    messages = [{"role": "user", "content": TEXT}]
    asked = known.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    output = only_answer(known.folder, "--chat", "-p", TEXT, *GREEDY)
    assert output["prompt_tokens"] == asked
    assert output["tokens"] == stock_tokens(known.model, asked)


def test_json_has_everything_and_its_command_says_it_again() -> None:
    known = talking()
    words = ("--seed", 7, "--max-tokens", 9, "--stop", "€ ", "--stop", "$x", "--top-k", 20)
    output = run_json("run", known.folder, "-p", TEXT, *words, *EMULATED, "--expert-dtype", "int8")
    assert set(output) == {
        *("model", "answers", "stats", "settings", "memory", "command", "gate", "quality")
    }
    (answer,) = output["answers"]
    assert set(answer) == {
        *("text", "tokens", "finish_reason", "prompt_tokens", "timings", "cached_tokens"),
        *("prompt_index", "index"),
    }
    settings = output["settings"]
    assert (settings["dtype"], settings["expert_dtype"]) == ("fp32", "int8")
    assert (settings["accelerator"], settings["cache_ratio"]) == ("emulated", 0.5)
    assert settings["policies"]["schedule"] == "best-split"
    assert output["memory"]["capacity"] == {
        "slots": 18,
        "sequences": 1,
        "length": 256,
        "blocks": 4,
        "copies": 0,
        "cache_ratio": 0.5,
    }
    assert output["stats"]["generated_tokens"] == len(answer["tokens"])
    timings = answer["timings"]
    assert 0 < timings["time_to_first_token_s"] < timings["total_s"]
    command = shlex.split(output["command"])
    assert command[:3] == ["moesaic", "run", str(known.folder)]
    again = json.loads(run(*command[1:]).out)
    assert again["answers"][0]["tokens"] == answer["tokens"]
    assert again["command"] == output["command"]


def test_log_probabilities_are_the_stock_models() -> None:
    saved = stock.saved("olmoe")
    output = only_answer(saved.folder, "--prompt-ids", "1,2", *GREEDY, "--logprobs", 2)
    logits, _ = stock_logits(saved.model, [1, 2, *output["tokens"][:-1]])
    best = logits.log_softmax(-1)[1:].topk(2)
    for one, chosen, values in zip(output["logprobs"], best.indices, best.values, strict=True):
        assert one["token"] == chosen[0]
        assert one["logprob"] == pytest.approx(values[0].item(), abs=1e-4)
        assert [other["token"] for other in one["alternatives"]] == chosen.tolist()
        assert [other["text"] for other in one["alternatives"]] == [None, None], "no tokenizer"


def test_log_probabilities_name_tokens_by_their_text() -> None:
    answer = only_answer(talking().folder, "-p", TEXT, *GREEDY, "--logprobs", 3)
    decode = talking().tokenizer.decode
    for one in answer["logprobs"]:
        for each in (one, *one["alternatives"]):
            assert each["text"] == decode([each["token"]])


def test_a_stop_text_ends_it() -> None:
    known = talking()
    whole = only_answer(known.folder, "-p", TEXT, *GREEDY)["text"]
    stop = whole[len(whole) // 2 :][:3]
    streams = run("run", known.folder, "-p", TEXT, *GREEDY, "--stop", stop)
    assert streams.out.removesuffix("\n") == whole[: whole.index(stop)]
    assert "; end of answer" in streams.err


def test_a_full_context_is_named() -> None:
    saved, asked = stock.saved("olmoe"), prompt(5)
    words = ("--prompt-ids", ids(asked), *GREEDY, "--max-model-len", 8)
    streams = run("run", saved.folder, *words)
    assert streams.out.split() == [str(token) for token in stock_tokens(saved.model, asked)[:3]]
    assert "the context of 8 tokens is full" in streams.err


def test_a_recording_is_a_trace_of_the_run(tmp_path: Path) -> None:
    saved, trace = stock.saved("olmoe"), tmp_path / "trace.moet"
    run("run", saved.folder, "--prompt-ids", "1,2,3", *GREEDY, "--record", trace)
    opened = open_trace(trace)
    assert (opened.header.num_layers, opened.header.num_experts) == (3, 12)
    assert run_json("trace", "info", trace)["tokens"] == 3 + TOKENS - 1
    assert list(tmp_path.iterdir()) == [trace]
