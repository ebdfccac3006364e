"""What the scripted server's model answers: the last message says what is tested."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

USAGE = {
    "prompt_tokens": 812,
    "completion_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 780},
}
MARKDOWN = """A step of **decode** reads few experts. What it costs depends on where they are:

| expert lies | runs on | time |
|---|:-:|--:|
| in GPU memory | GPU | 9 µs |
| in main memory | CPU | 71 µs |
| in main memory | GPU, over the link | 96 µs |

1. The *planner* knows these times.
2. It gives each expert to the device that `ends earlier`:

```python
def place(expert, busy):
    return min(DEVICES, key=lambda d: busy[d] + d.time(expert))
```

> More under [HybriMoE](https://arxiv.org/abs/2504.05897).
"""
REASONING = "The user asks about experts.\n\n- Few are **active** per token.\n- The others rest."
HOSTILE = """<script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">

[script](javascript:window.hacked=1) [data](data:text/html,x) [file](file:///etc/passwd)
[space]( javascript:window.hacked=1) [line](java\nscript:window.hacked=1) [here](/v1/models)
![picture](https://elsewhere.example/pixel.png) <javascript:window.hacked=1>
[good](https://good.example/a_(b)?c=1&d=%22) <https://angle.example/> https://bare.example/x.

`<b>code</b>` **<i>strong</i>** | <u>cell</u>

| <svg onload=window.hacked=1> | b |
|---|---|
| [x](vbscript:x) | </td><script>window.hacked=1</script> |

```"><script>window.hacked=1</script>
</code></pre><script>window.hacked = 1</script>
```
"""
CALLS: list[dict[str, Any]] = [
    {"index": 0, "id": "call_1", "function": {"name": "weather", "arguments": ""}},
    {"index": 0, "function": {"arguments": '{"city": "Zü'}},
    {"index": 0, "function": {"arguments": 'rich", "unit": "<b>"}'}},
]
TEXTS = {
    "markdown": MARKDOWN,
    "hostile": HOSTILE,
    "deep": "> " * 3000 + "end\n\n" + "**a" * 3000 + "\n\n" + "[" * 5000 + "\n\n" + "- " * 3000,
}
ERRORS: dict[str, tuple[int, dict[str, Any], dict[str, str]]] = {
    "busy": (
        429,
        {"message": "1 more answer was refused: 9 wait", "code": "rate_limit_exceeded"},
        {"Retry-After": "7"},
    ),
    "lost": (
        503,
        {"message": "the engine's process ended with signal 9", "code": "engine_unavailable"},
        {"Retry-After": "5"},
    ),
    "long": (
        400,
        {"message": "the prompt has 9000 tokens", "code": "context_length_exceeded"},
        {},
    ),
}


async def deltas(asked: str, left: asyncio.Event, pause_s: float) -> AsyncIterator[dict[str, Any]]:
    """What comes before the end of the answer."""
    if asked == "reason":
        for piece in pieces(REASONING):
            yield {"reasoning_content": piece}
        yield {"content": "Most experts rest."}
    elif asked == "tool":
        yield {"content": "I look it up."}
        for call in CALLS:
            yield {"tool_calls": [call]}
    elif asked == "endless":
        try:
            while True:
                yield {"content": "word "}
                await asyncio.sleep(0.02)
        finally:
            left.set()
    else:
        for piece in pieces(TEXTS.get(asked, f"You said: {asked}")):
            yield {"content": piece}
            await asyncio.sleep(pause_s)


def pieces(text: str, size: int = 40) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


async def events(asked: str, left: asyncio.Event, pause_s: float) -> AsyncIterator[bytes]:
    yield b": the request was accepted\n\n"
    yield _chunk({"role": "assistant", "content": ""})
    if asked == "break":
        yield _chunk({"content": "It begins"})
        yield _event({"error": {"message": "the step failed", "type": "server_error"}})
        return
    async for delta in deltas(asked, left, pause_s):
        yield _chunk(delta)
    if asked == "cut":
        return
    yield _chunk({}, "tool_calls" if asked == "tool" else "stop")
    yield _event({"choices": [], "usage": USAGE})
    yield b"data: [DONE]\n\n"


def _chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
    return _event({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"
