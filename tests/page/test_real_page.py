"""Does the page work before the real server, with the bundled model?"""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai", reason="the servers of tests come with a client")

from servers import Server, until

from moesaic.workloads.source import open_trace

QUESTION = (  # of more tokens than a block of the KV cache has
    "Ann has 5 pens and buys 7 more. Ben has 12 apples and gives 3 apples to his sister, who has 4 "
    "apples already. There are 28 people on a bus, 13 people get off, and then 9 people get on at "
    "the next stop. Tom reads 6 pages of a book in the morning and 8 pages of it in the evening. "
    "How many pens does Ann have now?"
)


@pytest.fixture(scope="module")
def page(browser: Any, shared: Server) -> Iterator[Any]:
    """The browser is looked for first: without one, no server is started."""
    with browser.page() as made:
        made.go(f"{shared.address}/")
        made.until_text("#status", "ready")
        yield made


def ask(page: Any, text: str) -> None:
    page.click("#message")
    page.write(text)
    page.press("Enter")


def answered(page: Any, number: int) -> None:
    page.until(
        f"document.querySelectorAll('.turn.assistant').length === {number}"
        " && !document.querySelector('[aria-busy]') && !document.getElementById('send').hidden"
    )


def test_a_question_is_answered_as_it_is_written(page: Any) -> None:
    page.until_text("#welcome h1", "Ask moesaic-20m")
    ask(page, QUESTION)
    seen = page.until("document.querySelector('.turn.assistant .answer')?.innerText")
    answered(page, 1)
    whole = page.text(".turn.assistant .answer")
    assert whole.startswith(seen[:3])
    assert "tokens/s" in page.text(".turn.assistant .figures")
    ask(page, "And if she loses 2?")
    answered(page, 2)
    figures = page.js("document.querySelector('.turn:last-child .figures').innerText")
    assert "of them cached" in figures
    page.js("document.querySelector('.turn:last-child .deeds button:nth-child(2)').click()")
    page.until_text(".turn:last-child .versions", "2 / 2")
    answered(page, 2)


def test_an_answer_that_is_stopped_frees_the_engine(page: Any, shared: Server) -> None:
    """The engine is stopped, so that it cannot have ended before."""
    page.js("document.getElementById('new-chat').click()")
    engine = shared.engine_pid()
    os.kill(engine, signal.SIGSTOP)
    try:
        ask(page, QUESTION)
        until(lambda: len(shared.json("/slots")) == 1)
        assert page.text(".waiting") == "Reading the prompt"
        page.press("Escape")
        answered(page, 1)
        assert page.text(".turn.assistant .figures") == "stopped"
        until(lambda: shared.json("/slots") == [])
    finally:
        os.kill(engine, signal.SIGCONT)


def test_the_view_shows_the_engine_at_work(page: Any) -> None:
    page.click("#to-inside")
    page.until("document.querySelector('.map canvas')?.width > 0")
    page.js("document.getElementById('new-chat').click()")
    page.js(
        f"document.getElementById('message').value = {QUESTION!r};"
        "document.getElementById('ask').requestSubmit()"
    )
    page.until_text(".step", "Step ")
    page.until_text(".map-card .legend", "ran on the CPU")
    page.js("document.querySelector('.map-field').focus()")
    page.press("Enter")
    page.until_text(".panel h2", "Layer 0, expert 0")
    page.js("document.querySelector('.of-layer .tile').click()")
    page.until_text(".panel .why", "There is no accelerator")
    page.until_text(".kv", "blocks in use")


def test_routing_that_is_captured_is_a_trace(page: Any, tmp_path: Path) -> None:
    """While answers are written; one of them may be too short."""
    page.js(
        "URL.createObjectURL = (blob) => { saved = blob.arrayBuffer(); return 'blob:none'; };"
        "var saved; HTMLAnchorElement.prototype.click = function () { name = this.download; }"
    )
    page.js("document.querySelector('.capture .buttons button:nth-child(2)').click()")
    page.until_text(".capture [role=status]", "Waiting for 32 steps")
    saved = "document.querySelector('.capture [role=status]').innerText.includes('was saved')"
    for _ in range(6):
        page.js(
            f"document.getElementById('message').value = {QUESTION!r};"
            "document.getElementById('ask').requestSubmit()"
        )
        page.until(f"{saved} || !document.getElementById('send').hidden")
    page.until(saved)
    path = tmp_path / page.js("window.name")
    data = page.js("saved.then((all) => btoa(String.fromCharCode(...new Uint8Array(all))))")
    path.write_bytes(base64.b64decode(data))
    assert path.name == "moesaic-20m-routing.moet"
    header = open_trace(path).header
    assert (header.num_layers, header.num_experts, header.top_k) == (10, 32, 4)
    assert f"--model moesaic-20m --machine rtx5070-r7-9700x --trace {path.name}" in page.text(
        ".command code"
    )


def test_nothing_was_loaded_from_elsewhere_and_nothing_failed(page: Any, shared: Server) -> None:
    """Last: of all that was done before."""
    assert page.problems == []
    here = f"{shared.address}/"
    assert len(page.requests) > 30
    assert not [each for each in page.requests if not each.startswith((here, "data:", "blob:"))]
    assert all("default-src 'self'" in policy for policy in page.policies)
