"""Does the bundled model answer where no model is named, as a person expects it to?"""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner
from command import only_answer, run, run_json

from moesaic import LLM, SamplingParams
from moesaic.cli.command_line import app
from moesaic.models.bundled_model import NAME, default_model
from moesaic.models.text.tokenizer import Tokenizer

QUESTION = "Ann has 5 pens and buys 7 more. How many pens does she have?"
SHORT = ("--max-tokens", 8, "--threads", 1)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.open(default_model())


def as_question(tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode_chat([{"role": "user", "content": QUESTION}])


@pytest.fixture(scope="module")
def result() -> Any:
    return run_json("run", "-p", QUESTION, *SHORT)


@pytest.fixture(scope="module")
def answer(result: Any) -> Any:
    (only,) = result["answers"]
    return only


def test_run_puts_a_question_to_it(result: Any, answer: Any, tokenizer: Tokenizer) -> None:
    assert result["model"] == NAME
    assert answer["prompt_tokens"] == as_question(tokenizer)


@pytest.mark.parametrize("named", [NAME, default_model()], ids=["by name", "by directory"])
def test_named_it_answers_the_same(named: object, answer: Any) -> None:
    output = only_answer(named, "-p", QUESTION, *SHORT)
    assert (output["prompt_tokens"], output["tokens"]) == (
        answer["prompt_tokens"],
        answer["tokens"],
    )


def test_it_takes_the_likeliest_tokens_unless_chance_is_asked_for(answer: Any) -> None:
    said = only_answer("-p", QUESTION, *SHORT, "--temperature", 0)["tokens"]
    assert said == answer["tokens"]
    drawn = [only_answer("-p", QUESTION, *SHORT, "--seed", seed)["tokens"] for seed in (1, 2)]
    hot = only_answer("-p", QUESTION, *SHORT, "--seed", 1, "--temperature", 1)["tokens"]
    assert drawn[0] == hot
    very = ("--temperature", 50, "--seed", 1)
    assert only_answer("-p", QUESTION, *SHORT, *very)["tokens"] != answer["tokens"]


def test_a_text_can_be_gone_on_with(tokenizer: Tokenizer) -> None:
    output = run_json("run", "--no-chat", "-p", QUESTION, *SHORT)
    assert output["answers"][0]["prompt_tokens"] == tokenizer.encode(QUESTION)
    assert "--no-chat" in output["command"]


def test_ids_are_no_question() -> None:
    assert only_answer("--prompt-ids", "5,6,7", *SHORT)["prompt_tokens"] == [5, 6, 7]


def test_a_question_may_be_piped(answer: Any) -> None:
    words = ["run", *map(str, SHORT), "--json"]
    done = CliRunner().invoke(app, words, input=f"{QUESTION}\n", catch_exceptions=False)
    assert json.loads(done.stdout)["answers"][0]["tokens"] == answer["tokens"]


def test_chat_needs_no_model_either(answer: Any) -> None:
    words = ["chat", *map(str, SHORT), "--json"]
    done = CliRunner().invoke(app, words, input=f"{QUESTION}\n", catch_exceptions=False)
    assert done.exit_code == 0
    first = done.stderr.splitlines()[0]
    assert first.startswith(f"{NAME} is a very small demonstration model: it solves grade-school ")
    assert "hardly anything else" in first
    assert json.loads(done.stdout)["tokens"] == answer["tokens"]


def test_python_needs_none(answer: Any) -> None:
    params = SamplingParams(max_tokens=8, temperature=0.0)
    with LLM(threads=1) as llm:
        said = llm.chat([{"role": "user", "content": QUESTION}], params)
    assert list(said.tokens) == answer["tokens"]


def test_it_is_planned() -> None:
    assert run_json("plan")["model"] == NAME
    detailed = ("--dtype", "auto")
    named, unnamed = run_json("plan", NAME, *detailed), run_json("plan", *detailed)
    assert named["capacity"] == unnamed["capacity"]


def test_it_is_simulated_by_name() -> None:
    output = run_json("simulate", "--model", NAME, "--tokens", 8, "--warmup", 2)
    assert output["model"] == NAME


@pytest.mark.parametrize("command", ["run", "chat", "bench", "plan"])
def test_help_says_so(command: str) -> None:
    said = " ".join(run(command, "--help").out.split())
    assert "[MODEL]" in said
    assert f"the bundled {NAME}" in said
