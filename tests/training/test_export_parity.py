"""Do the trained network, stock transformers and Moesaic compute the same from one export?"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from small_recipes import SHAPE, prepared, random_network
from training.attention import Masked
from training.documents import chat_prompt
from training.export import export, read_exported
from training.generation import continue_texts
from training.network import Network

from moesaic import LLM, SamplingParams
from moesaic.core.errors import BadCheckpoint, BadConfig, ImpossibleSetting
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.open_model import load_decoder, load_resident_experts, open_model
from moesaic.models.text.tokenizer import Tokenizer
from moesaic.models.token_batch import Segment

TOKENS = torch.randint(3, SHAPE.vocabulary, (2, 40), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("export") / "model"
    weights = {name: value.detach() for name, value in random_network().named_parameters()}
    export(SHAPE, weights, prepared(), place, torch.float32)
    return place


@cache
def stock(folder: Path) -> transformers.PreTrainedModel:
    kind = transformers.AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=torch.float32).eval()


def own_logits(network: Network) -> torch.Tensor:
    starts = torch.zeros(TOKENS.shape, dtype=torch.bool)
    starts[:, 0] = True
    with torch.no_grad():
        hidden, _ = network(TOKENS, Masked.inside(starts))
        return network.logits(hidden)


def test_logits_are_those_of_stock_transformers(folder: Path) -> None:
    with torch.no_grad():
        wanted = stock(folder)(TOKENS).logits
    assert wanted.std() > 0.5  # something is computed
    torch.testing.assert_close(own_logits(random_network()), wanted, rtol=1e-4, atol=1e-4)


def test_logits_are_those_of_moesaic(folder: Path) -> None:
    model = open_model(folder)
    decoder, experts = load_decoder(model, "fp32"), load_resident_experts(model, "fp32")
    cache = BlockCache(decoder.architecture.spec, 2, SHAPE.context, decoder.dtype)
    segments = [Segment(slot, TOKENS.shape[1]) for slot in range(2)]
    hidden = decoder.forward(TOKENS.flatten(), segments, cache, experts)
    found = decoder.logits(hidden).view(*TOKENS.shape, -1)
    torch.testing.assert_close(own_logits(random_network()), found, rtol=1e-4, atol=1e-4)


def test_documents_do_not_see_each_other() -> None:
    """A packed row gives every document what it gets alone."""
    network = random_network()
    starts = torch.zeros(1, 40, dtype=torch.bool)
    starts[:, [0, 13]] = True
    alone = torch.zeros(1, 27, dtype=torch.bool)
    alone[:, 0] = True
    with torch.no_grad():
        packed, _ = network(TOKENS[:1], Masked.inside(starts))
        single, _ = network(TOKENS[:1, 13:], Masked.inside(alone))
    torch.testing.assert_close(packed[:, 13:], single, rtol=1e-4, atol=1e-4)


def test_answers_are_those_of_stock_transformers(folder: Path) -> None:
    """Prompts of different lengths in one batch, as an evaluation has them."""
    prompts = [TOKENS[0, :9].tolist(), TOKENS[1, :20].tolist(), TOKENS[1, :3].tolist()]
    ours = continue_texts(random_network(), prompts, 16)
    for prompt, found in zip(prompts, ours, strict=True):
        wanted = (
            stock(folder)
            .generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)[0, len(prompt) :]
            .tolist()
        )
        assert found == (wanted[: wanted.index(0)] if 0 in wanted else wanted)


def test_moesaic_answers_a_chat_with_the_same_text(folder: Path) -> None:
    tokenizer = Tokenizer.open(folder)
    question = "How many apples are 12 and 7?"
    talk = [{"role": "user", "content": question}]
    assert tokenizer.render_chat(talk) == chat_prompt(question)
    (ours,) = continue_texts(random_network(), [tokenizer.encode(chat_prompt(question))], 12)
    with LLM(str(folder), dtype="fp32") as llm:
        answer = llm.chat(talk, SamplingParams(max_tokens=12, temperature=0.0))
    assert answer.text == tokenizer.decode(ours)


def test_stock_tokenizer_writes_the_same_chat(folder: Path) -> None:
    fast = transformers.AutoTokenizer.from_pretrained(folder)
    talk = [
        {"role": "user", "content": "2 and 2?"},
        {"role": "assistant", "content": "2 + 2 = 4."},
        {"role": "user", "content": "And 3?"},
    ]
    own = Tokenizer.open(folder)
    theirs = fast.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
    assert theirs == own.render_chat(talk)
    assert fast(theirs, add_special_tokens=False)["input_ids"] == own.encode_chat(talk)


def test_an_export_comes_back_as_it_was(folder: Path) -> None:
    there, back = random_network(), read_exported(folder)
    assert back.shape == SHAPE
    for name, weight in there.named_parameters():
        assert torch.equal(weight, dict(back.named_parameters())[name]), name


def test_an_export_replaces_no_strangers(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    with pytest.raises(ImpossibleSetting, match="is there and no model"):
        export(SHAPE, {}, prepared(), tmp_path / "letters")


def test_a_folder_without_an_export_is_refused_with_a_message(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="cannot be read"):
        read_exported(tmp_path)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(BadCheckpoint, match="not what its config says"):
        read_exported(tmp_path)
