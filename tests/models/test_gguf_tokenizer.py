"""Does the tokenizer in a GGUF file's metadata make the tokens that the published one makes?"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import transformers

from gguf_models import write_tokenizer
from moesaic.core.errors import BadTokenizer
from moesaic.models.text.gguf.pre_tokenizers import PRE_TOKENIZERS
from moesaic.models.text.tokenizer import Tokenizer, has_tokenizer
from small_tokenizers import BYTES, ENGLISH, OTHERS, SPECIAL, save, trained

PUBLISHED = Path(__file__).parents[3] / "shared/data/tokenizers/olmoe.json.gz"
TEXTS = (
    *ENGLISH,
    *OTHERS,
    "",
    " ",
    "  two  spaces\n\n\ttab ",
    "12345 67 I'LL he'll \r\n\r\n x",
    "<s>a</s> few <|im_end|>\nexperts",
    "e\u0301 is not yet composed",
)
Add = Callable[[gguf.GGUFWriter], object]


def finish(writer: gguf.GGUFWriter) -> None:
    writer.add_tensor("token_embd.weight", np.zeros((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(file: Path, content: dict[str, Any], pre: str, rows: int, add: Add) -> Path:
    """A file with a tokenizer and nothing else."""
    writer = gguf.GGUFWriter(file, "qwen3moe")
    write_tokenizer(writer, content, pre, rows)
    add(writer)
    finish(writer)
    return file


def nothing(writer: gguf.GGUFWriter) -> None:
    pass


def small(file: Path, pre: str, add: Add = nothing) -> Path:
    return write(file, json.loads(trained("byte-level")), pre, 430, add)


def assert_same(ours: Tokenizer, reference: tokenizers.Tokenizer, text: str) -> None:
    ids = reference.encode(text, add_special_tokens=False).ids
    assert ours.encode(text, special=False) == ids
    for skip in (True, False):
        assert ours.decode(ids, skip) == reference.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("text", TEXTS)
def test_gpt2(tmp_path: Path, text: str) -> None:
    ours = Tokenizer.open(small(tmp_path / "a.gguf", "gpt-2"), 430)
    assert_same(ours, tokenizers.Tokenizer.from_str(trained("byte-level")), text)


@pytest.mark.parametrize("text", TEXTS)
def test_qwen2(tmp_path: Path, text: str) -> None:
    model = json.loads(trained("byte-level"))["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    stock = transformers.Qwen2Tokenizer(vocab=model["vocab"], merges=merges)
    backend = tokenizers.Tokenizer.from_str(stock.backend_tokenizer.to_str())
    backend.add_special_tokens(list(SPECIAL))
    assert_same(Tokenizer.open(small(tmp_path / "a.gguf", "qwen2")), backend, text)


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-4o", "aWord THEY'LL 12345 x/y\n/", "a|Word| THEY'LL| |123|45| x|/y|\n|/"),
        ("gpt-4o", "été  two\n\n z", "été| | two|\n\n| z"),
        ("deepseek-v3", "Don't 12345 中文abc, x.com", "Don|'t| |123|45| |中文|abc|,| x|.com"),
        ("deepseek-v3", "a  b?!\nカナ", "a| | b|?!\n|カナ"),
        ("deepseek-llm", "Don't 123 中文abc, х.com ", "Don|'|t| |1|2|3| |中文|abc|,| х|.|com| "),
        ("deepseek-llm", "a\r\n Ա ա 가", "a|\r|\n| Ա| ա |가"),
        ("deepseek-coder", "Don't  12 中文a", "Don|'|t|  |1|2| |中文|a"),
        ("refact", "I'll write 2024 x", "I|'ll| write| |2|0|2|4| x"),
        (
            "kimi-k2",
            "aWord THEY'LL 12345 中文abc x/y\n/",
            "a|Word| THEY'LL| |123|45| |中文|abc| x|/y|\n|/",
        ),
        ("kimi-k2", "カナ漢 é", "カナ|漢| é"),
    ],
)
def test_where_texts_are_split(pre: str, text: str, pieces: str) -> None:
    splitter = PRE_TOKENIZERS[pre].splitter()
    found = [text[begin:end] for _, (begin, end) in splitter.pre_tokenize_str(text)]
    assert "|".join(found) == pieces


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="needs the published tokenizer")
def test_olmoe_as_published(tmp_path: Path) -> None:
    content = json.loads(gzip.decompress(PUBLISHED.read_bytes()))
    ours = Tokenizer.open(write(tmp_path / "a.gguf", content, "olmo", 50304, nothing), 50304)
    reference = tokenizers.Tokenizer.from_str(json.dumps(content))
    for text in TEXTS:
        assert_same(ours, reference, text)


def sentencepiece(file: Path, add: Add = nothing) -> dict[str, float]:
    """Scores of all tokens that may be merged to: the earlier learned, the higher."""
    content = json.loads(trained("metaspace"))["model"]
    order = ["".join(pair) for pair in content["merges"]]
    kinds = gguf.TokenType
    special = {"<unk>": kinds.UNKNOWN} | dict.fromkeys(SPECIAL[1:], kinds.CONTROL)
    tokens = sorted(content["vocab"], key=content["vocab"].__getitem__)
    types = [special.get(token, kinds.BYTE if token in BYTES else kinds.NORMAL) for token in tokens]
    scores = [-float(order.index(token)) if token in order else -1000.0 for token in tokens]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*tokens, "[PAD]"])
    writer.add_token_types([*types, kinds.UNUSED])
    writer.add_token_scores([*scores, 0.0])
    writer.add_bos_token_id(1)
    add(writer)
    finish(writer)
    return {t: s for t, s, k in zip(tokens, scores, types, strict=True) if k == kinds.NORMAL}


def by_definition(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's rule, pair by pair: the best token two neighbours make, leftmost first."""
    pieces = list(("▁" + text).replace(" ", "▁")) if text else []
    while True:
        pairs = [a + b for a, b in itertools.pairwise(pieces)]
        known = [place for place, pair in enumerate(pairs) if pair in scores]
        if not known:
            break
        best = max(known, key=lambda place: (scores[pairs[place]], -place))
        pieces[best : best + 2] = [pairs[best]]
    spelled = [[p] if p in scores else [BYTES[b] for b in p.encode()] for p in pieces]
    return [piece for each in spelled for piece in each]


@pytest.mark.parametrize("text", [text for text in TEXTS if "<" not in text])
def test_sentencepiece(tmp_path: Path, text: str) -> None:
    scores = sentencepiece(tmp_path / "a.gguf")
    ours = Tokenizer.open(tmp_path / "a.gguf")
    vocabulary = json.loads(trained("metaspace"))["model"]["vocab"]
    ids = ours.encode(text, special=False)
    assert ids == [vocabulary[piece] for piece in by_definition(text, scores)]
    assert ours.decode(ids) == text
    assert ours.encode(text) == [1, *ids]


def test_sentencepiece_between_special_tokens(tmp_path: Path) -> None:
    """As the published tokenizer: every stretch of text has its own first space."""
    sentencepiece(tmp_path / "a.gguf")
    ours = Tokenizer.open(tmp_path / "a.gguf")
    ids = ours.encode("a few<|im_end|>experts", special=False)
    a, b = ours.encode("a few", special=False), ours.encode("experts", special=False)
    assert ids == [*a, SPECIAL.index("<|im_end|>"), *b]


def test_tokens_that_can_be_cut_in_too_many_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.gguf"
    sentencepiece(file)
    monkeypatch.setattr("moesaic.models.text.gguf.tokenizer.MAX_MERGES", 3)
    with pytest.raises(BadTokenizer, match=r"tokens: can be cut into each other in more than 3"):
        Tokenizer.open(file)


def test_sentencepiece_without_scores(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    sentencepiece(file, lambda w: w.kv_data[0].pop("tokenizer.ggml.scores"))
    with pytest.raises(BadTokenizer, match=r"ggml.scores: expected a list of \d+ numbers"):
        Tokenizer.open(file)


def test_unused_rows_have_no_text(tmp_path: Path) -> None:
    ours = Tokenizer.open(small(tmp_path / "a.gguf", "gpt-2"))
    assert ours.vocabulary <= 420
    assert ours.decode([425]) == ""


def test_named_tokens_and_template(tmp_path: Path) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(True)
        writer.add_chat_template(
            "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
        )

    ours = Tokenizer.open(small(tmp_path / "a.gguf", "gpt-2", add))
    assert ours.bos_id == 1
    assert ours.eos_ids == {2, SPECIAL.index("<|im_end|>")}
    assert ours.encode("a")[0] == 1
    assert ours.encode("a", special=False) == ours.encode("a")[1:]
    assert ours.render_chat([{"role": "user", "content": "hi"}]) == "<s>hi</s>"


def test_both_ends_of_a_text(tmp_path: Path) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)

    ours = Tokenizer.open(small(tmp_path / "a.gguf", "gpt-2", add))
    assert ours.encode("a") == [1, *ours.encode("a", special=False), 2]


def test_an_unknown_kind_uses_the_file_beside_it(tmp_path: Path) -> None:
    file = small(tmp_path / "a.gguf", "tekken")
    assert has_tokenizer(file)
    with pytest.raises(BadTokenizer, match=r"tokenizer.ggml.pre: 'tekken' is not known.*beside"):
        Tokenizer.open(file)
    save(tmp_path, "metaspace")
    beside = Tokenizer.open(tmp_path)
    assert Tokenizer.open(file).encode(ENGLISH[0]) == beside.encode(ENGLISH[0])


def _bad_merge(writer: gguf.GGUFWriter) -> None:
    writer.kv_data[0]["tokenizer.ggml.merges"].value[0] = "nospace"


def _unknown_piece(writer: gguf.GGUFWriter) -> None:
    writer.kv_data[0]["tokenizer.ggml.merges"].value[0] = "nowhere tobefound"


def _few_types(writer: gguf.GGUFWriter) -> None:
    del writer.kv_data[0]["tokenizer.ggml.token_type"].value[3:]


def _twice(writer: gguf.GGUFWriter) -> None:
    tokens = writer.kv_data[0]["tokenizer.ggml.tokens"].value
    tokens[300] = tokens[301]


@pytest.mark.parametrize(
    ("add", "complaint"),
    [
        (_bad_merge, "tokenizer.ggml.merges: expected two tokens"),
        (_unknown_piece, "tokenizer.ggml.merges: do not fit the tokens"),
        (_few_types, "tokenizer.ggml.token_type: expected a list of 430 numbers"),
        (_twice, "tokenizer.ggml.tokens: expected every token once"),
        (lambda w: w.add_eos_token_id(430), "eos_token_id: expected one of the 430 tokens"),
        (lambda w: w.add_add_space_prefix(True), "add_space_prefix: expected false"),
        (lambda w: w.add_string("tokenizer.ggml.add_bos_token", "x"), "expected true or false"),
    ],
)
def test_damaged_metadata(tmp_path: Path, add: Add, complaint: str) -> None:
    with pytest.raises(BadTokenizer, match=complaint):
        Tokenizer.open(small(tmp_path / "a.gguf", "gpt-2", add))


def test_more_tokens_than_the_model_has_rows(tmp_path: Path) -> None:
    with pytest.raises(BadTokenizer, match="the model knows 100"):
        Tokenizer.open(small(tmp_path / "a.gguf", "gpt-2"), 100)
