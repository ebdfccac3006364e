"""Are demanded calls those that were demanded, and valid by their schemas, in every API, with
reasoning that the prompt has opened and without, however the model would rather answer?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal
from urllib.error import HTTPError

import pytest
from family_templates import answer
from free_engine import FreeEngine
from pydantic import BaseModel, ConfigDict
from scripted import ScriptedServer, scripted_server
from servers import posted
from three_apis import NAMES, Said, api, streamed, whole


class Strict(BaseModel):
    """As the published client writes strict schemas: all fields are there, and no others."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Place(Strict):
    kind: Literal["city", "village"]
    name: str


class Look(Strict):
    place: Place
    often: bool
    times: list[int]
    note: str | None


class Count(Strict):
    what: Literal["pens", "apples"]
    more: int


MODELS: dict[str, type[Strict]] = {"look": Look, "count": Count}
FUNCTIONS: list[dict[str, Any]] = [
    {"name": name, "parameters": model.model_json_schema()} for name, model in MODELS.items()
]
# In the words of each API: a call of some tool, a call of one tool, and of some tools.
ANY = {"chat": "required", "responses": "required", "messages": {"type": "any"}}
COUNT = {
    "chat": {"type": "function", "function": {"name": "count"}},
    "responses": {"type": "function", "name": "count"},
    "messages": {"type": "tool", "name": "count"},
}
_ALLOWED: dict[str, Any] = {
    "mode": "required",
    "tools": [{"type": "function", "function": {"name": "count"}}],
}
ALLOWED: dict[str, Any] = {
    "chat": {"type": "allowed_tools", "allowed_tools": _ALLOWED},
    "responses": {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "web_search"}, {"type": "function", "name": "count"}],
    },
}
FAMILIES = ("qwen3", "qwen3.5", "harmony", "deepseek", "mistral")
# What the model would write: reasoning where it has some, and no call.
UNWILLING = ("Nothing.", 'I think <b> that "this" {is} it.</think>\n\nNo call.', "")


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def free(family: str) -> Iterator[ScriptedServer]:
    with scripted_server(family, kind=FreeEngine) as made:
        yield made


def single(name: str, choice: Any) -> dict[str, Any]:
    """The options that allow one call."""
    if name == "messages":
        return {"tool_choice": choice | {"disable_parallel_tool_use": True}}
    return {"tool_choice": choice, "parallel_tool_calls": False}


def ask(made: ScriptedServer, name: str, **options: Any) -> tuple[Said, Said]:
    """Whole and in a stream, which are two answers of a model that is left to chance."""
    asked = api(name, FUNCTIONS, **options)
    url = f"{made.address}{asked.path}"
    return whole(name, posted(url, asked.asked)), streamed(
        name, posted(url, {**asked.asked, "stream": True})
    )


def check(said: Said, names: tuple[str, ...]) -> None:
    assert said.text == ""
    assert said.calls
    for name, arguments in said.calls:
        assert name in names
        MODELS[name].model_validate_json(arguments)


@pytest.mark.parametrize("script", UNWILLING)
@pytest.mark.parametrize("name", NAMES)
def test_calls_are_made_and_valid(free: ScriptedServer, name: str, script: str) -> None:
    free.engine.script = lambda prompt: script
    for said in ask(free, name, tool_choice=ANY[name]):
        check(said, ("look", "count"))
    for said in ask(free, name, **single(name, ANY[name])):
        check(said, ("look", "count"))
        assert len(said.calls) == 1
    for said in ask(free, name, tool_choice=COUNT[name]):
        check(said, ("count",))
        assert len(said.calls) == 1


@pytest.mark.parametrize("name", ALLOWED)
def test_a_call_of_those_that_are_allowed(free: ScriptedServer, name: str) -> None:
    free.engine.script = lambda prompt: ""
    free.forget()
    for said in ask(free, name, tool_choice=ALLOWED[name]):
        check(said, ("count",))
    for exchange in free.engine.exchanges:
        prompt = free.tokenizer.decode(exchange.prompt, skip_special=False)
        assert "village" in prompt, "the prompt is that of all tools, which may be in the cache"


def test_thoughts_before_a_demanded_call_are_kept(free: ScriptedServer, family: str) -> None:
    if family not in ("qwen3", "qwen3.5", "harmony"):
        pytest.skip("this family's template knows no thoughts")
    thought = 'One "look" <b>.'
    free.engine.script = lambda prompt: answer(family, thought, "Never.")
    for name in NAMES:
        for said in ask(free, name, **single(name, ANY[name])):
            check(said, ("look", "count"))
            assert said.thought == thought


@pytest.mark.parametrize("name", NAMES)
def test_one_call_of_several_that_the_model_wrote(
    free: ScriptedServer, family: str, name: str
) -> None:
    """Where it may decide whether it calls, no grammar limits it."""
    calls = [("count", {"what": "pens", "more": 1}), ("count", {"what": "apples", "more": 2})]
    free.engine.script = lambda prompt: answer(family, "Now.", "", *calls)
    auto: Any = {"type": "auto"} if name == "messages" else "auto"
    for said in ask(free, name, **single(name, auto)):
        (call,) = said.calls
        assert "pens" in call[1]
        assert said.text == ""


@pytest.mark.parametrize("name", ALLOWED)
def test_where_the_model_decides_it_is_offered_the_allowed_tools_alone(
    free: ScriptedServer, name: str
) -> None:
    free.engine.script = lambda prompt: "Nothing."
    free.forget()
    choice: Any = ALLOWED[name]
    inner: Any = (
        {"mode": "auto"} if name == "responses" else {"allowed_tools": _ALLOWED | {"mode": "auto"}}
    )
    ask(free, name, tool_choice=choice | inner)
    for exchange in free.engine.exchanges:
        prompt = free.tokenizer.decode(exchange.prompt, skip_special=False)
        assert "village" not in prompt
        assert "apples" in prompt


_HOSTED: Any = [{"type": "web_search", "name": "web_search"}]
_UNKNOWN = {"mode": "required", "tools": [{"type": "function", "function": {"name": "find"}}]}


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("responses", {"tools": _HOSTED, "tool_choice": "required"}, "there are no tools"),
        ("messages", {"tools": _HOSTED, "tool_choice": {"type": "any"}}, "there are no tools"),
        ("responses", {"tool_choice": {"type": "web_search"}}, "allowed_tools with a mode"),
        ("responses", {"tool_choice": {**ALLOWED["responses"], "mode": "x"}}, "possible are none"),
        ("chat", {"tool_choice": {"type": "allowed_tools", "allowed_tools": _UNKNOWN}}, "find"),
        ("chat", {"tool_choice": {"type": "allowed_tools"}}, "possible are none"),
    ],
)
def test_demands_that_cannot_be_met_are_refused(
    free: ScriptedServer, name: str, options: dict[str, Any], words: str
) -> None:
    asked = api(name, FUNCTIONS, **options)
    with pytest.raises(HTTPError) as refusal:
        posted(f"{free.address}{asked.path}", asked.asked)
    assert refusal.value.code == 400
    assert words in refusal.value.read().decode()
