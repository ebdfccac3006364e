"""A model's chat template: a conversation in, the prompt the model was trained on out.

Templates are programs that come with a model. They run in a sandbox that can change nothing, with
the settings and helpers of the stock implementation, so that they write the same text here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from moesaic.core.errors import BadTokenizer, ImpossibleSetting


class ChatTemplate:
    def __init__(self, source: str, path: Path, variables: Mapping[str, str]) -> None:
        """`variables` are the special tokens' texts by name; `path` is named in messages."""
        self._source = source
        self._path = path
        self._variables = dict(variables)

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        if not messages:
            raise ImpossibleSetting("a conversation needs at least one message, this one has none.")
        given = {
            **self._variables,
            "messages": [dict(message) for message in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        template = self._template
        try:
            return template.render(given)
        except Exception as error:  # whatever a program that is not ours may raise
            what = str(error) or type(error).__name__
            raise ImpossibleSetting(
                f"the model's chat template refuses this conversation: {what}"
            ) from None

    @cached_property
    def _template(self) -> jinja2.Template:
        """Compiled when first used: a broken one is no obstacle to a plain prompt."""
        try:
            return _environment().from_string(self._source)
        except jinja2.TemplateSyntaxError as error:
            what = f"line {error.lineno}: {error.message}"
            raise BadTokenizer(self._path, "chat_template", what) from None


class _Generation(Extension):
    """`{% generation %}`: marks the assistant's words for training; text like any other here."""

    tags = {"generation"}  # noqa: RUF012 (the base class has it as a plain set)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Namespace(Namespace):
    """`namespace()` without hidden names, which could pass one kind of object off as another."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        for name in dict(*args, **kwargs):
            _refuse_hidden(name)
        super().__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_hidden(name)
        super().__setitem__(name, value)


def _refuse_hidden(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["namespace"] = _Namespace
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: the filter of the same name in jinja2 escapes for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
