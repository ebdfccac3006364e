"""A server of a model in a process of its own: `moesaic serve`, or llama.cpp's `llama-server`. Both
answer the same requests, POST /v1/completions with token ids."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import IO

from benchmarks.http_exchange import exchange
from moesaic.hardware.procfs import fields, kib, read
from moesaic.lab.against.program_runs import environment_of

_READY_S = 900.0  # for reading weights
_END_S = 60.0
_LAST_LINES = 15
_ENGINE = "engine.process.child"


class ServerProcess:
    """Ready when it is made."""

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        gpu: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`environment`: variables that differ from this process's."""
        self.command, self.address = tuple(command), f"http://127.0.0.1:{port}"
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (it is open until the end)
        variables = environment_of(gpu) | dict(environment or {})
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log, env=variables)
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        """What it has written."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def engine_pid(self) -> int | None:
        """Of `moesaic serve`; None: it has no engine now."""
        found = [pid for pid in children(self.pid) if _ENGINE in read(Path(f"/proc/{pid}/cmdline"))]
        return found[0] if found else None

    def memory(self) -> int:
        """Bytes in main memory, those of the processes that it has started included."""
        return sum(resident_bytes(pid) for pid in (self.pid, *children(self.pid)))

    def close(self, number: int = signal.SIGTERM) -> int:
        """The exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def _wait(self) -> None:
        end = monotonic() + _READY_S
        while monotonic() < end:
            if self.process.poll() is not None:
                raise SystemExit(f"{self.command[0]} has ended:\n{self._last_lines()}")
            with suppress(OSError):
                if asyncio.run(exchange(self.address, "/health")).status == 200:
                    return
            sleep(0.1)
        raise SystemExit(f"{self.command[0]} is not ready after {_READY_S:g} s")

    def _last_lines(self) -> str:
        return "\n".join(self.log().splitlines()[-_LAST_LINES:])


def moesaic_server(
    options: Sequence[object], gpu: bool = False, environment: Mapping[str, str] | None = None
) -> ServerProcess:
    """`options` are those of `moesaic serve`, its model among them."""
    port = free_port()
    call = "from moesaic.cli.main import main; main()"
    command = [sys.executable, "-c", call, "serve", "--port", str(port), "--log", "json"]
    return ServerProcess([*command, *map(str, options)], port, gpu, environment)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def children(pid: int) -> list[int]:
    """The processes that it has started."""
    lists = (read(path) for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return sorted({int(each) for text in lists for each in text.split()})


def resident_bytes(pid: int) -> int:
    status = fields(read(Path(f"/proc/{pid}/status")))
    return kib(status.get("VmRSS", "")) or 0


def cpu_seconds(pid: int) -> float:
    """That a process has used, in all its threads."""
    words = read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return sum(map(int, words[11:13])) / os.sysconf("SC_CLK_TCK") if words else 0.0
