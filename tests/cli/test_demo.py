"""Does the demo show and write what it says, all of it real?"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from command import refused, run

from moesaic.cli.command_line import app
from moesaic.cli.run import demo, demo_runs, demo_simulations
from moesaic.cli.run.demo_runs import ENTRIES, entries_here, refused_here
from moesaic.lab.against import ours, stock_transformers
from moesaic.models.bundled_model import NAME, default_model
from moesaic.policies.systems import SYSTEMS
from moesaic.workloads.source import open_trace

ANSWER = 10  # tokens: enough to be drawn, recorded and replayed


class Shown(NamedTuple):
    text: str
    out: Path

    def commands(self) -> list[list[str]]:
        lines = (line.strip() for line in self.text.splitlines())
        return [shlex.split(line) for line in lines if line.startswith("moesaic ")]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """A whole demo, with short answers."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("new") / "my demo" / "out"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(demo_runs, "ANSWER_TOKENS", ANSWER)
        patched.setattr(demo_runs, "REPEATS", 1)
        patched.setattr(demo_runs, "STOCK_CASES", ((8,), (4,)))
        patched.setattr(demo_runs, "STOCK_ROUNDS", 1)
        for module in (ours, stock_transformers):  # starting other processes takes long
            patched.setattr(module, "in_own_process", lambda name, work, *given, **_: work(*given))
        patched.setattr(demo_simulations, "RATIOS", (0.25,))
        return Shown(run("demo", "--out", out, "--tokens", 8).out, out)


def test_it_says_what_the_model_is(shown: Shown) -> None:
    layers = json.loads((default_model() / "config.json").read_text())["num_hidden_layers"]
    output = rf"{NAME} comes with the package: [\d.]+ million weights, {layers} layers of"
    assert re.match(output, shown.text)


def test_its_answer_is_what_its_command_says(shown: Shown) -> None:
    command = shown.commands()[0]
    assert command[1:3] == ["run", "-p"]
    assert f"\n{command[3]}\n{run(*command[1:]).out}" in shown.text


def test_it_tells_what_the_answer_cost(shown: Shown) -> None:
    assert re.search(r"^prompt +\d+ tokens, first token after [\d.]+ m?s", shown.text, re.M)
    assert re.search(rf"^answer +{ANSWER} tokens, [\d.]+ tokens/s", shown.text, re.M)
    assert "found in the accelerator" not in shown.text.partition("stock transformers")[0]


def test_first_it_shows_what_a_person_without_a_gpu_gains(shown: Shown) -> None:
    before, _, after = shown.text.partition("The same model in stock transformers")
    table = after.partition("What if a device")[0]
    assert "emulated" not in before
    rows = re.findall(r"│ (pp8|tg4) +│ (\w+) +│ +([\d.]+) .*", table)
    assert [row[:2] for row in rows] == [
        (test, name) for test in ("pp8", "tg4") for name in ("moesaic", "transformers")
    ]
    assert all(float(row[2]) > 0 for row in rows)
    assert "Now bytes decide" in after


def test_it_says_why_before_small_experts_are_compared(shown: Shown) -> None:
    """On experts of 98 KB policies that decide more are slower, which says nothing about them."""
    why, _, table = shown.text.partition("Emulated accelerator:")
    assert "an expert of this model has 98 KB" in why
    assert "the fastest policy is the one that decides least" in " ".join(why.split())
    assert "moesaic+mrs" in table


def test_where_transformers_is_missing_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "pip install" in demo._NO_STOCK
    monkeypatch.setattr(demo, "find_spec", lambda package: package != "transformers" or None)
    demo._check_packages()


def test_all_policies_write_the_same_text_here_and_are_simulated(shown: Shown) -> None:
    emulated = shown.text.partition("Emulated accelerator:")[2]
    for label, _ in entries_here():
        real, *simulated = re.findall(rf"│ {re.escape(label)} +│ .*", emulated)
        assert real.split("│")[-3].strip() == "yes"
        assert len(simulated) == (label in SYSTEMS)
    assert "All answers are identical" in shown.text


def test_a_system_that_cannot_run_here_is_named_and_simulated(shown: Shown) -> None:
    assert list(refused_here()) == ["llama.cpp"]
    assert {label for label, _ in ENTRIES} - {label for label, _ in entries_here()} == {"llama.cpp"}
    assert "\nllama.cpp is not among them: schedule 'static-layers'" in shown.text
    assert len(re.findall(r"│ llama\.cpp +│ .*", shown.text)) == 1


def test_another_text_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_runs, "entries_here", lambda: ENTRIES[:1])
    monkeypatch.setattr(demo_runs, "ANSWER_TOKENS", 2)
    answer = demo_runs.emulated_answer(demo_runs.first_answer("Which day follows?").prompt_tokens)
    monkeypatch.setattr(demo_runs, "ANSWER_TOKENS", 3)
    assert not demo_runs.compare_here(answer)
    assert "│ no" in capsys.readouterr().out


def test_it_tells_how_many_answers_are_right(shown: Shown) -> None:
    found = re.search(r"^(\d+) more questions, .*: (\d+) answers are right", shown.text, re.M)
    assert found is not None
    assert 0 <= int(found[2]) <= int(found[1]) == demo_runs.QUESTIONS


def test_it_writes_routing_two_pictures_and_a_trace(shown: Shown) -> None:
    names = {"routing.moet", "compare.png", "timeline.png", "trace.json"}
    assert {path.name for path in shown.out.iterdir()} == names
    assert (shown.out / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert (shown.out / "timeline.png").read_bytes().startswith(b"\x89PNG")
    header = open_trace(shown.out / "routing.moet").header
    assert not header.synthetic


def test_the_trace_is_of_the_answers_steps(shown: Shown) -> None:
    events = json.loads((shown.out / "trace.json").read_text())["traceEvents"]
    process = next(event for event in events if event["name"] == "process_name")
    assert process["args"]["name"].startswith(f"{NAME} on ")
    assert process["args"]["name"].endswith("decode (measured, own routing)")
    steps = [event for event in events if event.get("cat") == "step"]
    assert len(steps) == ANSWER


def test_what_to_try_next_can_be_typed(shown: Shown) -> None:
    """Verbs and options exist; that they work is their own tests' business."""
    commands = []
    for _, name, *options in shown.commands()[1:]:
        command = app.get_command(app.make_context("moesaic", [name]), name)
        assert command is not None
        command.make_context(name, options)
        commands.append(name)
    assert commands[:2] == ["run", "chat"]


def test_the_recorded_routing_can_be_simulated_as_it_says(shown: Shown, tmp_path: Path) -> None:
    words = next(words for words in shown.commands() if words[1] == "simulate")
    assert Path(words[words.index("--trace") + 1]) == shown.out / "routing.moet"
    words[words.index("--timeline") + 1] = str(tmp_path / "step.png")
    assert NAME in run(*words[1:]).out


def test_it_refuses_what_cannot_be_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert "tokens is 0" in refused(monkeypatch, capsys, "demo", "--out", out, "--tokens", 0)
    assert not out.exists()


def test_it_refuses_a_file_as_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    assert "is a file" in refused(monkeypatch, capsys, "demo", "--out", taken)


def test_it_names_the_packages_it_misses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda package: package != "matplotlib" or None)
    assert "moesaic[plot]" in refused(monkeypatch, capsys, "demo")
