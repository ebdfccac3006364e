"""Does a text that must match a schema, a grammar or an expression match it, whatever the model?"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from small_llms import llm
from tokenizers.decoders import ByteFallback, Replace, Sequence

import small_tokenizers
import stock
from chat_models import talking
from moesaic import LLM, AsyncLLM, SamplingParams
from moesaic.core.errors import ImpossibleSetting, MissingExtra, MoesaicError, StuckGrammar
from moesaic.engine.sampling.constraint import Constraints
from moesaic.models.bundled_model import default_model
from moesaic.models.text.tokenizer import Tokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["dense", "sparse"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
EXPRESSION = "[0-9]{3}-[ab]{2}"
GBNF = 'root ::= ("yes" | "no") "!"'
LARK = 'start: ("yes" | "no") "!"'


def talker(**options: Any) -> LLM:
    own: dict[str, Any] = {"threads": 1, "dtype": "fp32", "max_sequences": 3}
    return LLM(talking().folder, **(own | options))


def is_a_person(text: str | None) -> bool:
    found = json.loads(text or "")
    fine = isinstance(found["name"], str) and 0 <= found["age"] <= 150
    return fine and set(found) == set(SCHEMA["properties"]) and found["kind"] in ("dense", "sparse")


@pytest.mark.parametrize("gate", ["full", "big-little:k=1,gamma=0.5", "self-speculative:k=1"])
def test_every_text_of_a_batch_matches(gate: str) -> None:
    """The model is random: without a constraint nothing of this would come out. Some rows draw,
    some do not, and one is free."""
    asked = [
        SamplingParams(json_schema=SCHEMA, max_tokens=150, seed=4),
        SamplingParams(json_schema=json.dumps(SCHEMA), max_tokens=150, temperature=0.0, logprobs=2),
        SamplingParams(regex=EXPRESSION, max_tokens=40, seed=2),
        SamplingParams(grammar=GBNF, max_tokens=40, top_p=0.9, seed=3),
        SamplingParams(grammar=LARK, max_tokens=40, top_k=3, min_p=0.1, seed=3),
        SamplingParams(max_tokens=5, temperature=0.0),
    ]
    with talker(gate=gate) as model:
        said = model.generate(["Hello"] * len(asked), asked)
        (free,) = model.generate(["Hello"], asked[-1])
    first, second, third, fourth, fifth, last = said
    assert [one.finish_reason for one in said[:-1]] == ["stop"] * 5
    assert is_a_person(first.text)
    assert is_a_person(second.text)
    assert re.fullmatch(EXPRESSION, third.text or "")
    assert {fourth.text, fifth.text} <= {"yes!", "no!"}
    assert last.tokens == free.tokens
    assert second.logprobs is not None
    # Of the model's own distribution: what was allowed is seldom what it found likeliest.
    assert any(each.token != each.alternatives[0].token for each in second.logprobs)
    assert all((each.logprob or 0.0) > float("-inf") for each in second.logprobs)


def test_the_bundled_model_fills_in_a_schema() -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
    with LLM(threads=1) as model:
        prompt = model.tokenizer.apply_chat_template([{"role": "user", "content": "47 and 38?"}])
        params = SamplingParams(json_schema=schema, temperature=0.0, max_tokens=60)
        (said,) = model.generate(prompt, params)
    assert said.finish_reason == "stop"
    assert [type(each) for each in json.loads(said.text or "")] == [int, int]


def test_a_stop_string_ends_it_earlier_and_max_tokens_cuts_it() -> None:
    """A text that is cut where it matches is as good as one that the model ended."""
    asked = [
        SamplingParams(regex="[ab]{4}x[0-9]{9}", stop="x", max_tokens=40, seed=1),
        SamplingParams(regex="[ab]{40}", max_tokens=3, seed=1),
        SamplingParams(regex="[ab]{2,40}", max_tokens=2, seed=1),
        SamplingParams(regex="[ab]{400}", max_tokens=500, seed=1),
    ]
    with talker(max_model_len=60) as model:
        stopped, cut, fine, full = model.generate(["Hello"] * 4, asked)
        chunks = list(model.stream("Hello", asked[1]))
    assert re.fullmatch("[ab]{4}", stopped.text or "")
    assert [one.finish_reason for one in (stopped, cut, fine, full)] == [
        *("stop", "incomplete", "length", "incomplete")
    ]
    assert len(cut.tokens) == 3
    assert len(full.prompt_tokens) + len(full.tokens) == 60, "the context is full"
    assert chunks[-1].finish_reason == "incomplete"


def test_clients_of_one_model() -> None:
    async def ask() -> list[str | None]:
        async with AsyncLLM(talking().folder, threads=1, dtype="fp32") as model:
            params = [SamplingParams(regex=f"{digit}{{3}}", seed=1) for digit in "123"]
            said = await asyncio.gather(*(model.generate("Hello", each) for each in params))
            return [one.text for (one,) in said]

    assert asyncio.run(ask()) == ["111", "222", "333"]


def test_a_grammar_that_gets_stuck_ends_its_own_request() -> None:
    with talker() as model:
        processor, batcher = model.model.input_processor, model.model.batcher
        stuck = processor.request("Hello", SamplingParams(regex="a{9}", seed=1))
        fine = processor.request("Hello", SamplingParams(regex="b{3}", seed=1))
        for request in (stuck, fine):
            batcher.submit(request)
        batcher.step()
        assert stuck.sampling.constraint is not None
        stuck.sampling.constraint = _Stuck()  # type: ignore[assignment]
        while not batcher.idle:
            batcher.step()
    assert fine.completion().text == "bbb"
    assert stuck.finish_reason == "cancelled"
    assert "as its grammar demands: too complex" in str(stuck.failure)


@pytest.mark.parametrize("gate", ["full", "self-speculative:k=1"])
def test_a_grammar_without_an_end_does_not_end_well(gate: str) -> None:
    """The first has no second token, the other grows too large when it is given the first."""
    nested = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    asked = [
        (SamplingParams(grammar='start: "a" b\nb: b "x"', seed=1), "no token of the model can"),
        (SamplingParams(json_schema=nested, seed=1), "Too many items"),
    ]
    with talker(gate=gate) as model:
        for params, words in asked:
            with pytest.raises(StuckGrammar, match=words) as caught:
                model.generate("Hello", params)
            assert "\n" not in str(caught.value)
        with pytest.raises(ImpossibleSetting, match=r"no token of the model can follow$"):
            model.generate("Hello", SamplingParams(grammar='start: start "a"'))


@pytest.mark.parametrize("kind", sorted(small_tokenizers.KINDS))
def test_tokenizers_of_every_kind(kind: str, tmp_path: Path) -> None:
    """Tokens are bytes, or characters with marks for spaces, and what is not in the alphabet is
    spelled out: every path through an expression is a text."""
    tokenizer = Tokenizer.open(small_tokenizers.save(tmp_path, kind))
    constraints = Constraints(tokenizer, tokenizer.eos_ids)
    for seed in range(4):
        said = walked(constraints, tokenizer, "[0-9]{2} \u00e9 [ab]{2}\U0001f600", Random(seed))
        assert re.fullmatch("[0-9]{2} \u00e9 [ab]{2}\U0001f600", said)


def test_a_tokenizer_that_would_be_misread_is_refused(tmp_path: Path) -> None:
    made = small_tokenizers.metaspace()
    made.decoder = Sequence([ByteFallback(), Replace("\u2581", "_")])
    folder = small_tokenizers.save(tmp_path, "metaspace")
    (folder / "tokenizer.json").write_text(made.to_str())
    tokenizer = Tokenizer.open(folder)
    with pytest.raises(ImpossibleSetting, match="cannot be constrained: its tokenizer says"):
        Constraints(tokenizer, tokenizer.eos_ids).of(SamplingParams(regex="a b"))


def walked(constraints: Constraints, tokenizer: Tokenizer, regex: str, random: Random) -> str:
    """Any text of the expression."""
    constraint = constraints.of(SamplingParams(regex=regex))
    assert constraint is not None
    tokens: list[int] = []
    while not constraint.complete:
        assert constraint.failure is None
        allowed = (~constraint.forbidden(tokenizer.vocabulary)).nonzero()[:, 0].tolist()
        tokens.append(random.choice(allowed))
        constraint.advance(tokens[-1])
    return tokenizer.decode(tokens)


class _Stuck:
    failure = "too complex"
    complete = False


BAD: list[tuple[dict[str, Any], str]] = [
    ({"json_schema": {"type": "objet"}}, "json_schema: Invalid type: objet"),
    ({"json_schema": '{"type": '}, "json_schema is not JSON"),
    ({"json_schema": "[1]"}, "must be an object"),
    ({"json_schema": 3}, "a mapping or as JSON text"),
    ({"json_schema": {"a": {1}}}, "json_schema is not JSON"),
    ({"json_schema": {"not": {"type": "string"}}}, "Unimplemented"),
    ({"json_schema": "[" * 9999}, "json_schema is not JSON"),
    ({"json_schema": '{"minimum": NaN}'}, "json_schema: expected value"),
    ({"json_schema": {"const": "\ud800"}}, "json_schema: unexpected end of hex escape"),
    ({"regex": "\udc80"}, "surrogates not allowed"),
    ({"regex": "a("}, "unclosed group"),
    ({"regex": "(?=a)b"}, "look-around"),
    ({"regex": ""}, "not empty"),
    ({"regex": "a" * (1 << 20) + "b"}, "at most 1048576"),
    ({"grammar": "start: b"}, "unknown name"),
    ({"grammar": "root ::= ["}, "Unexpected end"),
    ({"grammar": 7}, "grammar is 7"),
    ({"grammar": LARK, "regex": "a"}, "give one of them"),
    ({"regex": "a", "min_tokens": 2}, "min_tokens was given with regex"),
    ({"regex": "a", "ignore_eos": True}, "ignore_eos was given with regex"),
]


@pytest.mark.parametrize(("given", "words"), BAD)
def test_mistakes_are_found_at_once(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ImpossibleSetting, match=re.escape(words)) as caught:
        SamplingParams(**given)
    assert "\n" not in str(caught.value)


PANICS = "((\u00e9|\\p{L})|(())(\\p{L}|))"  # in the Rust code of llguidance 1.9


@pytest.mark.parametrize(
    "given",
    [
        {"regex": PANICS},
        {"grammar": f"start: /{PANICS}/"},
        {"json_schema": {"type": "string", "pattern": PANICS}},
    ],
    ids=lambda given: next(iter(given)),
)
def test_an_expression_that_makes_the_library_panic(
    given: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """The user gets our message, and nothing of the panic on standard error."""
    with suppress(ImpossibleSetting):  # a release of the library that does not panic may accept it
        SamplingParams(**given)
    assert capfd.readouterr().err == ""


def test_a_model_without_a_tokenizer_has_no_text() -> None:
    with llm(stock.saved("mixtral").folder) as model:
        with pytest.raises(ImpossibleSetting, match=r"has no tokenizer\.json"):
            model.generate([[1, 2]], SamplingParams(regex="a"))
        with pytest.raises(ImpossibleSetting, match=r"has no tokenizer\.json"):
            _ = model.tokenizer


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moesaic.engine.sampling.grammar.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingExtra, match=r"moesaic\[engine\]"):
        SamplingParams(regex="a")
    assert issubclass(MissingExtra, MoesaicError)


# Does an object of a JSON schema have the properties that the schema names, and no others, unless
# the schema says otherwise? And can every text still be written that combines several schemas?

INTEGER = {"type": "integer"}


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


A, B = an_object(a=INTEGER), an_object(b=INTEGER)
NEEDS_A, NEEDS_B = A | {"required": ["a"]}, B | {"required": ["b"]}
TREE = an_object(v=INTEGER, kids={"type": "array", "items": {"$ref": "#/$defs/T"}})
IN_A = {"$ref": "#/$defs/A"}

# schema, texts that match it, texts that cannot go on
CLOSED: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "named properties": (A, ['{"a": 1}', "{}"], ['{"z']),
    "no properties": (an_object(), ["{}"], ['{"']),
    "in objects": (an_object(o=A), ['{"o": {"a": 1}}'], ['{"o": {"z']),
    "in arrays": ({"type": "array", "items": A}, ['[{"a": 1}]'], ['[{"z']),
    "in other properties": (A | {"additionalProperties": B}, ['{"z": {"b": 1}}'], ['{"z": {"c']),
    "required without a property": (A | {"required": ["b"]}, ['{"a": 1, "b": "x"}'], ['{"z']),
    "alternatives": ({"anyOf": [A, B]}, ['{"a": 1}', '{"b": 1}'], ['{"z', '{"a": 1, "b']),
    "one of them": ({"oneOf": [NEEDS_A, NEEDS_B]}, ['{"a": 1}', '{"b": 1}'], ['{"z']),
    "all of them": ({"allOf": [A, B]}, ['{"a": 1, "b": 2}'], ['{"z']),
    "all, of one object inside": (
        {"allOf": [an_object(o=A), an_object(o=B)]}, ['{"o": {"a": 1, "b": 2}}'], ['{"z']
    ),
    "with alternatives": (
        B | {"anyOf": [NEEDS_A, an_object(c=INTEGER)]}, ['{"b": 1, "a": 2}'], ['{"z']
    ),
    "by reference": (an_object(o=IN_A) | {"$defs": {"A": A}}, ['{"o": {"a": 1}}'], ['{"o": {"z']),
    "as pydantic writes it": (
        an_object(o={"title": "O", "allOf": [IN_A]}) | {"$defs": {"A": A}},
        ['{"o": {"a": 1}}'], ['{"o": {"z'],
    ),
    "extended": ({"allOf": [IN_A, B], "$defs": {"A": A}}, ['{"a": 1, "b": 2}'], ['{"z']),
    "a reference and more": (B | IN_A | {"$defs": {"A": A}}, ['{"b": 2, "a": 1}'], ['{"z']),
    "recursive": (
        {"$ref": "#/$defs/T", "$defs": {"T": TREE}},
        ['{"v": 1, "kids": [{"v": 2}]}'], ['{"z', '{"kids": [{"z'],
    ),
}  # fmt: skip
# schema, texts that match it
OPEN: dict[str, tuple[dict[str, Any], str]] = {
    "any object": ({"type": "object"}, '{"z": 1}'),
    "asked for": (A | {"additionalProperties": True}, '{"z": 1}'),
    "by a pattern": (A | {"patternProperties": {"^z": INTEGER}}, '{"z": 1}'),
    "name and pattern": (
        an_object(o=A) | {"patternProperties": {"^o": B}}, '{"o": {"a": 1, "b": 2}}'
    ),
    "more than are named": (NEEDS_A | {"minProperties": 2}, '{"a": 1, "z": 2}'),
    "one of all says so": ({"allOf": [A, B | {"additionalProperties": True}]}, '{"z": 1}'),
    "extended elsewhere": (
        an_object(one=IN_A, two={"allOf": [IN_A, B]}) | {"$defs": {"A": A}},
        '{"one": {"z": 1}, "two": {"a": 1, "b": 2}}',
    ),
    "by an anchor": (
        an_object(o={"allOf": [{"$ref": "#x"}, B]}) | {"$defs": {"A": A | {"$anchor": "x"}}},
        '{"o": {"a": 1, "b": 2}}',
    ),
}  # fmt: skip


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The forms that are compiled from now on, for texts of a model."""
    import llguidance

    compiled, matcher = [], llguidance.LLMatcher

    class Counting:
        def __new__(cls, tokenizer: Any, form: str, **options: Any) -> Any:
            compiled.append(form)
            return matcher(tokenizer, form, **options)

    monkeypatch.setattr(llguidance, "LLMatcher", Counting)
    return compiled


def test_a_form_is_compiled_once_and_each_text_follows_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = Tokenizer.open(default_model())
    constraints = Constraints(tokenizer, tokenizer.eos_ids)
    params = SamplingParams(regex="(yes|no)!")
    others = [SamplingParams(regex=f"{number}") for number in range(40)]
    compiled = counted(monkeypatch)
    made = [constraints.of(params) for _ in range(3)]
    assert compiled == [params.form]
    for constraint, text in zip(made, ("yes!", "no!", "yes"), strict=True):
        assert constraint is not None
        for token in tokenizer.encode(text, special=False):
            assert not constraint.forbidden(tokenizer.vocabulary)[token]
            constraint.advance(token)
        assert constraint.accepting == (text != "yes")
    for other in others:  # until the first one is forgotten
        constraints.of(other)
    assert not constraints.knows(params.form or "")
    constraints.of(params)
    assert compiled.count(params.form or "") == 2


@cache
def bundled() -> tuple[Tokenizer, Constraints]:
    tokenizer = Tokenizer.open(default_model())
    return tokenizer, Constraints(tokenizer, tokenizer.eos_ids)


def matches(schema: dict[str, Any], text: str) -> bool | None:
    """None: no text that begins so can match."""
    tokenizer, constraints = bundled()
    constraint = constraints.of(SamplingParams(json_schema=schema))
    assert constraint is not None
    for token in tokenizer.encode(text, special=False):
        if constraint.failure is not None or constraint.forbidden(tokenizer.vocabulary)[token]:
            return None
        constraint.advance(token)
    return constraint.accepting


@pytest.mark.parametrize("name", CLOSED)
def test_other_properties_are_excluded(name: str) -> None:
    schema, fine, wrong = CLOSED[name]
    assert [matches(schema, text) for text in fine] == [True] * len(fine)
    assert [matches(schema, text) for text in wrong] == [None] * len(wrong)


@pytest.mark.parametrize("name", OPEN)
def test_what_the_schema_leaves_open_stays_open(name: str) -> None:
    schema, text = OPEN[name]
    assert matches(schema, text)


def test_the_schema_is_kept_as_it_was_given() -> None:
    given = json.dumps(A)
    assert SamplingParams(json_schema=given).json_schema == given


@pytest.mark.parametrize("odd", [{"properties": 3}, {"allOf": 3}, {"$ref": 3}, {"$ref": "#/no"}])
def test_a_malformed_schema_is_the_callers_mistake(odd: dict[str, Any]) -> None:
    with pytest.raises(ImpossibleSetting, match="json_schema: "):
        SamplingParams(json_schema=an_object(o=odd))


def test_a_deep_schema_is_walked() -> None:
    schema = A
    for _ in range(50):
        schema = an_object(o=schema)
    assert matches(schema, '{"o": {"z') is None


def test_the_bundled_model_ends_an_object() -> None:
    """Where it may write keys of its own, it writes one until `max_tokens`."""
    schema = an_object(sum=INTEGER) | {"required": ["sum"]}
    schemas = [schema, schema | {"additionalProperties": True}]
    params = [SamplingParams(32, temperature=0.0, json_schema=each) for each in schemas]
    with LLM(threads=1) as model:
        prompt = model.tokenizer.encode_chat([{"role": "user", "content": "47 plus 38 is "}])
        closed, left_open = model.generate([prompt, prompt], params)
    assert closed.finish_reason == "stop"
    assert list(json.loads(closed.text or "")) == ["sum"]
    assert left_open.finish_reason == "incomplete"
