"""Does a directory's tokenizer do here what the stock implementation does with it?"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from moesaic.models.text.tokenizer import Tokenizer, has_tokenizer
from small_tokenizers import ENGLISH, KINDS, OTHERS, save, stock, trained, write

PUBLISHED = Path(__file__).parents[3] / "shared/data/tokenizers/olmoe.json.gz"
TEXTS = (*ENGLISH, *OTHERS, "", " ", "  two  spaces\n\n\ttab ", "<s>a</s> few <|im_end|>\nexperts")


class Pair(NamedTuple):
    ours: Tokenizer
    stock: Any


def open_pair(folder: Path) -> Pair:
    return Pair(Tokenizer.open(folder), stock(folder))


def assert_equal(pair: Pair, text: str) -> None:
    for special in (True, False):
        ids = pair.ours.encode(text, special)
        assert ids == pair.stock.encode(text, add_special_tokens=special)
        for skip in (True, False):
            shown = pair.stock.decode(ids, skip_special_tokens=skip)
            assert pair.ours.decode(ids, skip) == shown


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    kind: str = request.param
    return open_pair(save(tmp_path_factory.mktemp("tokenizer"), kind))


def test_the_texts_of_single_tokens_make_the_whole(pair: Pair) -> None:
    """Spaces included, which decoders drop at the beginning of a text."""
    ids = pair.ours.encode(ENGLISH[0], special=False)
    assert "".join(map(pair.ours.token_text, ids)).strip() == ENGLISH[0]
    assert pair.ours.token_text(pair.ours.encode(" </s>", special=False)[-1]) == "</s>"


@pytest.mark.parametrize("text", TEXTS)
def test_text_and_tokens(pair: Pair, text: str) -> None:
    assert_equal(pair, text)


@given(text=st.text(max_size=40))
def test_any_text(pair: Pair, text: str) -> None:
    assert_equal(pair, text)


@given(ids=st.lists(st.integers(0, 500), max_size=30))
def test_any_tokens(pair: Pair, ids: list[int]) -> None:
    """Also those past the vocabulary, which models whose own is padded may choose."""
    for skip in (True, False):
        assert pair.ours.decode(ids, skip) == pair.stock.decode(ids, skip_special_tokens=skip)


def test_what_surrounds_a_text_is_the_tokenizers_choice(tmp_path: Path) -> None:
    """BOS comes from the post-processor: one of these has one that adds it."""
    ours = {kind: Tokenizer.open(save(tmp_path / kind, kind)) for kind in KINDS}
    assert {kind: tokenizer.encode("a")[0] for kind, tokenizer in ours.items()}["metaspace"] == 1
    assert ours["byte-level"].encode("a") == ours["byte-level"].encode("a", special=False)


@pytest.mark.parametrize("kind", ["byte-level", "metaspace"])
@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("eos", [True, False])
def test_older_flags_do_what_they_do_in_stock(
    tmp_path: Path, kind: str, bos: bool, eos: bool
) -> None:
    folder = save(tmp_path, kind, add_bos_token=bos, add_eos_token=eos)
    assert_equal(open_pair(folder), ENGLISH[0])


def test_a_file_that_truncates_and_pads(tmp_path: Path) -> None:
    folder = save(tmp_path, "byte-level", pad_token="</s>")
    backend = Backend.from_str(trained("byte-level"))
    backend.enable_truncation(4)
    backend.enable_padding(length=300, pad_id=2, pad_token="</s>")
    backend.save(str(folder / "tokenizer.json"))
    pair = open_pair(folder)
    assert len(pair.ours.encode(ENGLISH[0])) > 4
    assert_equal(pair, ENGLISH[0])


def test_sizes_and_names(pair: Pair) -> None:
    assert pair.ours.vocabulary == len(pair.stock)
    assert pair.ours.bos_id == pair.stock.bos_token_id == 1
    assert pair.ours.eos_ids == {pair.stock.eos_token_id} == {2}


def test_ids_with_holes(tmp_path: Path) -> None:
    """The size is what an id must be below, not how many there are."""
    folder = save(tmp_path, "byte-level")
    fields = json.loads(trained("byte-level"))
    last = max(fields["model"]["vocab"], key=lambda token: int(fields["model"]["vocab"][token]))
    fields["model"]["vocab"][last] = 1000
    write(folder / "tokenizer.json", fields)
    assert Tokenizer.open(folder).vocabulary == 1001


def added(content: str, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized", "special"), False)
    return {"content": content, **plain, **flags}


@pytest.mark.parametrize(
    "config",
    [
        {"bos_token": {"__type": "AddedToken", **added("<s>")}},
        {"eos_token": "experts"},  # an ordinary word made special by its name
        {"eos_token": None, "bos_token": None},
        {"pad_token": "<pad>"},  # in no file but this
        {"image_token": "<img>", "extra_special_tokens": ["<new>", "<s>"]},
        {"additional_special_tokens": ["<new>"]},
        {"extra_special_tokens": {"tool_token": "<tool>"}},
        {"added_tokens_decoder": {"420": added("<a>", special=True), "421": added("<b>")}},
        {"added_tokens_decoder": {"4": added("<|im_end|>"), "3": added("<|im_start|>")}},
        {"added_tokens_decoder": {"4": added("<|im_end|>", special=True, lstrip=True)}},
        {"eos_token": "<b>", "added_tokens_decoder": {"420": added("<b>", rstrip=True)}},
    ],
)
def test_special_tokens_of_the_config(tmp_path: Path, config: dict[str, Any]) -> None:
    pair = open_pair(save(tmp_path, "byte-level", **config))
    every = " experts <s> <pad><a> <b> few <tool><img>  <|im_start|> <|im_end|> <new>"
    assert_equal(pair, every)
    assert pair.ours.bos_id == pair.stock.bos_token_id
    assert pair.ours.eos_ids == {pair.stock.eos_token_id} - {None}
    assert pair.ours.vocabulary == len(pair.stock)


def test_special_tokens_in_a_file_of_their_own(tmp_path: Path) -> None:
    folder = save(tmp_path, "metaspace", bos_token=None)
    write(
        folder / "special_tokens_map.json", {"bos_token": added("<|im_start|>"), "eos_token": "a"}
    )
    pair = open_pair(folder)
    assert_equal(pair, "<|im_start|>a few")
    assert pair.ours.bos_id == pair.stock.bos_token_id == 3
    assert pair.ours.eos_ids == {pair.stock.eos_token_id}


def test_a_special_token_without_a_row_in_the_model_is_text(tmp_path: Path) -> None:
    folder = save(tmp_path, "byte-level", pad_token="<pad>")
    exact = Tokenizer.open(folder, vocab_size=420)
    assert exact.vocabulary == 420
    assert len(exact.encode("<pad>")) > 1
    assert Tokenizer.open(folder, vocab_size=421).encode("<pad>") == [420]


@pytest.mark.parametrize(
    ("generation", "model", "named", "expected"),
    [
        ([7, 8], 9, "</s>", {7, 8}),
        (7, 9, "</s>", {7}),
        (None, 9, "</s>", {9}),
        (None, [9, 0], "</s>", {0, 9}),
        ([], None, "</s>", {2}),
        (None, None, None, set()),
        (None, None, "<nowhere>", {420}),
    ],
)
def test_what_ends_a_text(
    tmp_path: Path, generation: Any, model: Any, named: str | None, expected: set[int]
) -> None:
    folder = save(tmp_path, "byte-level", eos_token=named)
    write(folder / "generation_config.json", {"eos_token_id": generation})
    write(folder / "config.json", {"eos_token_id": model})
    assert Tokenizer.open(folder).eos_ids == expected


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    if not PUBLISHED.is_file():
        pytest.skip("the published tokenizer is not here (looked in ../shared/data/tokenizers)")
    folder = tmp_path_factory.mktemp("olmoe")
    (folder / "tokenizer.json").write_bytes(gzip.decompress(PUBLISHED.read_bytes()))
    fields = {"eos_token": "<|endoftext|>", "pad_token": "<|padding|>"}
    write(folder / "tokenizer_config.json", fields | {"tokenizer_class": "GPTNeoXTokenizer"})
    write(folder / "config.json", {"model_type": "olmoe"})
    return Pair(Tokenizer.open(folder, vocab_size=50304), stock(folder))


@pytest.mark.parametrize("text", [*TEXTS, "                 |||IP_ADDRESS|||<|endoftext|>  x"])
def test_a_published_tokenizer(published: Pair, text: str) -> None:
    assert_equal(published, text)


def test_a_published_tokenizers_own_numbers(published: Pair) -> None:
    """Known values, so that not only two libraries' agreement is tested."""
    assert published.ours.vocabulary == 50280
    assert published.ours.eos_ids == {50279}
    assert published.ours.bos_id is None
    assert published.ours.encode("Hello") == [12092]


def test_whether_there_is_a_tokenizer(tmp_path: Path) -> None:
    assert not has_tokenizer(tmp_path)
    assert not has_tokenizer(tmp_path / "nowhere")
    assert has_tokenizer(save(tmp_path, "byte-level"))
