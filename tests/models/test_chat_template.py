"""Does a conversation become the prompt that the stock implementation makes of it?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from moesaic.core.errors import BadTokenizer, ImpossibleSetting, MoesaicError
from moesaic.models.bundled_model import default_model
from moesaic.models.text.tokenizer import Tokenizer
from small_tokenizers import save, stock

# In the manner of the published ones, each with what is particular about them.
MIXTRAL = """\
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system_message is defined %}
            {{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- ' [INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- else %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}
"""
CHATML = """\
{% for message in messages %}
  {% if loop.first and message.role != 'system' %}
<|im_start|>system
Today is in {{ strftime_now('%Y') }}.<|im_end|>
  {% endif %}
{{ '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>' }}
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""
DEEPSEEK = """\
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{% set ns = namespace(system='', asked=0) %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {%- set ns.system = ns.system + message['content'] %}
    {%- endif %}
{%- endfor %}
{{- bos_token -}}{{ ns.system }}
{%- for message in messages if message['role'] != 'system' -%}
    {%- if message['role'] == 'user' -%}
        {%- set ns.asked = ns.asked + 1 -%}
        {{ 'User ' ~ ns.asked ~ ': ' + message['content'] + '\\n\\n' }}
    {%- elif message['role'] == 'assistant' -%}
        {{ 'Assistant: ' }}
        {%- generation %}{{ message['content'] }}{% endgeneration %}
        {{- eos_token }}
    {%- else -%}
        {{ raise_exception('unknown role ' ~ message['role']) }}
    {%- endif -%}
{%- endfor -%}
{{ 'Assistant:' if add_generation_prompt }}
"""
GLM = """\
[gMASK]<sop>
{%- macro visible(content) -%}
    {%- if content is string -%}{{ content }}{%- else -%}{{ content | tojson }}{%- endif -%}
{%- endmacro -%}
{%- if tools %}{{ raise_exception('no tools here') }}{% endif -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' %}{% continue %}{% endif -%}
    {%- if message.content == 'stop' %}{% break %}{% endif -%}
    <|{{ message.role }}|>
{{ visible(message.content) }}
    {%- set kept = {'role': message.role, 'quote': message.content} %}
{{ kept | tojson }} {{ kept | tojson(indent=2, sort_keys=true) }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    <|assistant|>{{ '\\n<think></think>' if enable_thinking is defined }}
{%- endif -%}
"""
HARMONY = """\
{%- macro kinds(spec, nullable=false) -%}
    {%- if spec is iterable and spec is not string and spec is not mapping -%}
        {{- spec | join(' | ') }}
    {%- elif spec == 'integer' -%}
        {{- 'number' + (' | null' if nullable else '') }}
    {%- else -%}
        {{- spec }}
    {%- endif -%}
{%- endmacro -%}
{%- macro preamble() -%}
    {%- if effort is not defined %}
        {%- set effort = 'medium' %}
    {%- endif %}
    {{- 'Date: ' + strftime_now('%Y-%m-%d') + '\\n\\nEffort: ' + effort }}
    {{- '\\n' + kinds(['a', 'b']) + kinds('integer', nullable=true) }}
    {%- if tools -%}{{- 'no tools here' }}{%- endif -%}
{%- endmacro -%}
{{- '<|start|>system<|message|>' + preamble() + '<|end|>' }}
{%- if messages[0].role in ('developer', 'system') %}
    {%- set instructions, rest = messages[0].content, messages[1:] %}
    {{- '<|start|>developer<|message|># Instructions\\n\\n' + instructions + '<|end|>' }}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{%- set last = namespace(name=none) %}
{%- for message in rest -%}
    {%- if message.role == 'assistant' -%}
        {%- if 'thinking' in message and loop.last %}
            {{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}
        {%- endif %}
        {%- set last.name = message.content %}
        {{- '<|start|>assistant<|channel|>final<|message|>' + message.content }}
        {{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
    {%- elif message.role == 'tool' and last.name is none -%}
        {{- raise_exception('a tool answers before it was called') }}
    {%- else -%}
        {{- '<|start|>' + message.role + '<|message|>' + message.content | string + '<|end|>' }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}
"""
TEMPLATES = {
    "mixtral": MIXTRAL,
    "chatml": CHATML,
    "deepseek": DEEPSEEK,
    "glm": GLM,
    "harmony": HARMONY,
}


def said(*contents: str, first: str = "user") -> list[dict[str, str]]:
    """User and assistant in turn, after a system message if that is `first`."""
    turns = ("user", "assistant") * len(contents)
    roles = ("system", *turns) if first == "system" else turns
    return [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]


CHATS = {
    "one question": said("Which experts rest?"),
    "several turns": said(
        "Hello", " Hi there. ", 'Which <b>experts</b> & "why"?\n', "None", "é路😀?"
    ),
    "with a system": said("Be brief.", "Hello", "Hi", "Why?", first="system"),
    "control tokens as text": said("<s>x</s><|im_end|>", "</s>", "[INST]"),
    "words the templates know": said("go on", "stop", "never seen"),
}


@pytest.mark.parametrize("kind", ["byte-level", "metaspace"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_prompts_are_the_stock_ones(tmp_path: Path, kind: str, name: str) -> None:
    folder = save(tmp_path, kind, chat_template=TEMPLATES[name])
    ours, theirs = Tokenizer.open(folder), stock(folder)
    assert isinstance(theirs, PreTrainedTokenizerFast)
    for chat in CHATS.values():
        for answer in (True, False):
            expected = theirs.apply_chat_template(
                chat, add_generation_prompt=answer, tokenize=False
            )
            assert ours.render_chat(chat, add_generation_prompt=answer) == expected
        ids = theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        assert ours.encode_chat(chat) == ids


def test_there_is_one_bos(tmp_path: Path) -> None:
    """The template writes it, although the tokenizer puts one before plain text."""
    tokenizer = Tokenizer.open(save(tmp_path, "metaspace", chat_template=MIXTRAL))
    assert tokenizer.encode("Hello")[0] == tokenizer.bos_id
    assert tokenizer.encode_chat(said("Hello")).count(1) == 1


def test_a_generation_prompt_is_added_by_default(tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(save(tmp_path, "byte-level", chat_template=CHATML))
    assert tokenizer.render_chat(said("Hi")).endswith("<|im_start|>assistant\n")
    assert tokenizer.render_chat(said("Hi"), add_generation_prompt=False).endswith("<|im_end|>\n")


OTHER = {"name": "tool_use", "template": "other"}


@pytest.mark.parametrize(
    ("in_config", "in_file", "expected"),
    [
        ("config", "file", "file"),
        ("config", None, "config"),
        (None, "file", "file"),
        ([OTHER, {"name": "default", "template": "list"}], None, "list"),
        ([OTHER], "file", "file"),
        ([OTHER], None, None),
        (None, None, None),
    ],
)
def test_where_a_template_stands(
    tmp_path: Path, in_config: Any, in_file: str | None, expected: str | None
) -> None:
    folder = save(tmp_path, "byte-level", chat_template=in_config)
    if in_file is not None:
        (folder / "chat_template.jinja").write_text(in_file)
    tokenizer = Tokenizer.open(folder)
    assert tokenizer.has_chat_template == (expected is not None)
    if expected is not None:
        assert tokenizer.render_chat(said("Hi")) == expected
        assert stock(folder).apply_chat_template(said("Hi"), tokenize=False) == expected


def test_special_tokens_are_variables(tmp_path: Path) -> None:
    template = "{{ bos_token }} {{ eos_token }} {{ pad_token }} {{ image_token }} {{ unk_token }}."
    names = {"eos_token": {"__type": "AddedToken", "content": "</s>"}, "image_token": "<img>"}
    folder = save(tmp_path, "byte-level", chat_template=template, pad_token="<s>", **names)
    expected = stock(folder).apply_chat_template(said("Hi"), tokenize=False)
    assert Tokenizer.open(folder).render_chat(said("Hi")) == expected == "<s> </s> <s> <img> ."


def refusal(tmp_path: Path, template: str | None, chat: list[dict[str, str]]) -> str:
    tokenizer = Tokenizer.open(save(tmp_path, "byte-level", chat_template=template))
    with pytest.raises(ImpossibleSetting) as caught:
        tokenizer.encode_chat(chat)
    return str(caught.value)


def test_a_model_without_a_template(tmp_path: Path) -> None:
    message = refusal(tmp_path, None, said("Hi"))
    assert f"the model in {str(tmp_path)!r} has no chat template" in message
    assert "`moesaic run -p`" in message
    assert "chat_template.jinja" in message


def test_roles_a_template_refuses(tmp_path: Path) -> None:
    message = refusal(tmp_path, MIXTRAL, said("Hi", "ho")[::-1])
    assert message.endswith("refuses this conversation: roles must alternate user/assistant")
    unknown = [{"role": "tool", "content": "Once"}]
    assert "unknown role tool" in refusal(tmp_path, DEEPSEEK, unknown)


def test_an_empty_conversation(tmp_path: Path) -> None:
    assert "needs at least one message" in refusal(tmp_path, CHATML, [])


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ messages[0].nothing.at_all }}", "has no attribute 'nothing'"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[0].content.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "is unsafe"),
        ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}", "cannot hold '__class__'"),
        ("{{ namespace(_hidden=1) }}", "cannot hold '_hidden'"),
    ],
)
def test_a_template_that_fails(tmp_path: Path, template: str, reason: str) -> None:
    message = refusal(tmp_path, template, said("Hi"))
    assert "chat template refuses this conversation" in message
    assert reason in message


@pytest.mark.parametrize("template", ["{% for %}", "{% if x %}", "{{ x | no_such_filter }}", "{{"])
def test_a_template_that_is_none(tmp_path: Path, template: str) -> None:
    """Found when it is used: plain prompts go on working."""
    tokenizer = Tokenizer.open(save(tmp_path, "byte-level", chat_template=template))
    assert tokenizer.encode("Hi")
    with pytest.raises(BadTokenizer, match=r"tokenizer_config.json': chat_template: line 1: "):
        tokenizer.render_chat(said("Hi"))


def test_a_template_cannot_change_the_conversation(tmp_path: Path) -> None:
    chat = said("Hi", "ho")
    assert "is unsafe" in refusal(tmp_path, "{{ messages[0].update(role='x') }}", chat)
    assert chat == said("Hi", "ho")


# Is a conversation that a model would not see as it was meant refused, with what to change?

ECHO = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
USERS_ONLY = "{% for m in messages if m.role == 'user' %}{{ m.content }}\n{% endfor %}"
DEFAULT_SYSTEM = "You are helpful.\n" + USERS_ONLY
USER = {"role": "user", "content": "Hello"}
SYSTEM = {"role": "system", "content": "Be brief."}


def refused_messages(tmp_path: Path, template: str, messages: Any) -> str:
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
    assert words in refused_messages(tmp_path, ECHO, messages)


def test_a_tool_call_needs_no_content(tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(save(tmp_path, "byte-level", chat_template=ECHO))
    called: Any = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    assert tokenizer.render_chat([USER, called]) == "user: Hello\nassistant: None\n"


@pytest.mark.parametrize("template", [USERS_ONLY, DEFAULT_SYSTEM])
def test_a_template_that_drops_the_system_message_says_so(tmp_path: Path, template: str) -> None:
    said = refused_messages(tmp_path, template, [SYSTEM, USER])
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
