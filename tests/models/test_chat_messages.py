"""Is a conversation that a model would not see as it was meant refused, with what to change?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moesaic.core.errors import MoesaicError
from moesaic.models.bundled_model import default_model
from moesaic.models.text.tokenizer import Tokenizer
from small_tokenizers import save

ECHO = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
USERS_ONLY = "{% for m in messages if m.role == 'user' %}{{ m.content }}\n{% endfor %}"
DEFAULT_SYSTEM = "You are helpful.\n" + USERS_ONLY
USER = {"role": "user", "content": "Hello"}
SYSTEM = {"role": "system", "content": "Be brief."}


def refusal(tmp_path: Path, template: str, messages: Any) -> str:
    tokenizer = Tokenizer.open(save(tmp_path, "byte-level", chat_template=template))
    with pytest.raises(MoesaicError) as caught:
        tokenizer.encode_chat(messages)
    return str(caught.value)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ("Hello", "the conversation is 'Hello': give a list of messages"),
        (USER, "give a list of messages"),
        (None, "the conversation is None"),
        ([USER, "Hello"], "message 2 of the conversation is 'Hello'"),
        ([{"content": "Hello"}], "message 1 of the conversation has no role"),
        ([{"role": 3, "content": "Hello"}], "has the role 3"),
        ([{"role": "usr", "content": "Hello"}], "'usr'. Did you mean 'user'?"),
        ([{"role": "user"}], "message 1 of the conversation has no content"),
        ([{"role": "user", "content": ["Hello"]}], "has the content ['Hello']"),
        ([{"role": "assistant", "content": None}], "has the content None"),
    ],
)
def test_what_is_no_conversation_is_refused(tmp_path: Path, messages: Any, words: str) -> None:
    assert words in refusal(tmp_path, ECHO, messages)


def test_a_tool_call_needs_no_content(tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(save(tmp_path, "byte-level", chat_template=ECHO))
    called: Any = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    assert tokenizer.render_chat([USER, called]) == "user: Hello\nassistant: None\n"


@pytest.mark.parametrize("template", [USERS_ONLY, DEFAULT_SYSTEM])
def test_a_template_that_drops_the_system_message_says_so(tmp_path: Path, template: str) -> None:
    said = refusal(tmp_path, template, [SYSTEM, USER])
    assert "drops the system message 'Be brief.'" in said
    assert "put it into the first user message" in said


def test_the_bundled_model_sees_no_system_message() -> None:
    with pytest.raises(MoesaicError, match="drops the system message"):
        Tokenizer.open(default_model()).encode_chat([SYSTEM, USER])


def test_a_system_message_that_is_used_passes(tmp_path: Path) -> None:
    """Also where a template trims it, demands it, or it is empty."""
    demanding = "{% if messages[0].role != 'system' %}{{ raise_exception('no') }}{% endif %}" + ECHO
    for template in (ECHO, ECHO.replace("m.content", "m.content | trim | upper"), demanding):
        tokenizer = Tokenizer.open(save(tmp_path, "byte-level", chat_template=template))
        assert tokenizer.encode_chat([SYSTEM, USER]) != tokenizer.encode("Hello")
    tokenizer = Tokenizer.open(save(tmp_path, "byte-level", chat_template=USERS_ONLY))
    assert tokenizer.encode_chat([{"role": "system", "content": ""}, USER])
