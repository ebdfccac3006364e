"""What the text of an answer must be, as requests say it: in fields of the published API, of this
server, and of others."""

from __future__ import annotations

import json
from typing import Any

from moesaic.serve.api_error import impossible
from moesaic.serve.schemas import ResponseFormat, Sampling, StructuredOutputs

_ANY_JSON_OBJECT = '{"type": "object"}'


def text_form(request: Sampling) -> dict[str, Any]:
    """The field of `SamplingParams` that says the same; none, where any text will do."""
    several = request.structured_outputs or StructuredOutputs()
    ways = {
        "response_format": _of_response(request.response_format),
        "grammar": _of("grammar", request.grammar),
        "regex": _of("regex", request.regex),
        "guided_json": _of("json_schema", request.guided_json),
        "guided_grammar": _of("grammar", request.guided_grammar),
        "guided_regex": _of("regex", request.guided_regex),
        "guided_choice": _of_choice("guided_choice", request.guided_choice),
        "structured_outputs.json": _of("json_schema", several.json),
        "structured_outputs.grammar": _of("grammar", several.grammar),
        "structured_outputs.regex": _of("regex", several.regex),
        "structured_outputs.choice": _of_choice("structured_outputs.choice", several.choice),
    }
    given = [name for name, form in ways.items() if form]
    if len(given) > 1:
        raise impossible(
            f"{given[0]} and {given[1]} were given, and a text has one form: leave out one of the "
            "two",
            given[1],
        )
    return ways[given[0]] if given else {}


def _of(kind: str, value: str | dict[str, Any] | None) -> dict[str, Any]:
    return {} if value is None else {kind: value}


def _of_choice(name: str, choice: list[str] | None) -> dict[str, Any]:
    if choice is None:
        return {}
    if not all(choice):
        raise impossible(f"{name} has an empty text: leave it out", name)
    if not choice:
        raise impossible(f"{name} is empty: give the texts that are possible", name)
    texts = " | ".join(json.dumps(each, ensure_ascii=False) for each in choice)
    return {"grammar": f"start: {texts}"}


def _of_response(wanted: ResponseFormat | None) -> dict[str, Any]:
    if wanted is None:
        return {}
    match wanted.type:
        case "text":
            return {}
        case "json_object":
            return {"json_schema": _ANY_JSON_OBJECT}
        case "json_schema" if wanted.json_schema is not None:
            if wanted.json_schema.schema is None:
                raise impossible("response_format has no json_schema.schema", "response_format")
            return {"json_schema": wanted.json_schema.schema}
        case "json_schema":
            raise impossible(
                "response_format is of type json_schema and has no json_schema: give it one, as "
                '{"type": "json_schema", "json_schema": {"name": "answer", "schema": {...}}}',
                "response_format",
            )
    raise impossible(
        f"response_format has the type {wanted.type!r}; possible are text, json_object and "
        "json_schema",
        "response_format",
    )
