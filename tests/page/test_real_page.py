"""Does the page work before the real server, which has keys, with the bundled model?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("openai")

from servers import Server, server, until

QUESTION = "Ann has 5 pens and buys 7 more. How many pens does she have?"


@pytest.fixture(scope="module")
def served(browser: Any) -> Iterator[Server]:
    """The browser is looked for first: without one, no server is started."""
    with server("--api-key", "secret", "--log", "json") as made:
        yield made


@pytest.fixture(scope="module")
def page(browser: Any, served: Server) -> Iterator[Any]:
    with browser.page() as made:
        made.go(f"{served.address}/")
        made.until("document.getElementById('key-dialog').open")
        made.write("secret")
        made.press("Enter")
        made.until_text("#status", "ready")
        made.problems.clear()  # the refusal of the first request, without a key
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
    page.js("document.getElementById('set-temperature').value = '0'")
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


def test_an_answer_that_is_stopped_frees_the_engine(page: Any, served: Server) -> None:
    page.js("document.getElementById('new-chat').click()")
    ask(page, "Once upon a time there was a very long story that went on and on:")
    page.until("document.querySelector('.turn.assistant .answer')?.innerText")
    page.press("Escape")
    answered(page, 1)
    key = {"Authorization": "Bearer secret"}
    until(lambda: served.ask("/slots", None, key)[1] == b"[]")


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


def test_nothing_was_loaded_from_elsewhere_and_nothing_failed(page: Any, served: Server) -> None:
    """Last: of all that was done before."""
    assert page.problems == []
    here = f"{served.address}/"
    assert len(page.requests) > 30
    assert not [each for each in page.requests if not each.startswith((here, "data:", "blob:"))]
    assert all("default-src 'self'" in policy for policy in page.policies)
