"""Does a person get text, streams, conversations, and a clear word where they ask too much?"""

from __future__ import annotations

import gc
import shutil
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_llms import MACHINES, TEXTS, TIGHT, greedy, llm, prompts, stock_greedy

import small_tokenizers
import stock
from chat_models import talking
from moesaic import LLM, SamplingParams
from moesaic.core.errors import BadConfig, ImpossibleSetting, UnknownName
from moesaic.engine.batcher import Batcher
from moesaic.engine.request import Update
from stock_text import stock_logits

KINDS = list(small_tokenizers.KINDS)
TOKENS = 24


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_the_stock_models(kind: str) -> None:
    known = talking(kind)
    with llm(known.folder) as model:
        said = model.generate(list(TEXTS), greedy(TOKENS, ignore_eos=True))
    for text, one in zip(TEXTS, said, strict=True):
        ids = known.tokenizer(text)["input_ids"] or [known.tokenizer.bos_token_id]
        written = stock_greedy(known.model, ids, TOKENS)
        assert list(one.prompt_tokens) == ids
        assert list(one.tokens) == written
        assert one.text == known.tokenizer.decode(written, skip_special_tokens=True)


@pytest.mark.parametrize("kind", KINDS)
def test_streamed_pieces_make_the_completions_text(kind: str) -> None:
    with llm(talking(kind).folder) as model:
        for text in TEXTS:
            (whole,) = model.generate(text, greedy(TOKENS))
            chunks = list(model.stream(text, greedy(TOKENS)))
            assert "".join(chunk.text for chunk in chunks) == whole.text
            assert tuple(chunk.token for chunk in chunks) == whole.tokens
            reasons = [chunk.finish_reason for chunk in chunks]
            assert reasons == [None] * (len(chunks) - 1) + [whole.finish_reason]


def test_text_ends_where_a_stop_string_begins() -> None:
    known = talking()
    with llm(known.folder) as model:
        (whole,) = model.generate(TEXTS[0], greedy(TOKENS, ignore_eos=True))
        assert whole.text is not None
        middle = len(whole.text) // 2
        stop = whole.text[middle : middle + 3]
        expected = whole.text[: whole.text.index(stop)]
        params = greedy(TOKENS, ignore_eos=True, stop=stop)
        (cut,) = model.generate(TEXTS[0], params)
        chunks = list(model.stream(TEXTS[0], params))
    assert cut.text == expected
    assert cut.finish_reason == "stop"
    assert len(cut.tokens) < len(whole.tokens)
    assert cut.tokens == whole.tokens[: len(cut.tokens)]
    assert "".join(chunk.text for chunk in chunks) == expected
    assert chunks[-1].finish_reason == "stop"


def test_an_end_of_sequence_ends_it_and_has_no_text(tmp_path: Path) -> None:
    """The model's own: here a token that it is known to write."""
    known = talking()
    ids = known.tokenizer(TEXTS[0])["input_ids"]
    written = stock_greedy(known.model, ids, TOKENS)
    eos = written[9]
    shutil.copytree(known.folder, tmp_path, dirs_exist_ok=True)
    small_tokenizers.write(tmp_path / "generation_config.json", {"eos_token_id": [eos]})
    expected = stock_greedy(known.model, ids, TOKENS, eos_token_id=eos, pad_token_id=0)
    with llm(tmp_path) as model:
        (ended,) = model.generate(TEXTS[0], greedy(TOKENS))
        (past,) = model.generate(TEXTS[0], greedy(TOKENS, ignore_eos=True))
        (later,) = model.generate(TEXTS[0], greedy(TOKENS, min_tokens=12))
    assert list(ended.tokens) == expected
    assert ended.finish_reason == "stop"
    assert ended.text == known.tokenizer.decode(expected[:-1], skip_special_tokens=True)
    assert list(past.tokens) == written
    assert past.finish_reason == "length"
    assert eos not in later.tokens[:12]
    assert len(later.tokens) > 12


def test_a_seed_repeats_in_any_batch() -> None:
    params = SamplingParams(max_tokens=16, temperature=1.0, seed=7)
    with llm(stock.saved("olmoe").folder) as model:
        alone = model.generate([[1, 2, 3]], params)[0].tokens
        others = [SamplingParams(max_tokens=9, temperature=1.2)] * 3
        among = model.generate([[4], [5, 6], [9] * 10, [1, 2, 3]], [*others, params])[3].tokens
        (other,) = model.generate([[1, 2, 3]], SamplingParams(max_tokens=16, seed=8))
    assert among == alone
    assert other.tokens != alone


def test_a_conversation_is_asked_through_the_template() -> None:
    known = talking()
    messages = [{"role": "user", "content": "Which experts rest?"}]
    ids = known.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    with llm(known.folder) as model:
        answer = model.chat(messages, greedy(6, ignore_eos=True))
        streamed = list(model.stream_chat(messages, greedy(6, ignore_eos=True)))
    assert list(answer.prompt_tokens) == ids
    assert list(answer.tokens) == stock_greedy(known.model, ids, 6)
    assert tuple(chunk.token for chunk in streamed) == answer.tokens


def test_log_probabilities_are_the_stock_models() -> None:
    saved = stock.saved("olmoe")
    with llm(saved.folder) as model:
        asked, plain = model.generate([[1, 2]] * 2, [greedy(3, logprobs=2), greedy(3)])
        chunks = list(model.stream([1, 2], greedy(3, logprobs=2)))
    assert plain.logprobs is None
    assert asked.logprobs is not None
    logits, _ = stock_logits(saved.model, [1, 2, *asked.tokens[:2]])
    best = logits.log_softmax(-1)[1:].topk(2)
    for seen in (list(asked.logprobs), [chunk.logprobs for chunk in chunks]):
        for one, ids, values in zip(seen, best.indices, best.values, strict=True):
            assert one is not None
            assert one.token == ids[0]
            assert one.logprob == pytest.approx(values[0].item(), abs=1e-4)
            assert [other.token for other in one.alternatives] == ids.tolist()
            assert one.alternatives[1].logprob == pytest.approx(values[1].item(), abs=1e-4)


def test_streams_and_calls_may_alternate() -> None:
    saved = stock.saved("olmoe")
    with llm(saved.folder) as model:
        stream = model.stream([1, 2, 3], greedy(8))
        tokens = [next(stream).token]
        (other,) = model.generate([[4, 5]], greedy(5))
        tokens += [chunk.token for chunk in stream]
    assert tokens == stock_greedy(saved.model, [1, 2, 3], 8)
    assert list(other.tokens) == stock_greedy(saved.model, [4, 5], 5)


def test_who_stops_listening_frees_the_place() -> None:
    with llm(stock.saved("olmoe").folder, max_sequences=1) as model:
        for chunk in model.stream([1, 2, 3], greedy(50)):
            assert chunk.finish_reason is None
            break
        assert model.model.batcher.idle
        assert len(model.generate([[1]], greedy(2))[0].tokens) == 2


def test_the_context_limits_the_answer() -> None:
    saved = stock.saved("olmoe")
    with llm(saved.folder, max_model_len=16) as model:
        (full,) = model.generate(prompts((12,)), greedy(100))
        (last,) = model.generate(prompts((15,)), greedy(100))
        with pytest.raises(ImpossibleSetting, match=r"16 tokens.* may have 16 .* 15.*256"):
            model.generate([[1], *prompts((16,))], greedy(1))
        assert model.stats().generated_tokens == 4 + 1  # nothing of the refused call was begun
    assert list(full.tokens) == stock_greedy(saved.model, prompts((12,))[0], 4)
    assert full.finish_reason == last.finish_reason == "length"
    assert len(last.tokens) == 1


@pytest.mark.parametrize(
    ("context", "advice"),
    [
        (16, "shorten it to 15, or raise max_model_len (--max-model-len) to at most 256"),
        (256, "shorten it to 255"),
        (1, "raise max_model_len (--max-model-len) to at most 256"),
    ],
)
def test_advice_about_a_long_prompt_can_be_followed(context: int, advice: str) -> None:
    model = llm(stock.saved("olmoe").folder, max_model_len=context)
    with model, pytest.raises(ImpossibleSetting) as refusal:
        model.generate([[1] * context])
    assert str(refusal.value).endswith(f"at least one of them generated: {advice}")


@pytest.mark.parametrize(
    ("prompt", "params", "complaint"),
    [
        ("text", None, r"no tokenizer\.json.*token ids"),
        ([[1, 2]], SamplingParams(stop="x"), r"no tokenizer\.json.*stop string"),
        ([[]], None, "no tokens"),
        ([[1, 97]], None, "token id 97.* 0 to 96"),
        ([[-1]], None, "token id -1"),
        ([[1.5]], None, "neither text nor a list of token ids"),
        (None, None, "None is neither text nor a list of token ids"),
        (5, None, "5 is neither text"),
        ([None], None, "None is neither text"),
        (b"ab", None, "b'ab' is neither text"),
        ([bytearray(b"ab")], None, "is neither text"),
        ([True, False], None, r"\[True, False\] is neither text"),
        ([[1, True]], None, r"\[1, True\] is neither text"),
        ({1: 2}, None, "is neither text"),
        ([[1], [2]], [SamplingParams()], "2 prompts and 1 sampling"),
        ([1], {"max_tokens": 3}, r"are {'max_tokens': 3}: give SamplingParams"),
        ([[1]], [{"max_tokens": 3}], r"are {'max_tokens': 3}: give SamplingParams"),
        ([1], 3, "are 3: give SamplingParams"),
        ([1], "x", "are 'x': give SamplingParams"),
    ],
)
def test_what_cannot_be_asked(prompt: Any, params: Any, complaint: str) -> None:
    with llm(stock.saved("olmoe").folder) as model:
        with pytest.raises(ImpossibleSetting, match=complaint):
            model.generate(prompt, params)
        assert model.stats().steps == 0
        (said,) = model.generate([1, 2], greedy(1))  # one prompt needs no list around it
    assert said.text is None
    assert list(said.prompt_tokens) == [1, 2]


def test_streams_and_conversations_want_sampling_params_too() -> None:
    asked: Any = {"max_tokens": 3}
    with llm(talking().folder) as model:
        with pytest.raises(ImpossibleSetting, match="give SamplingParams"):
            model.stream([1], asked)
        with pytest.raises(ImpossibleSetting, match="give SamplingParams"):
            model.chat([{"role": "user", "content": "Hello"}], asked)


def test_an_array_of_numbers_is_a_list_of_token_ids() -> None:
    array: Any = np.array([1, 2])
    with llm(stock.saved("olmoe").folder) as model:
        (said,) = model.generate(array, greedy(1))
    assert list(said.prompt_tokens) == [1, 2]


def test_an_empty_text_without_a_beginning(tmp_path: Path) -> None:
    shutil.copytree(talking().folder, tmp_path, dirs_exist_ok=True)
    small_tokenizers.write(tmp_path / "tokenizer_config.json", {"eos_token": "</s>"})
    with llm(tmp_path) as model, pytest.raises(ImpossibleSetting, match="no tokens"):
        model.generate("")


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ({"cache_ration": 0.5}, UnknownName, "cache_ratio"),
        ({"system": "hybridmoe"}, UnknownName, "hybrimoe"),
        ({"cache_ratio": 0.5}, ImpossibleSetting, "no accelerator"),
        ({"record": "/no/such/folder/t.moet"}, ImpossibleSetting, "No such file"),
        ({"max_model_len": 1000}, ImpossibleSetting, "1000.*256"),
    ],
)
def test_what_cannot_be_loaded(
    options: dict[str, Any], error: type[Exception], complaint: str
) -> None:
    before = threading.enumerate()
    with pytest.raises(error, match=complaint):
        LLM(stock.saved("olmoe").folder, **options)
    assert threading.enumerate() == before


def test_no_model_there(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"config\.json"):
        LLM(tmp_path)


def test_loading_tells_how_far_it_is() -> None:
    reported: list[tuple[int, int]] = []
    LLM(stock.saved("olmoe").folder, progress=lambda *far: reported.append(far), **TIGHT).close()
    assert reported == [(done, 36) for done in range(1, 37)]  # three layers of twelve experts


def test_options_come_before_systems_and_settings() -> None:
    folder = stock.saved("olmoe").folder
    with llm(folder, "emulated", system="adapmoe", cache="lfu:pool=global") as model:
        chosen = model.model.settings
    assert str(chosen.policies) == "gpu-only + lfu:pool=global + next-layer"


def test_closing_frees_threads_and_ends_streams() -> None:
    before = threading.enumerate()
    model = llm(stock.saved("olmoe").folder, "emulated")
    assert len(threading.enumerate()) > len(before)
    stream = model.stream([1, 2, 3], greedy(50))
    next(stream)
    model.close()
    model.close()
    assert threading.enumerate() == before
    assert [chunk.finish_reason for chunk in stream] == ["cancelled"]
    with pytest.raises(ImpossibleSetting, match="was closed"):
        model.generate([[1]])


@pytest.mark.parametrize("machine", MACHINES)
def test_a_forgotten_model_is_closed(machine: str, tmp_path: Path) -> None:
    before, trace = threading.enumerate(), tmp_path / "t.moet"
    model = llm(stock.saved("olmoe").folder, machine, record=trace)
    model.generate([[1, 2, 3]], greedy(3))
    store = weakref.ref(model.model.runner.machine.store)
    assert store() is not None
    del model
    gc.collect()
    assert store() is None
    assert threading.enumerate() == before
    assert list(tmp_path.iterdir()) == [trace]


def test_stats_say_what_it_cost() -> None:
    """Of a system that moves experts whatever they cost."""
    with llm(stock.saved("olmoe").folder, "emulated", system="on-demand") as model:
        assert model.stats().hit_rate is None
        (said,) = model.generate([[1, 2, 3]], greedy(8))
        stats = model.stats()
    assert (stats.prompt_tokens, stats.generated_tokens) == (3, 8)
    assert (stats.steps, stats.decode_steps) == (8, 7)
    assert stats.hit_rate is not None
    assert 0 < stats.hit_rate <= 1
    assert stats.bytes_moved > 0
    assert stats.overhead_us is not None
    assert stats.overhead_us > 0
    times = said.timings
    assert times.time_to_first_token_s is not None
    assert times.decode_tokens_per_s is not None
    assert 0 < times.time_to_first_token_s < times.total_s
    rest = times.total_s - times.time_to_first_token_s
    assert times.decode_tokens_per_s == pytest.approx(7 / rest)
    assert stats.step_s < times.total_s


def test_no_step_is_under_way_while_a_caller_has_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What callers do with a GPU between chunks is theirs. Whole answers need not wait."""
    asked: list[bool] = []
    step = Batcher.step

    def noted(self: Batcher, ahead: bool = True) -> list[Update]:
        asked.append(ahead)
        return step(self, ahead)

    monkeypatch.setattr(Batcher, "step", noted)
    with LLM(threads=1) as llm:
        assert len(list(llm.stream("One", SamplingParams(max_tokens=3)))) == 3
        assert asked == [False] * 3
        llm.generate("One", SamplingParams(max_tokens=3))
    assert asked[3:] == [True] * 3
