"""The published clients of three APIs as one agent: it asks, gets calls of tools, sends their
results, and keeps the conversation as each client hands it out."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, NamedTuple, Protocol

import anthropic
import openai

SYSTEM = "You are an agent. Look before you answer, and say what you have seen."
PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string", "description": "A file."}},
    "required": ["path"],
}
LOOK = {"name": "look", "description": "Read a file.", "parameters": PARAMETERS}


@cache  # making one reads the system's certificates
def openai_client(address: str) -> Any:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="-", max_retries=0)


@cache
def anthropic_client(address: str) -> Any:
    return anthropic.Anthropic(base_url=address, api_key="-", max_retries=0)


class Call(NamedTuple):
    id: str
    name: str
    arguments: dict[str, Any]


class Turn(NamedTuple):
    text: str
    thought: str
    calls: list[Call]
    prompt_tokens: int
    cached_tokens: int


class Agent(Protocol):
    def user(self, text: str) -> None: ...

    def result(self, call: Call, text: str) -> None: ...

    def ask(self) -> Turn: ...


class ChatAgent:
    def __init__(self, address: str, model: str) -> None:
        self._client = openai_client(address)
        self._model = model
        self._messages: list[Any] = [{"role": "system", "content": SYSTEM}]

    def user(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})

    def result(self, call: Call, text: str) -> None:
        self._messages.append({"role": "tool", "tool_call_id": call.id, "content": text})

    def ask(self) -> Turn:
        tools = [{"type": "function", "function": LOOK}]
        answer = self._client.chat.completions.create(
            model=self._model, messages=self._messages, tools=tools
        )
        message, usage = answer.choices[0].message, answer.usage
        self._messages.append(message.model_dump(exclude_none=True))
        calls = [
            Call(each.id, each.function.name, json.loads(each.function.arguments))
            for each in message.tool_calls or []
        ]
        cached = usage.prompt_tokens_details.cached_tokens
        thought = getattr(message, "reasoning_content", None) or ""
        return Turn(message.content or "", thought, calls, usage.prompt_tokens, cached)


class ResponsesAgent:
    def __init__(self, address: str, model: str) -> None:
        self._client = openai_client(address)
        self._model = model
        self._items: list[Any] = []

    def user(self, text: str) -> None:
        self._items.append({"role": "user", "content": text})

    def result(self, call: Call, text: str) -> None:
        item = {"type": "function_call_output", "call_id": call.id, "output": text}
        self._items.append(item)

    def ask(self) -> Turn:
        answer = self._client.responses.create(
            model=self._model,
            instructions=SYSTEM,
            input=self._items,
            tools=[{"type": "function", "strict": False, **LOOK}],
            store=False,
        )
        self._items += [each.model_dump(exclude_none=True) for each in answer.output]
        kinds: dict[str, list[Any]] = {"reasoning": [], "function_call": [], "message": []}
        for item in answer.output:
            kinds[item.type].append(item)
        calls = [
            Call(each.call_id, each.name, json.loads(each.arguments))
            for each in kinds["function_call"]
        ]
        thought = "".join(part.text for each in kinds["reasoning"] for part in each.content)
        usage = answer.usage
        cached = usage.input_tokens_details.cached_tokens
        return Turn(answer.output_text, thought, calls, usage.input_tokens, cached)


class MessagesAgent:
    def __init__(self, address: str, model: str) -> None:
        self._client = anthropic_client(address)
        self._model = model
        self._messages: list[Any] = []

    def user(self, text: str) -> None:
        self._add({"type": "text", "text": text})

    def result(self, call: Call, text: str) -> None:
        self._add({"type": "tool_result", "tool_use_id": call.id, "content": text})

    def ask(self) -> Turn:
        tools = [{"name": "look", "description": LOOK["description"], "input_schema": PARAMETERS}]
        answer = self._client.messages.create(
            model=self._model,
            system=SYSTEM,
            messages=self._messages,
            tools=tools,
            max_tokens=500,
        )
        blocks = [each.model_dump(exclude_none=True) for each in answer.content]
        self._messages.append({"role": "assistant", "content": blocks})
        calls = [
            Call(each.id, each.name, each.input)
            for each in answer.content
            if each.type == "tool_use"
        ]
        text = "".join(each.text for each in answer.content if each.type == "text")
        thought = "".join(each.thinking for each in answer.content if each.type == "thinking")
        cached = answer.usage.cache_read_input_tokens
        return Turn(text, thought, calls, answer.usage.input_tokens + cached, cached)

    def _add(self, block: dict[str, Any]) -> None:
        if not self._messages or self._messages[-1]["role"] != "user":
            self._messages.append({"role": "user", "content": []})
        self._messages[-1]["content"].append(block)


AGENTS: dict[str, type[ChatAgent] | type[ResponsesAgent] | type[MessagesAgent]] = {
    "chat": ChatAgent,
    "responses": ResponsesAgent,
    "messages": MessagesAgent,
}
