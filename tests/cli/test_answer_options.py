"""What `run` and `chat` can be asked about answers: their shape, their number, a system prompt, and
what they share in the KV cache."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from command import refused, run, run_json

from chat_models import talking
from moesaic.cli.command_line import app
from moesaic.policies.systems import load_system

SHORT = ("--max-tokens", 40, "--dtype", "fp32", "--threads", 1)
SCHEMA = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 2}


def asked(*words: object) -> tuple[object, ...]:
    return ("run", talking().folder, *SHORT, "-p", "Which experts rest while others work?", *words)


def test_answers_have_the_shape_asked_for(tmp_path: Path) -> None:
    schema, grammar = tmp_path / "a.json", tmp_path / "a.gbnf"
    schema.write_text(json.dumps(SCHEMA))
    grammar.write_text('root ::= "yes" | "no"\n')
    for given in (json.dumps(SCHEMA), schema):
        assert set(json.loads(run(*asked("--json-schema", given, "--seed", 1)).out)) <= {1, 2}
    assert run(*asked("--grammar", grammar, "--temperature", 0)).out in ("yes\n", "no\n")
    assert re.fullmatch("[ab]{3}\n", run(*asked("--regex", "[ab]{3}", "--seed", 1)).out)


def test_several_completions_share_the_prompt() -> None:
    result = run_json(*asked("--completions", 3, "--seed", 5, "-n", 4))
    answers = result["answers"]
    cached = len(answers[0]["prompt_tokens"]) - 1
    assert [one["cached_tokens"] for one in answers] == [0, cached, cached]
    assert len({tuple(one["tokens"]) for one in answers}) == 3
    assert result["stats"]["cached_tokens"] == 2 * cached
    whole = run_json(*asked("--completions", 3, "--seed", 5, "-n", 4, "--no-prefix-cache"))
    assert [one["tokens"] for one in whole["answers"]] == [one["tokens"] for one in answers]
    assert whole["stats"]["cached_tokens"] == 0


def test_what_is_shared_is_said() -> None:
    said = run(*asked("--completions", 2, "-n", 2, "--stats")).err
    assert re.search(r"answer 2 +prompt of \d+ tokens \(\d+ from the prefix cache\)", said)
    assert re.search(r"KV cache +\d+ tokens of prompts \(\d+%\) were taken from the prefix", said)


def test_a_chat_reads_what_is_new_and_its_stats_say_so() -> None:
    words = ["chat", str(talking().folder), *map(str, SHORT), "-sys", "Be brief.", "--seed", "1"]
    lines = "Which experts rest?\nAnd why?\n"
    result = CliRunner().invoke(app, [*words, "--json"], input=lines, catch_exceptions=False)
    turns: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines()]
    first = talking().tokenizer.apply_chat_template(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Which experts rest?"},
        ],
        add_generation_prompt=True,
        return_dict=False,
    )
    assert turns[0]["prompt_tokens"] == first
    assert turns[1]["cached_tokens"] >= len(first)
    read = len(turns[1]["prompt_tokens"]) - turns[1]["cached_tokens"]
    assert turns[1]["stats"]["prompt_tokens"] == len(first) + read
    said = CliRunner().invoke(app, words, input=f"{lines}/stats\n", catch_exceptions=False).stderr
    assert f"({turns[1]['cached_tokens']} from the prefix cache)" in said


def test_a_system_prompt_stands_before_the_users_message() -> None:
    (answer,) = run_json(*asked("--chat", "-sys", "Be brief.", "-n", 1))["answers"]
    text = talking().tokenizer.decode(answer["prompt_tokens"])
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")


MISTAKES = [
    (("-sys", "Be brief."), "add --chat, or leave it out"),
    (("--json-schema", '{"type": "objet"}'), "Invalid type: objet"),
    (("--json-schema", "absent.json"), "--json-schema 'absent.json': No such file"),
    (("--grammar", "absent.lark"), "--grammar 'absent.lark': No such file"),
    (("--regex", "a("), "unclosed group"),
    (
        ("--completions", 2, "--temperature", 0),
        "would all be the same: use a temperature above 0, or ask for one",
    ),
    (("--policies", "hybridmoe"), "Did you mean 'hybrimoe'?"),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES)
def test_mistakes_are_one_line(
    words: tuple[object, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert said in refused(monkeypatch, capsys, *asked(*words))


def test_the_old_name_of_policies_works_with_a_warning() -> None:
    small = ("simulate", "--tokens", 4, "--warmup", 1)
    old = run(*small, "--system", "hybrimoe", "--json")
    new = run(*small, "--policies", "hybrimoe", "--json")
    assert "warning: --system is called --policies now" in old.err
    assert "warning" not in new.err
    results = [json.loads(each.out) for each in (old, new)]
    for name in ("command", "policies", "tokens_per_s"):
        assert results[0][name] == results[1][name]
    assert results[0]["command"].endswith("--policies hybrimoe --json")
    assert results[0]["policies"]["cache"] == str(load_system("hybrimoe").policies.cache)
    assert "--system " not in run("run", "--help-all").out


def test_both_names_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["moesaic", "simulate", "--system", "a", "--policies", "b"])
    from moesaic.cli.main import main

    with pytest.raises(SystemExit):
        main()
    assert "its old name, were given: give --policies" in capsys.readouterr().err
