"""Does the replayed session send what an agent sends, and is its floor what has to be read?"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.agent_conversation import Continuation, Conversation, Script, Turn, shared
from benchmarks.agent_replay import Eviction, Kind, Replay, main
from benchmarks.agent_report import TurnTimes, summary
from tiny_shape import TINY

from benchmarks import agent_replay

SCRIPT = Script(system=40, turns=4, shortest=5, longest=20, answer=6)


class FakeSession:
    """Answers from a cache that keeps the last sequence, and notes what it was asked."""

    def __init__(self) -> None:
        self.options = {"vocabulary": 96}
        self.asked: list[tuple[list[int], list[int]]] = []
        self.evicted = 0
        self._kept: list[int] = []

    def answer(self, prompt: list[int], tokens: int, boundaries: Any = ()) -> dict[str, Any]:
        self.asked.append((list(prompt), list(boundaries)))
        cached = min(shared(prompt, self._kept), len(prompt) - 1)
        answer = [50 + number for number in range(tokens)]
        self._kept = [*prompt, *answer[:-1]]
        read = float(len(prompt) - cached)
        return {"ttft_ms": read, "cpu_ms": read, "cached": cached, "tokens": answer}

    def evict(self, eviction: Eviction, random: np.random.Generator) -> None:
        self.evicted += eviction.requests
        self._kept = []


def replayed(eviction: Eviction | None = None) -> tuple[FakeSession, list[TurnTimes]]:
    session, floor = FakeSession(), FakeSession()
    engines: Any = {"this": session}
    replay = Replay(SCRIPT, engines, floor, eviction, 1)  # type: ignore[arg-type]
    return session, [turn["this"] for turn in replay.run()]


def test_every_turn_sends_the_conversation_again() -> None:
    session, turns = replayed()
    prompts = [prompt for prompt, _ in session.asked]
    assert len(prompts) == SCRIPT.turns
    for (before, after), turn in zip(pairwise(prompts), turns[1:], strict=True):
        whole = shared(before, after) == len(before)
        assert whole != turn.edited


def test_the_middle_turn_changes_an_earlier_result() -> None:
    drawn = SCRIPT.draw()
    assert [turn.edited for turn in drawn] == [None, None, 1, None]
    _, turns = replayed()
    assert turns[2].known < turns[1].prompt
    assert turns[3].known > turns[2].prompt


def test_boundaries_are_the_ends_of_messages() -> None:
    talk = Conversation(SCRIPT, 96, 0)
    first = talk.prompt(Turn(7, 3))
    talk.answered(first, [9, 9, 9])
    second = talk.prompt(Turn(5, 3))
    assert first.boundaries == [45, 57]
    assert second.boundaries == [45, 57, 65, 75]
    assert len(second.tokens) == 75 + 3
    assert second.known == 57 + 3 + 2


def test_the_floor_reads_as_many_tokens_behind_as_long_a_context() -> None:
    """With times that are the tokens read, a cache of one sequence is as fast as the floor."""
    _, turns = replayed()
    assert [each.ratio for each in turns] == [1.0] * SCRIPT.turns
    assert [each.floor_cached for each in turns] == [each.known for each in turns]


def test_a_context_that_is_there_is_not_read_again() -> None:
    floor = Continuation(96, 0)
    assert len(floor.context(10)) == 10
    prompt = floor.prompt(5)
    floor.answered(prompt, [1, 2, 3])
    assert floor.context(17) == []
    assert len(floor.context(12)) == 12


def test_other_requests_push_the_conversation_out() -> None:
    session, turns = replayed(Eviction(3, 10))
    assert session.evicted == 3 * SCRIPT.turns
    assert all(each.cached == 0 for each in turns)
    assert all(each.ratio > 1 for each in turns[1:])
    found = summary([turns])
    assert found["found"] == 0
    assert found["ratio"] > 1


def test_a_session_fits_the_context_that_is_asked_for() -> None:
    session, _ = replayed()
    longest = max(len(prompt) for prompt, _ in session.asked)
    assert longest + SCRIPT.draw()[-1].answer <= SCRIPT.longest_context


def test_the_whole_command_measures_in_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conversation is pushed out between turns; what the floor continues is not."""
    config, out = tmp_path / "config.json", tmp_path / "out.json"
    config.write_text(json.dumps(TINY))
    monkeypatch.setattr(agent_replay, "KINDS", {"tiny": Kind(str(config), 2, expert_dtype="bf16")})
    main(["--models", "tiny", "--system-tokens", "60", "--turns", "3", "--results", "8,20",
          "--answer", "4", "--rounds", "1", "--accelerator", "none", "--max-sequences", "2",
          "--evict", "6,100", "--json", str(out)])  # fmt: skip
    rows = json.loads(out.read_text())["kinds"]["tiny"]["turns"]["this"]
    assert [row["floor_cached"] == row["known"] for row in rows] == [True] * 3
    assert all(row["ttft_ms"] > 0 for row in rows)
    assert sum(row["cached"] for row in rows) < sum(row["known"] for row in rows)
