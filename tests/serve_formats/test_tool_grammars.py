"""Does a grammar allow the calls that a format's parser reads, and no others?"""

from __future__ import annotations

from contextlib import suppress
from functools import cache

import pytest
import tokenizers
from format_answers import ANSWERS, EXPECTED, TOOLS, calls_of, parsed
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.serve.formats.detect import FormatChoice, choose
from moesaic.serve.formats.grammars import Named, Required, tool_grammar

END = "<|endoftext|>"


def calls_alone(name: str) -> str:
    """What a model writes that has to call a tool."""
    if name == "harmony":  # one call, whose last token ends the text
        return ANSWERS[name].partition("<|start|>assistant")[2].partition("<|call|>")[0]
    text = ANSWERS[name].partition("Let me see.")[2].lstrip("\n")
    return text.removeprefix("<|python_tag|>")


@cache
def tokenizer_of(name: str) -> tokenizers.Tokenizer:
    """Bytes, and the format's markers as tokens of their own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE({c: n for n, c in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    choice = choose(name, "think")
    plain = [AddedToken(text, special=False) for text in choice.keeps_special[:2]]
    made.add_tokens(plain)
    made.add_special_tokens([AddedToken(text, special=True) for text in choice.keeps_special])
    made.add_special_tokens([AddedToken(END, special=True)])
    return made


def matches(choice: FormatChoice, mode: Required | Named, text: str, as_tokens: bool) -> bool:
    """Whether a model may write this text, and end there."""
    made = tokenizer_of(choice.tools.name)
    added = {t.content: n for n, t in made.get_added_tokens_decoder().items()} if as_tokens else {}
    form = SamplingParams(grammar=tool_grammar(choice, TOOLS, mode, added)).form
    assert form is not None
    if as_tokens:
        vocabulary = LLTokenizer(made.to_str(), eos_token=added[END])
        ids = made.encode(text, add_special_tokens=False).ids
    else:
        vocabulary, ids = LLTokenizer("byte"), list(text.encode())
    matcher = LLMatcher(vocabulary, form, log_level=0)
    read = matcher.try_consume_tokens(ids)
    assert not matcher.get_error()
    return read == len(ids) and matcher.is_accepting()


each_format = pytest.mark.parametrize("name", ANSWERS)
in_tokens = pytest.mark.parametrize("as_tokens", [False, True], ids=["bytes", "tokens"])


@each_format
@in_tokens
def test_calls_of_the_template_are_allowed(name: str, as_tokens: bool) -> None:
    text = calls_alone(name)
    if as_tokens:  # the argument's text would be that token, which no string can hold
        text = text.replace("</tool_calls> [TOOL", "[TOOL")
    found = calls_of(parsed(name, text if name != "harmony" else f"<|start|>assistant{text}"))
    count = 1 if name == "harmony" else 3
    assert [each for each, _ in found] == [each for each, _ in EXPECTED[:count]]
    assert matches(choose(name), Required(), text, as_tokens)


@each_format
@in_tokens
def test_other_texts_are_refused(name: str, as_tokens: bool) -> None:
    text, choice = calls_alone(name), choose(name)
    wrong = [
        "",
        "I would rather not.",
        f"Well: {text}",
        text[: len(text) // 2],
        text.replace("weather", "whether"),
        text.replace("city", "town"),
        text.replace("3", '"3"' if "json" in name else "three", 1),
        f"{text} Done.",
    ]
    for each in wrong:
        assert not matches(choice, Required(), each, as_tokens), each


@each_format
@in_tokens
def test_a_named_function_is_called_once(name: str, as_tokens: bool) -> None:
    text, choice = calls_alone(name), choose(name)
    if name == "harmony":
        assert matches(choice, Named("weather"), text, as_tokens)
    else:
        assert not matches(choice, Named("weather"), text, as_tokens)
        assert not matches(choice, Required(parallel=False), text, as_tokens)
    assert not matches(choice, Named("now"), text, as_tokens)


@in_tokens
def test_one_named_call(as_tokens: bool) -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert matches(choose("hermes"), Named("now"), call, as_tokens)
    call = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
    assert matches(choose("qwen3-coder"), Named("now"), call, as_tokens)


@in_tokens
def test_reasoning_comes_before_a_call(as_tokens: bool) -> None:
    call = "<tool_call>now\n</tool_call>"
    closed, opened = choose("glm", "think"), choose("glm", "think", reasoning_open=True)
    assert matches(closed, Required(), call, as_tokens)
    assert matches(closed, Required(), f"<think>I <b> x.</think>\n{call}", as_tokens)
    assert matches(opened, Required(), f"\nI <b> x.\n</think>\n\n{call}", as_tokens)
    assert not matches(opened, Required(), call, as_tokens)
    assert not matches(closed, Required(), f"Hm.</think>{call}", as_tokens)


@in_tokens
def test_harmony_reasons_in_its_own_channel(as_tokens: bool) -> None:
    call = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"
    reasoned = f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{call}"
    assert matches(choose("harmony"), Required(), reasoned, as_tokens)
    other = " to=functions.now<|channel|>commentary json<|message|>{}"
    assert matches(choose("harmony"), Required(), other, as_tokens)


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        ({"city": "Paris", "units": "metric"}, True),
        ({"city": "Paris", "units": "furlongs"}, False),
        ({"units": "metric"}, False),
        ({"city": "Paris", "details": '{"wind": true}'}, True),
        ({"city": "Paris", "details": '{"wind": 1}'}, False),
        ({"city": "a\n</b> <parameter=x>"}, True),
    ],
)
def test_values_between_tags_follow_the_schema(arguments: dict[str, str], allowed: bool) -> None:
    members = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
    call = f"<tool_call>\n<function=weather>\n{members}</function>\n</tool_call>"
    assert matches(choose("qwen3-coder"), Required(), call, False) == allowed


def test_what_cannot_be_enforced_is_refused_in_words() -> None:
    with pytest.raises(ImpossibleSetting, match="'plain' has no calls"):
        tool_grammar(choose("plain"), TOOLS, Required())
    with pytest.raises(ImpossibleSetting, match="no tools"):
        tool_grammar(choose("hermes"), [], Required())
    with pytest.raises(UnknownName, match=r"function 'wether'.*'weather'"):
        tool_grammar(choose("hermes"), TOOLS, Named("wether"))


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder", "glm", "kimi-k2"])
def test_a_schema_that_is_none_is_refused_in_words_or_written_without_it(name: str) -> None:
    deep: dict[str, object] = {"type": "string"}
    for _ in range(400):
        deep = {"type": "object", "properties": {"a": deep}}
    strange: list[dict[str, object]] = [
        deep,
        {"properties": 3},
        {"properties": ["a"]},
        {"properties": {"a": {"type": "string"}}, "required": 3},
        {"properties": {"a": {"type": "string", "enum": 3}}},
        {"properties": {"a": {"type": "string", "enum": ["x", 1, None]}}},
        {"properties": {"a": 3}},
    ]
    for schema in strange:
        tools = [{"name": "f", "parameters": schema}]
        with suppress(ImpossibleSetting):
            assert SamplingParams(grammar=tool_grammar(choose(name), tools, Required())).form
