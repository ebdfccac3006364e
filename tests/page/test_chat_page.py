"""Can a reader talk with a model on the page: ask, stop, ask again, and know what went wrong?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from scripted_model import CALLS, MARKDOWN, REASONING


@pytest.fixture
def page(browser: Any, scripted: Any) -> Iterator[Any]:
    with browser.page() as made:
        made.go(scripted.address)
        made.until_text("#status", "ready")
        yield made


def ask(page: Any, text: str) -> None:
    page.click("#message")
    page.write(text)
    page.press("Enter")


def answered(page: Any, number: int = 1) -> None:
    page.until(
        f"document.querySelectorAll('.turn.assistant').length === {number}"
        " && !document.querySelector('[aria-busy]') && !document.getElementById('send').hidden"
    )


def last(page: Any, selector: str) -> str:
    found = page.js(f"document.querySelector('.turn:last-child {selector}')?.innerText ?? ''")
    return str(found)


def test_an_answer_is_streamed_shown_and_measured(page: Any, scripted: Any) -> None:
    ask(page, "markdown")
    page.until_text(".answer table", "9 µs")
    answered(page)
    assert last(page, "figure.code figcaption span") == "python"
    figures = last(page, ".figures")
    assert "tokens/s" in figures
    assert "first token after" in figures
    assert "120 tokens" in figures
    assert "prompt 812, 780 of them cached" in figures
    assert page.text(".turn.user .said").endswith("markdown")
    (body,) = scripted.asked
    assert body["messages"] == [{"role": "user", "content": "markdown"}]
    assert body["stream_options"] == {"include_usage": True}
    assert not {"temperature", "top_p", "max_tokens", "seed", "tools"} & set(body)
    assert page.text("#announcements").startswith("The answer is complete: A step of")
    assert page.problems == []


def test_the_next_message_takes_the_conversation_along(page: Any, scripted: Any) -> None:
    ask(page, "reason")
    answered(page)
    ask(page, "second")
    answered(page, 2)
    first, answer, second = scripted.asked[-1]["messages"]
    assert (first["content"], second["content"]) == ("reason", "second")
    assert answer["content"] == "Most experts rest."
    assert answer["reasoning_content"] == REASONING


def test_reasoning_is_folded_until_it_is_opened(page: Any) -> None:
    ask(page, "reason")
    answered(page)
    assert last(page, ".answer") == "Most experts rest."
    assert last(page, ".reasoning summary").startswith("Reasoned")
    assert page.js("document.querySelector('.reasoning').open") is False
    assert "active" not in last(page, "")
    page.click(".reasoning summary")
    page.until_text(".reasoning .prose strong", "active")


def test_calls_of_tools_are_shown_and_can_be_answered(page: Any, scripted: Any) -> None:
    ask(page, "tool")
    answered(page)
    assert last(page, ".call header code") == "weather"
    arguments = "".join(call["function"]["arguments"] for call in CALLS)
    assert json.loads(last(page, ".call pre")) == json.loads(arguments)
    page.click(".call .result textarea")
    page.write('{"degrees": 21}')
    page.click(".call .result button")
    answered(page, 2)
    _, called, result = scripted.asked[-1]["messages"]
    assert called["tool_calls"][0]["id"] == result["tool_call_id"] == "call_1"
    assert called["tool_calls"][0]["function"] == {"name": "weather", "arguments": arguments}
    assert (result["role"], result["content"]) == ("tool", '{"degrees": 21}')
    assert page.js("document.querySelector('.call .result')") is None


@pytest.mark.parametrize("by", ["button", "Escape"])
def test_an_answer_can_be_stopped(page: Any, scripted: Any, by: str) -> None:
    ask(page, "endless")
    page.until_text(".answer", "word word")
    assert page.js("document.getElementById('send').hidden")
    if by == "button":
        page.click("#stop")
    else:
        page.press("Escape")
    answered(page)
    assert last(page, ".figures").startswith("stopped · about ")
    page.until_text(".answer", "word word")
    ask(page, "hello")
    answered(page, 2)
    assert scripted.left.is_set(), "the server was left, not only the page"
    assert page.problems == []


def test_an_answer_can_be_made_again_and_the_former_one_kept(page: Any, scripted: Any) -> None:
    ask(page, "hello")
    answered(page)
    page.js("document.querySelector('.turn.assistant .deeds button:nth-child(2)').click()")
    page.until_text(".versions", "2 / 2")
    answered(page)
    assert len(scripted.asked) == 2
    assert scripted.asked[0]["messages"] == scripted.asked[1]["messages"]
    page.click('.versions [aria-label="Version before"]')
    page.until_text(".versions", "1 / 2")
    assert page.js("document.querySelector('[aria-label=\"Version before\"]').disabled")


def test_a_message_can_be_edited_and_sent_again(page: Any, scripted: Any) -> None:
    for number, text in enumerate(("one", "two"), 1):
        ask(page, text)
        answered(page, number)
    page.js("document.querySelector('.turn.user .deeds button:nth-child(2)').click()")
    page.until("document.activeElement.matches('.editing textarea')")
    page.js("document.activeElement.select()")
    page.write("instead")
    page.click(".editing .main")
    page.until_text(".turn.assistant", "You said: instead")
    answered(page)
    assert scripted.asked[-1]["messages"] == [{"role": "user", "content": "instead"}]


def test_settings_are_sent_and_mistakes_are_named(page: Any, scripted: Any) -> None:
    page.click("#open-settings")
    for name, value in (("system", "Be brief."), ("temperature", "0,5"), ("max_tokens", "1.5")):
        page.click(f"#set-{name}")
        page.write(value)
    page.js("document.getElementById('set-thinking').value = 'off'")
    page.js("document.querySelector('#settings details').open = true")
    page.click("#set-tools")
    page.write('[{"type": "function", "function": {"name": "weather"}}]')
    page.click("#settings .main")
    page.until_text("#settings-error", "max_tokens is 1.5: give a whole number from 1")
    page.js("document.getElementById('set-max_tokens').value = '64'")
    page.click("#settings .main")
    page.until("!document.getElementById('settings').open")
    page.until_text(
        "#settings-note", "system prompt · temperature 0.5 · max_tokens 64 · thinking off · tools"
    )
    ask(page, "hello")
    answered(page)
    (body,) = scripted.asked
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["max_tokens"]) == (0.5, 64)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["tools"][0]["function"]["name"] == "weather"
    assert "seed" not in body


@pytest.mark.parametrize(
    ("said", "title", "text"),
    [
        ("busy", "The server is busy", "Try again in 7 seconds."),
        ("lost", "The engine takes no requests now", "ended with signal 9"),
        ("long", "The conversation is too long", "Edit an earlier message"),
        ("break", "The answer failed", "The step failed."),
        ("cut", "The answer was cut off", "Is it still running?"),
    ],
)
def test_what_went_wrong_is_said_and_can_be_tried_again(
    page: Any, scripted: Any, said: str, title: str, text: str
) -> None:
    ask(page, said)
    page.until_text(".failure strong", title)
    assert text in page.text(".failure")
    page.click(".failure button")
    page.until("!document.querySelector('[aria-busy]')")
    assert len(scripted.asked) == 2
    assert page.js("document.querySelector('.versions')") is None, "a failure is no version"


def test_an_unloaded_engine_is_named_and_can_be_asked(page: Any, scripted: Any) -> None:
    scripted.engine_word = "unloaded"
    page.go(scripted.address)
    page.until_text("#status", "unloaded")
    ask(page, "hello")
    answered(page)


def test_a_server_that_does_not_respond_is_named(page: Any) -> None:
    page.js("window.fetch = () => Promise.reject(new TypeError('Failed to fetch'))")
    ask(page, "hello")
    page.until_text(".failure strong", "No connection")
    page.until_text("#status", "unreachable")


def test_a_key_is_asked_for_where_the_server_wants_one(browser: Any, scripted: Any) -> None:
    scripted.key = "secret"
    with browser.page() as page:
        page.go(scripted.address)
        page.until("document.getElementById('key-dialog').open")
        page.write("wrong")
        page.press("Enter")
        page.until_text("#key-reason", "none of this server's")
        page.until("document.activeElement.id === 'key' && !document.activeElement.value")
        page.write("secret")
        page.press("Enter")
        page.until_text("#status", "ready")
        ask(page, "hello")
        answered(page)
        assert (
            page.js("Object.keys(localStorage).some((key) => localStorage[key] === 'secret')")
            is False
        )
        scripted.key = "another"
        ask(page, "again")
        page.until("document.getElementById('key-dialog').open")
        page.write("another")
        page.press("Enter")
        page.until_text(".turn:last-child", "You said: again")


def test_conversations_are_kept_listed_and_deleted(page: Any, scripted: Any) -> None:
    ask(page, "first")
    answered(page)
    page.click("#new-chat")
    page.until("!document.querySelector('.turn')")
    ask(page, "markdown")
    answered(page)
    page.go(scripted.address)
    page.until_text("#conversations li[data-shown]", "markdown")
    page.until_text(".turn.assistant table", "9 µs")
    page.click("#conversations li:nth-child(2) .title")
    page.until_text(".turn.assistant", "You said: first")
    page.js("window.confirm = () => true")
    page.js("document.querySelector('#conversations li[data-shown] .remove').click()")
    page.until("document.querySelectorAll('#conversations li').length === 1")
    page.until("!document.querySelector('.turn')")
    assert page.problems == []


def test_a_conversation_that_is_deleted_while_it_is_answered_stays_away(page: Any) -> None:
    ask(page, "endless")
    page.until_text(".answer", "word word")
    page.js("window.confirm = () => true")
    page.js("document.querySelector('#conversations .remove').click()")
    page.until("!document.getElementById('send').hidden && !document.querySelector('.turn')")
    ask(page, "hello")
    answered(page)
    assert page.text("#conversations").split() == ["hello", "×"]


def test_the_page_works_where_the_browser_keeps_nothing(browser: Any, scripted: Any) -> None:
    scripted.key = "secret"
    with browser.page() as page:
        page.before_scripts(
            "for (const area of ['localStorage', 'sessionStorage'])"
            " Object.defineProperty(window, area, { get() { throw new Error('closed'); } });"
        )
        page.go(scripted.address)
        page.until("document.getElementById('key-dialog').open")
        page.write("secret")
        page.press("Enter")
        page.until_text("#status", "ready")
        ask(page, "hello")
        answered(page)
        assert page.text(".answer") == "You said: hello"


def test_an_answer_that_was_left_is_no_longer_written(page: Any, scripted: Any) -> None:
    ask(page, "endless")
    page.until_text(".answer", "word word")
    page.go(scripted.address)
    page.until_text(".answer", "word word")
    assert page.js("document.querySelector('[aria-busy]')") is None


def test_a_conversation_is_exported(page: Any) -> None:
    page.js(
        "URL.createObjectURL = (blob) => { window.saved = blob.text(); return 'blob:none'; };"
        "HTMLAnchorElement.prototype.click = function () { window.name = this.download; }"
    )
    ask(page, "tool")
    answered(page)
    for kind, start in (("markdown", "# tool\n\n**You**\n\ntool\n\n**Answer**"), ("json", "{")):
        page.click("#export")
        page.click(f"#export-{kind}")
        text = page.js("window.saved")
        assert text.startswith(start)
        assert "weather" in text
        assert page.js("window.name") == f"tool.{'md' if kind == 'markdown' else 'json'}"
    assert json.loads(text)["turns"][0]["text"] == "tool"


def test_text_is_copied_where_the_browser_has_no_clipboard(page: Any) -> None:
    """As over HTTP from another machine."""
    page.js("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.js(
        "document.execCommand = () => { window.copied = document.activeElement.value; return true }"
    )
    ask(page, "markdown")
    answered(page)
    page.click("figure.code .copy")
    page.until_text("figure.code .copy", "Copied")
    assert page.js("window.copied") == MARKDOWN.split("```")[1].partition("\n")[2].strip("\n")


def test_the_chat_works_by_keyboard_alone(page: Any, scripted: Any) -> None:
    page.js("document.activeElement.blur()")
    page.press("Tab")
    assert page.js("document.activeElement.className") == "skip"
    for _ in range(30):
        page.press("Tab")
        if page.js("document.activeElement.id") == "message":
            break
    page.write("one")
    page.press("Enter", shift=True)
    page.write("two")
    page.press("Enter")
    answered(page)
    assert scripted.asked[0]["messages"][0]["content"] == "one\ntwo"
    assert page.js("getComputedStyle(document.querySelector(':focus-visible')).outlineStyle")
    assert page.unnamed() == []


def test_examples_begin_a_conversation(page: Any, scripted: Any) -> None:
    page.click("#welcome li:nth-child(1) button")
    answered(page)
    assert "experts" in scripted.asked[0]["messages"][0]["content"]
    assert page.js("document.getElementById('welcome').hidden")
