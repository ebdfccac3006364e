"""A headless Chromium, driven over a pipe by the DevTools protocol: what a reader does with a page,
and what the browser says of it."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SOON_S = 30.0
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)  # fmt: skip
# Chromium reads commands from descriptor 3 and writes to 4.
_START = """
import os, sys
commands, events, *command = sys.argv[1:]
os.dup2(int(commands), 3)
os.dup2(int(events), 4)
os.execv(command[0], command)
"""
_FIRST_FREE = 10  # so that neither end is 3 or 4 already
_KEYS = {
    "Enter": ("Enter", 13, "\r"),
    "Escape": ("Escape", 27, ""),
    "Tab": ("Tab", 9, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
    "End": ("End", 35, ""),
}
_SHIFT = 8


class Failed(Exception):
    """The page has thrown an error, or the browser refused a command."""


class Problem(NamedTuple):
    kind: str
    text: str


class Browser:
    def __init__(self, path: str, profile: Path) -> None:
        commands, self._to = _pipe()
        self._from, events = _pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(commands), str(events), path, *_FLAGS,
             f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands, events),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(events)
        self._number = 0
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self.pages: dict[str, Page] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._answers.get(timeout=SOON_S)
            if answer["id"] == self._number:
                break
        if "error" in answer:
            raise Failed(f"{method}: {answer['error']['message']}")
        return answer["result"]

    @contextmanager
    def page(self, width: int = 1280, height: int = 800) -> Iterator[Page]:
        """One with a storage of its own."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        made = Page(self, attached["sessionId"])
        self.pages[attached["sessionId"]] = made
        made.start(width, height)
        try:
            yield made
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)

    def _read(self) -> None:
        rest = b""
        while data := os.read(self._from, 1 << 20):
            *messages, rest = (rest + data).split(b"\0")
            for text in messages:
                message = json.loads(text)
                if "id" in message:
                    self._answers.put(message)
                elif (page := self.pages.get(message.get("sessionId", ""))) is not None:
                    page.note(message["method"], message["params"])
        os.close(self._from)


class Page:
    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.problems: list[Problem] = []
        self.requests: list[str] = []
        self.policies: list[str] = []

    def start(self, width: int, height: int) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call("Emulation.setFocusEmulationEnabled", enabled=True)
        self.size(width, height)

    def before_scripts(self, script: str) -> None:
        """Run this in every page before its own scripts."""
        self._call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def go(self, address: str) -> None:
        self._call("Page.navigate", url=address)
        self.until("document.readyState === 'complete'")

    def js(self, expression: str) -> Any:
        """The value of this expression; promises are awaited."""
        done = self._call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        if (details := done.get("exceptionDetails")) is not None:
            said = details.get("exception", {}).get("description", details["text"])
            raise Failed(f"{expression[:80]}: {said}")
        return done["result"].get("value")

    def until(self, expression: str, seconds: float = SOON_S) -> Any:
        end = time.monotonic() + seconds
        while True:
            try:
                if (value := self.js(expression)) or value == {}:  # an element
                    return value
            except Failed as failure:
                if "context" not in str(failure) and "null" not in str(failure):
                    raise
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        found = self.js(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        return str(found)

    def until_text(self, selector: str, part: str) -> None:
        self.until(
            f"document.querySelector({json.dumps(selector)})?.innerText"
            f".includes({json.dumps(part)})"
        )

    def click(self, selector: str) -> None:
        """In the middle of the element, as a mouse does."""
        place = self.until(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'nearest', behavior: 'instant'});"
            " const b = e.getBoundingClientRect();"
            " return b.width && [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        self.click_at(*place)

    def click_at(self, x: float, y: float) -> None:
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def write(self, text: str) -> None:
        """Where the focus is."""
        self._call("Input.insertText", text=text)

    def press(self, key: str, shift: bool = False) -> None:
        name, code, text = _KEYS[key]
        common = {
            "key": name,
            "code": name,
            "windowsVirtualKeyCode": code,
            "modifiers": _SHIFT if shift else 0,
        }
        kind = "keyDown" if text else "rawKeyDown"
        self._call("Input.dispatchKeyEvent", type=kind, text=text, **common)
        self._call("Input.dispatchKeyEvent", type="keyUp", **common)

    def size(self, width: int, height: int, phone: bool = False) -> None:
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        self._call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def scheme(self, name: str) -> None:
        """`dark` or `light`, as the system would prefer; nothing moves."""
        wanted = {"prefers-color-scheme": name, "prefers-reduced-motion": "reduce"}
        features = [{"name": key, "value": value} for key, value in wanted.items()]
        self._call("Emulation.setEmulatedMedia", features=features)

    def unnamed(self) -> list[str]:
        """Roles of what can be used but has no name for those who do not see it."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        used = ("button", "link", "textbox", "combobox", "checkbox", "application", "dialog")
        return [
            role
            for node in nodes
            if not node["ignored"]
            and (role := node["role"]["value"]) in used
            and not node.get("name", {}).get("value")
        ]

    def screenshot(self, path: Path) -> None:
        data = self._call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def note(self, event: str, said: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif event == "Network.responseReceived" and said["type"] == "Document":
            headers = {name.lower(): value for name, value in said["response"]["headers"].items()}
            self.policies.append(headers.get("content-security-policy", ""))
        elif event == "Runtime.exceptionThrown":
            details = said["exceptionDetails"]
            text = details.get("exception", {}).get("description", details["text"])
            self.problems.append(Problem("exception", text))
        elif event == "Runtime.consoleAPICalled" and said["type"] in ("error", "assert"):
            self.problems.append(Problem("console", json.dumps(said["args"])))
        elif event == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.problems.append(Problem("log", said["entry"]["text"]))

    def _call(self, method: str, **parameters: Any) -> Any:
        return self._browser.call(method, self._session, **parameters)


def installed() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
