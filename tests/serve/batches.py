"""Files of requests, and the command that answers them in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from servers import CALL, SOON_S

CHAT, TEXT, ITEMS = "/v1/chat/completions", "/v1/completions", "/v1/responses"
SMALL = ("--threads", "1", "--accelerator", "none")


def request(number: int, url: str = CHAT, **body: Any) -> dict[str, Any]:
    return {"custom_id": f"request-{number}", "method": "POST", "url": url, "body": body}


def question(number: int, **fields: Any) -> dict[str, Any]:
    text = f"Ann has {number} pens and buys 7 more. How many has she?"
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "max_tokens": 24}
    return request(number, **(body | {"temperature": 0} | fields))


def written(path: Path, requests: Sequence[object]) -> Path:
    path.write_text("".join(f"{json.dumps(each)}\n" for each in requests))
    return path


def answers(path: Path) -> list[dict[str, Any]]:
    """Whole lines only."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


class Batch:
    """`moesaic batch`, while it runs."""

    def __init__(self, source: Path, out: Path, *options: object) -> None:
        words = ["batch", source, "-o", out, *SMALL, *options]
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", CALL, *map(str, words)], stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def status(self) -> int:
        status = self.process.wait(SOON_S)
        self._reader.join(SOON_S)
        return status

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
