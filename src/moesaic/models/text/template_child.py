"""Renders one chat template in a process of its own, which may be ended at any time.

Templates are programs that come with a model. They run in a sandbox that can change nothing, with
the settings and helpers of the stock implementation, so that they write the same text. The
sandbox does not bound what a single operation takes ('a' * 10**10, a list that holds itself
doubled forty times): the limits of a process do.

Run as a script by `chat_template`: argument 1 is the import path as JSON, every line of stdin a
request, every line of stdout its answer. Imports nothing of the package: starting must be quick.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import datetime
from typing import Any, NoReturn, TextIO

if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[1])  # where the parent finds jinja2

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


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


def _limit_memory(size: int) -> None:
    """Limit the address space, where the system can: beyond the limit there is MemoryError."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):
        pass


def _compile(source: str) -> dict[str, Any] | jinja2.Template:
    """The template, or why it is none."""
    try:
        return _environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        return {"malformed": f"line {error.lineno}: {error.message}"}
    except MemoryError:
        return {"malformed": "compiling it takes too much memory"}
    except RecursionError:
        return {"malformed": "its expressions are nested too deep"}
    except SyntaxError as error:  # of the Python made from it: {% break %} outside of a loop
        return {"malformed": f"cannot be compiled: {error.msg}"}
    except Exception as error:  # whatever a program that is not ours may raise
        return {"malformed": f"cannot be compiled: {error or type(error).__name__}"}


def _render(template: jinja2.Template, variables: dict[str, Any], longest: int) -> dict[str, Any]:
    try:
        text = template.render(variables)
    except MemoryError:
        return {"refused": "it takes too much memory"}
    except RecursionError:
        return {"refused": "it calls itself too often"}
    except Exception as error:  # whatever a program that is not ours may raise
        return {"refused": (str(error) or type(error).__name__)[:2000]}
    if len(text) > longest:
        return {"refused": f"it writes {len(text)} characters, more than {longest}"}
    return {"text": text}


def _answer(line: str, template: dict[str, Any] | jinja2.Template) -> dict[str, Any]:
    if not isinstance(template, jinja2.Template):
        return template
    request = json.loads(line)
    return _render(template, request["variables"], request["longest"])


def _serve(requests: TextIO, answers: TextIO) -> None:
    settings = json.loads(requests.readline())
    _limit_memory(settings["memory_bytes"])
    template: dict[str, Any] | jinja2.Template | None = None
    for line in requests:
        # Processor time, so that a busy machine refuses nothing; its signal ends the process,
        # also in the middle of a call that Python cannot interrupt.
        signal.setitimer(signal.ITIMER_PROF, settings["seconds"])
        if template is None:
            template = _compile(settings["source"])
        answer = json.dumps(_answer(line, template))
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(answer + "\n")
        answers.flush()


def main() -> None:
    # Answers have a descriptor of their own; nothing else that is written can get among them.
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    with open(0, encoding="ascii", closefd=False) as requests:
        _serve(requests, answers)


if __name__ == "__main__":
    main()
