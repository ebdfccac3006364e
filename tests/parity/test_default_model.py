"""Is the bundled model the same model to the stock library and to Moesaic?"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import transformers
from training.problems import generate

import stock
from moesaic import LLM, SamplingParams
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.bundled_model import default_model
from moesaic.models.open_model import load_decoder, load_resident_experts, open_model
from moesaic.models.text.tokenizer import Tokenizer
from moesaic.models.token_batch import Segment
from stock_text import stock_logits

PROBLEMS = [problem.question for problem in generate("held_out_numbers", seed=3, count=3)]
TEXTS = ["The river", "12 + 7 =", "Question: Who is older?\nAnswer:", "Ça coûte 3,50 €. 東京!", " "]
CONVERSATIONS = [
    [("user", "Who is older?")],
    [("user", "Ann is 5."), ("assistant", "Ann is 5."), ("user", "Ben is 7. Who is older?")],
    [("user", "  spaces, \n lines and <|assistant|> \t")],
]
LONGEST = 32  # tokens of an answer


@cache
def stock_model() -> Any:
    return stock.reload(default_model(), torch.float32)


@cache
def stock_tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(default_model())


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.open(default_model())


def as_messages(said: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in said]


def test_the_stock_library_reads_all_of_it() -> None:
    kind = transformers.AutoModelForCausalLM
    model, found = kind.from_pretrained(default_model(), dtype="auto", output_loading_info=True)
    assert not any(found.values()), found
    assert model.dtype == torch.bfloat16
    assert model.generation_config.eos_token_id == stock_tokenizer().eos_token_id


@pytest.mark.parametrize("text", [*PROBLEMS[:2], *TEXTS], ids=range(2 + len(TEXTS)))
def test_texts_are_the_same_tokens(text: str, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(text)
    assert ids == stock_tokenizer()(text)["input_ids"]
    assert tokenizer.decode(ids) == stock_tokenizer().decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("said", CONVERSATIONS, ids=range(len(CONVERSATIONS)))
def test_conversations_are_the_same_text(
    said: list[tuple[str, str]], answered: bool, tokenizer: Tokenizer
) -> None:
    messages = as_messages(said)
    expected = stock_tokenizer().apply_chat_template(
        messages, tokenize=False, add_generation_prompt=answered
    )
    assert tokenizer.render_chat(messages, answered) == expected


@pytest.mark.parametrize("text", [*PROBLEMS, *TEXTS], ids=range(len(PROBLEMS) + len(TEXTS)))
def test_logits_are_the_stock_models(text: str, tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode(text)
    expected, _ = stock_logits(stock_model(), tokens)
    torch.testing.assert_close(logits(tokens), expected, rtol=0.0, atol=1e-4)


@cache
def ours() -> tuple[Any, Any]:
    model = open_model(default_model())
    return load_decoder(model, "fp32"), load_resident_experts(model, "fp32")


def logits(tokens: list[int]) -> torch.Tensor:
    decoder, experts = ours()
    memory = BlockCache(decoder.architecture.spec, 1, len(tokens), decoder.dtype)
    with torch.inference_mode():
        segments = [Segment(0, len(tokens))]
        hidden = decoder.forward(torch.tensor(tokens), segments, memory, experts)
        answer: torch.Tensor = decoder.logits(hidden)
    return answer


@pytest.mark.parametrize("accelerator", ["none", "emulated"])
def test_answers_are_the_stock_models(accelerator: str) -> None:
    """Wherever experts are computed, question by question and as a text that goes on."""
    params = SamplingParams(max_tokens=LONGEST, temperature=0.0)
    with LLM(dtype="fp32", threads=1, accelerator=accelerator, checked=True) as llm:
        chats = [llm.chat(as_messages([("user", question)]), params) for question in PROBLEMS]
        said = [*chats, *llm.generate(TEXTS[:2], params)]
    for answer in said:
        tokens = list(answer.prompt_tokens)
        made = stock_answer(tuple(tokens))
        assert list(answer.tokens) == made
        assert answer.text == stock_tokenizer().decode(made, skip_special_tokens=True)


@cache
def stock_answer(tokens: tuple[int, ...]) -> list[int]:
    """With its own idea of where an answer ends."""
    asked = torch.tensor([tokens])
    with torch.inference_mode():
        made = stock_model().generate(
            asked, attention_mask=torch.ones_like(asked), max_new_tokens=LONGEST
        )
    answer: list[int] = made[0, len(tokens) :].tolist()
    return answer
