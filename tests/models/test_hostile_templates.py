"""Is a chat template that is hostile or broken refused in bounded time and memory, and is the one
after it served?"""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import pytest

from moesaic.core.errors import BadTokenizer, ImpossibleSetting
from moesaic.models.text.chat_template import ChatTemplate, TemplateLimits

CHAT = [{"role": "user", "content": "Hi"}]
TIGHT = TemplateLimits(seconds=0.5, memory_bytes=1 << 28, characters=10_000)
FOREVER = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
DOUBLED = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
COMPARED = (
    "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}"
)


def template(source: str, limits: TemplateLimits = TIGHT) -> ChatTemplate:
    return ChatTemplate(source, Path("chat_template.jinja"), {"bos_token": "<s>"}, limits)


def refusal(source: str) -> str:
    with pytest.raises(ImpossibleSetting) as caught:
        template(source).render(CHAT, True)
    said = str(caught.value)
    assert said.startswith("the model's chat template refuses this conversation: ")
    return said


@pytest.mark.parametrize(
    "source",
    ["{% break %}", "{% continue %}", "{{ " + "(" * 500 + "1" + ")" * 500 + " }}", "{{ -" * 9],
)
def test_what_cannot_be_compiled(source: str) -> None:
    with pytest.raises(BadTokenizer, match=r"^tokenizer 'chat_template.jinja': chat_template: "):
        template(source).render(CHAT, True)


@pytest.mark.parametrize("source", [FOREVER, "{{ 7 ** (7 ** 9) }}", COMPARED])
def test_time_is_bounded(source: str) -> None:
    start = time.monotonic()
    said = refusal(source)
    assert "it takes more than 0.5 s" in said or "too much memory" in said
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10 ** 10 }}",
        "{{ 'a' | center(10 ** 10) }}",
        "{{ '%9999999999d' % 1 }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}"
        "{% endfor %}",
        DOUBLED + "{% endfor %}{{ ns.x }}",
    ],
)
def test_memory_is_bounded(source: str) -> None:
    said = refusal(source)
    assert "too much memory" in said or "takes more than 0.5 s" in said


def test_output_is_bounded() -> None:
    assert "it writes 100000 characters, more than 10" in refusal("{{ 'a' * 100000 }}")
    assert template("{{ 'a' * 9999 }}").render(CHAT, True) == "a" * 9999
    long = [{"role": "user", "content": "x" * 100_000}]
    assert template("{{ messages[0].content }}").render(long, True) == "x" * 100_000


def test_endless_recursion() -> None:
    assert "too often" in refusal("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")


def test_a_refusal_is_printable() -> None:
    assert refusal("{{ raise_exception('\x1b[31mred') }}").isprintable()


def test_a_process_that_ended_is_started_again() -> None:
    made = template("{% if messages[0].content == 'stop' %}" + FOREVER + "{% endif %}ok")
    assert made.render(CHAT, True) == "ok"
    with pytest.raises(ImpossibleSetting, match="takes more than"):
        made.render([{"role": "user", "content": "stop"}], True)
    assert made.render(CHAT, True) == "ok"


def test_an_interrupted_request_leaves_no_answer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    made = template("{{ messages[0].content }}")
    assert made.render(CHAT, True) == "Hi"
    process = made._process
    assert process is not None
    stream = process._process.stdout
    assert stream is not None

    def interrupted() -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(stream, "readline", interrupted, raising=False)
    with pytest.raises(KeyboardInterrupt):
        made.render([{"role": "user", "content": "lost"}], True)
    assert made.render(CHAT, True) == "Hi"


def test_threads_get_their_own_answers() -> None:
    made = template("{{ messages[0].content }}")
    wrong: list[str] = []

    def ask(name: str) -> None:
        for number in range(50):
            text = f"{name} {number}"
            if made.render([{"role": "user", "content": text}], True) != text:
                wrong.append(text)

    threads = [threading.Thread(target=ask, args=(f"thread {n}",)) for n in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []


def test_the_process_ends_with_the_template() -> None:
    made = template("ok")
    made.render(CHAT, True)
    assert made._process is not None
    process = made._process._process
    assert process.poll() is None
    del made
    gc.collect()
    assert process.poll() is not None


def test_messages_that_are_no_text() -> None:
    with pytest.raises(ImpossibleSetting, match="a conversation consists of texts"):
        template("ok").render([{"role": "user", "content": b"bytes"}], True)
