"""How the server is to run: checked when made, frozen afterwards."""

from __future__ import annotations

import hmac
import math
from dataclasses import dataclass

from moesaic.core.errors import ImpossibleSetting
from moesaic.serve.formats.registry import reasoning_form, tool_format
from moesaic.serve.request_record import LogFormat

_MOST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class ServerSettings:
    host: str = "127.0.0.1"
    port: int = 8000  # 0: a free one
    api_keys: tuple[str, ...] = ()  # any of them opens the server; none: it is open
    model_names: tuple[str, ...] = ()  # by which clients name the model; the first is reported
    cors: tuple[str, ...] = ()  # origins whose pages may ask
    max_body_mb: float = 32.0  # 10^6 bytes
    max_prompt_tokens: int | None = None  # None: what the context allows
    max_queue: int = 512  # requests that may wait beyond those that run
    keep_alive_s: float = 10.0  # of silence in a stream, before a comment is sent
    drain_s: float = 30.0  # for running requests, when the server is to end
    timeout_s: float | None = None  # for an answer, waiting included; None: any time
    receive_s: float = 60.0  # for a request to arrive: its headers, and then its body
    max_connections: int = 1024  # at once
    idle_unload_s: float | None = None  # without requests, then the engine ends; None: never
    log: LogFormat = "text"
    page: bool = True  # at /, for browsers
    tool_format: str | None = None  # None: as the model's chat template says
    reasoning_format: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= _MOST_PORT:
            raise ImpossibleSetting(
                f"--port is {self.port}; it must lie between 0 and {_MOST_PORT} (0: a free port)"
            )
        for option, value in (
            ("--max-body-mb", self.max_body_mb),
            ("--keep-alive-s", self.keep_alive_s),
            ("--timeout", self.timeout_s),
            ("--receive-timeout", self.receive_s),
            ("--idle-unload", self.idle_unload_s),
        ):
            if value is not None and not 0 < value < math.inf:
                raise ImpossibleSetting(f"{option} is {value:g}; it must be above 0")
        if not 0 <= self.drain_s < math.inf:
            raise ImpossibleSetting(
                f"--drain is {self.drain_s:g}; it must be a number of seconds from 0"
            )
        if self.max_prompt_tokens is not None and self.max_prompt_tokens < 1:
            raise ImpossibleSetting(
                f"--max-prompt-tokens is {self.max_prompt_tokens}; it must be at least 1"
            )
        if self.max_connections < 1:
            raise ImpossibleSetting(
                f"--max-connections is {self.max_connections}; it must be at least 1"
            )
        if self.max_queue < 0:
            raise ImpossibleSetting(f"--max-queue is {self.max_queue}; it must be at least 0")
        if self.tool_format is not None:
            tool_format(self.tool_format)
        if self.reasoning_format is not None:
            reasoning_form(self.reasoning_format)
        if not all(key.strip() for key in self.api_keys):
            raise ImpossibleSetting("an API key is empty: give one with characters, or none")
        if not all(self.model_names):
            raise ImpossibleSetting("--served-model-name is empty: give a name, or leave it out")

    @property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mb * 1e6)

    def accepts(self, key: str) -> bool:
        """Whether this key opens the server; it takes as long for a key that is nearly right."""
        given = key.encode(errors="surrogateescape")
        matches = [hmac.compare_digest(given, each.encode()) for each in self.api_keys]
        return any(matches)
