"""A run's log: one JSON object per line, appended, and a short form for the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LOG, SUMMARY = "log.jsonl", "summary.json"


class RunLog:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def write(self, event: str, **fields: Any) -> None:
        with (self._folder / LOG).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"event": event, **fields}) + "\n")
        short = {name: value for name, value in fields.items() if not isinstance(value, list)}
        short.pop("exact_match", None)
        print(event, *(f"{name}={value}" for name, value in short.items()), flush=True)
        for name, value in fields.get("exact_match", {}).items():
            if name in ("full", "half"):
                print(f"  exact match, {name} top-k: {value}", flush=True)

    def summarize(self, content: dict[str, Any]) -> None:
        text = json.dumps(content, indent=1) + "\n"
        (self._folder / SUMMARY).write_text(text, encoding="utf-8")
