"""Does each turn of an agent's conversation begin with what the turn before left in the KV cache,
in every API and under the templates of several families?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from agent_clients import AGENTS, Agent, Turn
from family_templates import FAMILIES, answer
from scripted import NAME, ScriptedServer, scripted_server

BLOCK = 16  # tokens
FILES = ("a.txt", "b/ü.txt", "c 1.txt")
# Families whose templates write an answer as the model wrote it, thoughts included, until the user
# asks again; those that still do then.
WHOLE = ("qwen3", "qwen3.5", "mistral")
WHOLE_LATER = ("qwen3.5", "mistral")


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def scripted(family: str) -> Iterator[ScriptedServer]:
    with scripted_server(family) as made:
        yield made


def shared_tokens(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def run(scripted: ScriptedServer, family: str, agent: Agent) -> list[Turn]:
    """Three calls, an answer, another question."""
    calls = [
        answer(family, f"Now {name}.", "" if number else "I look.", ("look", {"path": name}))
        for number, name in enumerate(FILES)
    ]
    said = answer(family, "Seen.", "There are three files.")
    scripted.answer(*calls, said, answer(family, "Count.", "Yes, three."))
    agent.user("What is in my files?")
    turns = []
    for name in FILES:
        turns.append(turn := agent.ask())
        (call,) = turn.calls
        assert (call.name, call.arguments) == ("look", {"path": name})
        agent.result(call, f"The file {name} has {len(name)} lines.\n" * 4)
    turns.append(agent.ask())
    agent.user("Are you sure?")
    turns.append(agent.ask())
    assert [turn.text for turn in turns[3:]] == ["There are three files.", "Yes, three."]
    return turns


@pytest.mark.parametrize("api", AGENTS)
def test_a_turn_begins_with_the_turn_before(
    scripted: ScriptedServer, family: str, api: str
) -> None:
    scripted.forget()
    turns = run(scripted, family, AGENTS[api](scripted.address, NAME))
    exchanges = scripted.engine.exchanges
    for number, (before, after) in enumerate(pairwise(exchanges)):
        asks_again = number == len(FILES)
        whole = family in (WHOLE_LATER if asks_again else WHOLE)
        expected = [*before.prompt, *before.answer] if whole else before.prompt[:-1]
        if family == "qwen3" and asks_again:  # thoughts end with the question they belong to
            expected = exchanges[0].prompt
        shared = shared_tokens(after.prompt, [*before.prompt, *before.answer])
        assert shared >= len(expected), (number, len(before.prompt))
        assert turns[number + 1].cached_tokens > shared - BLOCK
