"""Is a text's least number of tokens never more than it has, and known for usual tokenizers?"""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers

import small_tokenizers
from moesaic.models.bundled_model import default_model
from moesaic.models.text.token_lengths import most_bytes
from moesaic.models.text.tokenizer import Tokenizer

KINDS = ("byte-level", "metaspace")
TEXTS = st.one_of(
    st.text(max_size=60), st.text("가각힣e\u0301\u1100\u1161\u11a8 \n<s>", max_size=60)
)


def backend(kind: str) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(small_tokenizers.trained(kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("composed", [False, True])
@given(text=TEXTS)
def test_no_text_has_fewer_tokens(kind: str, composed: bool, text: str) -> None:
    made = backend(kind)
    if composed:
        made.normalizer = normalizers.NFC()
    most = most_bytes(made)
    assert most is not None
    tokens = made.encode(text, add_special_tokens=False).ids
    assert len(tokens) * most >= len(text.encode())


def test_a_long_text_is_known_to_be_long(tmp_path: Path) -> None:
    for folder in (default_model(), small_tokenizers.save(tmp_path, "byte-level")):
        tokenizer = Tokenizer.open(folder)
        text = "All experts rest. " * 1000
        assert 0 < tokenizer.least_tokens(text) <= len(tokenizer.encode(text, special=False))


def test_nothing_is_said_where_parts_of_a_text_may_be_lost() -> None:
    stripping = backend("byte-level")
    stripping.add_special_tokens([AddedToken("<|pad|>", rstrip=True)])
    splitting = backend("byte-level")
    removed = pre_tokenizers.Split(" ", "removed")
    splitting.pre_tokenizer = pre_tokenizers.Sequence([removed, splitting.pre_tokenizer])
    folding = backend("byte-level")
    folding.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.NFKC()])
    without_bytes = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    for made in (stripping, splitting, folding, without_bytes):
        assert most_bytes(made) is None
