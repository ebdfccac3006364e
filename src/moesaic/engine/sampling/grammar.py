"""What a request's text must look like: a JSON schema, a grammar or a regular expression, in the
words of llguidance, which says at every token what may follow. Needs no model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from moesaic.core.errors import ImpossibleSetting, MissingExtra, printable
from moesaic.engine.sampling.closed_schema import close_objects

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_MAX_TEXT = 1 << 20  # characters of a schema, a grammar or an expression
# JSON as `json.dumps` writes it: were any white space allowed, a model could write it for ever.
_JSON: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def schema_text(schema: object) -> str:
    """A schema as JSON text, whether it was given as text or as a mapping."""
    text = schema
    if isinstance(schema, Mapping):
        try:
            text = json.dumps(dict(schema), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ImpossibleSetting(f"json_schema is not JSON: {error}") from None
    if not isinstance(text, str):
        raise ImpossibleSetting(
            f"json_schema is {schema!r:.60}; it must be a schema as a mapping or as JSON text"
        )
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ImpossibleSetting(f"json_schema is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ImpossibleSetting(
            f"json_schema is {text[:60]}; it must be an object, as in "
            '{"type": "object", "properties": {"name": {"type": "string"}}}'
        )
    return text


def compiled(kind: str, text: object) -> str:
    """A `json_schema`, `grammar` or `regex` in llguidance's own form; what is wrong with it is
    said as that kind's mistake."""
    if not isinstance(text, str) or not text:
        raise ImpossibleSetting(f"{kind} is {text!r:.60}; it must be a text that is not empty")
    if len(text) > _MAX_TEXT:
        raise ImpossibleSetting(f"{kind} has {len(text)} characters; at most {_MAX_TEXT} are read")
    if find_spec("llguidance") is None:
        raise MissingExtra(f"{kind}, a constraint on the text,", "engine")
    try:
        form = _form(kind, text)
    except ValueError as error:  # half a surrogate pair, or numbers that JSON has not
        raise _mistake(kind, printable(str(error))) from None
    _check_compilable(kind, form)
    return form


def _check_compilable(kind: str, form: str) -> None:
    """The Rust code of llguidance panics on some expressions. Its validation lets the panic out,
    and Rust prints it on standard error; making a matcher catches it, so that comes first."""
    from llguidance import LLMatcher

    if LLMatcher(_byte_tokenizer(), form, log_level=0).get_error().startswith("panic:"):
        raise _mistake(kind, "llguidance fails on this combination: write it in another way")
    failed, messages = LLMatcher.validate_grammar_with_warnings(form)
    if failed:
        raise _mistake(kind, messages[0])


@cache
def _byte_tokenizer() -> LLTokenizer:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")  # a token for every byte: there is no model yet


def _form(kind: str, text: str) -> str:
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    if kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(_closed(text), overrides=_JSON)
    if kind == "regex":
        return LLMatcher.grammar_from_regex(text)
    try:
        return LLMatcher.grammar_from_lark(any_to_lark(text))
    except RecursionError:
        raise _mistake(kind, "it is nested too deeply") from None
    except Exception as error:  # its parser of GBNF raises Exception itself
        raise _mistake(kind, str(error)) from None


def _closed(schema: str) -> str:
    """Objects have no properties but the named ones, unless the schema says otherwise."""
    parsed = json.loads(schema)
    return json.dumps(parsed) if close_objects(parsed) else schema


def _mistake(kind: str, why: str) -> ImpossibleSetting:
    forms = {
        "json_schema": "see https://json-schema.org; not all of it can be demanded of a model",
        "grammar": "it is read as Lark (`start: ...`), or as GBNF (`root ::= ...`)",
        "regex": "it is read as Rust's regex does, without look-around and back references",
    }
    return ImpossibleSetting(f"{kind}: {' '.join(why.split())}; {forms[kind]}")
