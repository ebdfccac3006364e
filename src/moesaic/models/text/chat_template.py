"""A model's chat template: a conversation in, the prompt the model was trained on out.

Templates are programs that come with a model. They run in a process of their own with limits on
time, memory and output (`template_child`), which is started when a template is first used and
kept: a request is one line through a pipe.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import finalize

from moesaic.core.errors import BadTokenizer, ImpossibleSetting, printable

_CHILD = Path(__file__).with_name("template_child.py")


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """The limits of one rendering."""

    seconds: float = 5.0  # of one processor
    memory_bytes: int = 1 << 30  # of addresses
    characters: int = 1 << 24  # written, beyond twice the conversation


class ChatTemplate:
    def __init__(
        self,
        source: str,
        path: Path,
        variables: Mapping[str, str],
        limits: TemplateLimits | None = None,
    ) -> None:
        """`variables` are the special tokens' texts by name; `path` is named in messages."""
        self._source = source
        self._path = path
        self._variables = dict(variables)
        self._limits = limits or TemplateLimits()
        self._process: _Process | None = None
        self._lock = Lock()

    @property
    def source(self) -> str:
        return self._source

    def has_word(self, word: str) -> bool:
        return word in self._source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """`variables` come before those that every conversation has, but for the messages."""
        if not messages:
            raise ImpossibleSetting("a conversation needs at least one message, this one has none.")
        answer = self._ask(self._request(messages, add_generation_prompt, variables or {}))
        if "malformed" in answer:
            raise BadTokenizer(self._path, "chat_template", str(answer["malformed"]))
        if "refused" in answer:
            what = printable(str(answer["refused"]))
            raise ImpossibleSetting(f"the model's chat template refuses this conversation: {what}")
        return str(answer["text"])

    def _request(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        given = {
            **self._variables,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **variables,
            "messages": [dict(message) for message in messages],
        }
        try:
            text = json.dumps(given)
        except (TypeError, ValueError, RecursionError) as error:
            raise ImpossibleSetting(
                f"a conversation consists of texts, lists and tables of them: {error}"
            ) from None
        longest = self._limits.characters + 2 * len(text)
        return f'{{"longest": {longest}, "variables": {text}}}'

    def _ask(self, request: str) -> Mapping[str, Any]:
        """One request at a time: an answer belongs to the request before it."""
        with self._lock:
            if self._process is None:
                self._process = _Process(self._source, self._limits)
            try:
                answer = self._process.ask(request)
            except BaseException:  # an interrupted request leaves its answer in the pipe
                self._process.end()
                self._process = None
                raise
            if answer is None:
                status, self._process = self._process.end(), None
                return {"refused": _why_ended(status, self._limits)}
            return answer


class _Process:
    """The child process of one template."""

    def __init__(self, source: str, limits: TemplateLimits) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(_CHILD), json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us
        )
        self._end = finalize(self, _end, self._process)
        settings = {
            "source": source,
            "seconds": limits.seconds,
            "memory_bytes": limits.memory_bytes,
        }
        self._settings: str | None = json.dumps(settings)

    def ask(self, request: str) -> Mapping[str, Any] | None:
        """None: the process has ended instead of answering."""
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None, "it is a pipe"
        assert answers is not None, "it is a pipe"
        lines = request if self._settings is None else f"{self._settings}\n{request}"
        self._settings = None
        try:
            requests.write(f"{lines}\n".encode("ascii"))
            requests.flush()
        except BrokenPipeError:
            return None
        line = answers.readline()
        if not line.endswith(b"\n"):
            return None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> int:
        """Its exit status; negative for the signal that ended it."""
        self._end()
        return self._process.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # what has ended already keeps its own status
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # what it has not read goes with it
            if pipe is not None:
                pipe.close()
    process.wait()


def _why_ended(status: int, limits: TemplateLimits) -> str:
    if status == -signal.SIGPROF:
        return f"it takes more than {limits.seconds:g} s"
    if status < 0:
        return f"its process was ended by {signal.Signals(-status).name}"
    return f"its process ended with status {status}"
