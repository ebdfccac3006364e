"""Is the toy a model like any other, does it learn its page, and is it made whole or not at all?"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NoReturn

import pytest
import torch
import transformers
from transformers.models.olmoe.modeling_olmoe import load_balancing_loss_func

import stock
from moesaic import LLM, SamplingParams
from moesaic.core.errors import ImpossibleSetting
from moesaic.models.architecture import RouterRule
from moesaic.models.router import choose
from moesaic.models.toy import Toy
from moesaic.models.toy_training import unevenness

PAGE = """\
The cat sat on the mat near the door. It looked at the dog. The dog slept in the sun all day.

"Who has seen my hat?" asked the old man from the hill. Nobody in town had seen it.
"""
LEARNED = 35  # training steps that are enough for a page this short
GREEDY = SamplingParams(max_tokens=80, temperature=0.0)


@pytest.fixture(scope="module")
def toy() -> Toy:
    return Toy(PAGE, LEARNED)


@pytest.fixture(scope="module")
def folder(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the toy in it; not to be changed."""
    place = tmp_path_factory.mktemp("made") / "toy"
    toy.make(place)
    return place


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copied"))


def interrupt(steps: int) -> NoReturn:
    raise KeyboardInterrupt


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_it_says_its_page_by_heart_and_ends_with_the_paragraph(toy: Toy, folder: Path) -> None:
    prompts = toy.page.openings(4, words=3)
    assert prompts == ["The cat sat", "It looked at", "The dog slept", '"Who has seen']
    with LLM(folder, threads=1) as llm:
        answers = llm.generate(prompts, GREEDY)
    first, second = (" ".join(paragraph.split()) for paragraph in PAGE.split("\n\n"))
    for prompt, answer, paragraph in zip(prompts, answers, [first] * 3 + [second], strict=True):
        assert f"{prompt}{answer.text}" == paragraph[paragraph.index(prompt) :]
        assert answer.finish_reason == "stop"


def test_the_stock_library_reads_all_of_it_and_agrees(folder: Path) -> None:
    kind = transformers.AutoModelForCausalLM
    model, found = kind.from_pretrained(folder, dtype="auto", output_loading_info=True)
    assert not any(found.values()), found
    assert model.dtype == torch.float32
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with LLM(folder, threads=1) as llm:
        (answer,) = llm.generate(["the old man"], GREEDY)
    tokens = tokenizer("the old man")["input_ids"]
    assert tokens == list(answer.prompt_tokens)
    made = model.generate(torch.tensor([tokens]), do_sample=False, max_new_tokens=80)
    assert made[0, len(tokens) :].tolist() == list(answer.tokens)
    assert tokenizer.decode(answer.tokens, skip_special_tokens=True) == answer.text


def test_in_a_conversation_it_goes_on_with_what_was_said_last(folder: Path) -> None:
    said = [{"role": "user", "content": text} for text in ("Hello", "The cat sat")]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.apply_chat_template(said, tokenize=False) == "The cat sat"
    with LLM(folder, threads=1) as llm:
        assert llm.chat(said, GREEDY).tokens == llm.generate(["The cat sat"], GREEDY)[0].tokens


def test_no_router_forgets_its_experts(toy: Toy, folder: Path) -> None:
    """Asked of the stock model's routers."""
    model = stock.reload(folder, torch.float32)
    tokens = torch.tensor([toy.page.lesson().tokens])
    with torch.inference_mode():
        scores = model(tokens, output_router_logits=True).router_logits
    assert len(scores) == toy.spec.num_layers
    for layer in scores:
        chosen = layer.topk(toy.spec.top_k).indices.flatten()
        uses = torch.bincount(chosen, minlength=toy.spec.num_experts)
        assert (uses > 0).sum() >= 12
        assert uses.max() < 0.8 * tokens.numel()


def test_unevenness_is_the_stock_load_balancing_loss_per_choice() -> None:
    logits = torch.randn(50, 16, generator=torch.Generator().manual_seed(0)) * 3
    ours = unevenness(choose(RouterRule(4, "softmax", normalized=False), logits, None))
    torch.testing.assert_close(4 * ours, load_balancing_loss_func((logits,), 16, 4))


def test_the_same_toy_is_made_again(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    for name in ("one", "other"):
        Toy(PAGE, 1).make(tmp_path / name)
    assert contents(tmp_path / "one") == contents(tmp_path / "other")
    assert torch.get_num_threads() == before


def test_only_this_very_toy_is_recognised(toy: Toy, copied: Path, tmp_path: Path) -> None:
    assert toy.is_in(copied)
    assert not Toy(PAGE, LEARNED + 1).is_in(copied)
    assert not Toy(f"{PAGE} More.", LEARNED).is_in(copied)
    assert not toy.is_in(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_damaged_one_is_not(name: str, toy: Toy, copied: Path) -> None:
    (copied / name).write_bytes((copied / name).read_bytes()[:-100])
    assert not toy.is_in(copied)
    (copied / name).unlink()
    assert not toy.is_in(copied)


def test_it_replaces_an_older_toy_only_when_it_is_whole(copied: Path) -> None:
    older, newer = contents(copied), Toy("Another page. It is short.", 1)
    with pytest.raises(KeyboardInterrupt):
        newer.make(copied, interrupt)
    assert contents(copied) == older
    newer.make(copied)
    assert newer.is_in(copied)
    assert list(copied.parent.iterdir()) == [copied]


def test_it_replaces_nothing_else(toy: Toy, tmp_path: Path) -> None:
    """And is not even trained before that is known."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ImpossibleSetting, match="something else is there"):
        toy.make(tmp_path, interrupt)
    assert contents(tmp_path) == {"notes.txt": b"mine"}


def test_training_steps_are_counted_from_0() -> None:
    with pytest.raises(ImpossibleSetting, match="-1 training steps"):
        Toy(PAGE, -1)
