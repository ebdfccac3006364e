"""Is what the model reads whole, in order, and kept apart from what it is judged by?"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import pytest
from small_recipes import RECIPE, SHAPE, prepared, write_corpus
from training.batches import DataPosition, Mixture, boundaries
from training.corpus import documents, tidy
from training.documents import mixed, plain, talk
from training.packing import PERCENT, Encoded, pack
from training.problem_rows import ShardMaker
from training.problems import generate
from training.prose_rows import ProseRows, as_rows
from training.shards import Position, ShardStream
from training.token_file import read_tokens, write_tokens
from training.tokenizer import ASSISTANT, END, END_ID, SPECIAL, USER, open_tokenizer

from moesaic.core.errors import ImpossibleSetting


def maker(seed: int = 1, problems: int = 60, length: int = 256) -> ShardMaker:
    return ShardMaker(str(prepared()), length, problems, 10, seed)


def test_every_digit_is_a_token() -> None:
    tokenizer = open_tokenizer(prepared())
    tokens = tokenizer.encode("Tom has 347 apples, 12 pears.").tokens
    assert [token for token in tokens if any(letter.isdigit() for letter in token)] == list("34712")


def test_special_tokens_come_first_and_whole() -> None:
    tokenizer = open_tokenizer(prepared())
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == [0, 1, 2]
    assert tokenizer.encode(f"{USER}a{ASSISTANT}{END}").ids[::2] == [1, 2]


def test_any_text_survives_the_tokenizer() -> None:
    tokenizer = open_tokenizer(prepared())
    text = "Déjà vu:\n\n  3 + 4 = 7; 路由器 😀"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_held_out_documents_are_never_trained_on(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, documents=120)
    kept, learned = set(documents(corpus, True)), set(documents(corpus, False))
    assert len(kept) == 2
    assert len(learned) == 118
    assert not kept & learned


def test_prose_is_tidied() -> None:
    assert tidy("## I.\n\n\n\n_“No,”_ he **said**—") == 'I.\n\n"No," he said--'


@pytest.mark.parametrize("content", [b"not compressed", b""])
def test_a_damaged_corpus_is_refused_with_a_message(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ImpossibleSetting, match=r"no \*\.jsonl\.xz"):
        list(documents(tmp_path, False))
    (tmp_path / "a.jsonl.xz").write_bytes(content)
    with pytest.raises(ImpossibleSetting, match="no corpus file"):
        list(documents(tmp_path, False))


def test_token_files_come_back_as_they_were(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 4096, 1001).astype(np.uint16)
    write_tokens(tmp_path / "t.xz", tokens)
    assert np.array_equal(read_tokens(tmp_path / "t.xz"), tokens)
    (tmp_path / "t.xz").write_bytes(b"\x00")
    with pytest.raises(ImpossibleSetting, match="no token file"):
        read_tokens(tmp_path / "t.xz")


def test_packing_keeps_documents_whole_and_wastes_little() -> None:
    random = Random(3)
    given = [
        Encoded([number] * random.randrange(5, 60), [PERCENT] * 60) for number in range(1, 301)
    ]
    given = [Encoded(one.tokens, one.percent[: len(one.tokens)]) for one in given]
    rows = pack([*given, Encoded([999] * 129, [PERCENT] * 129)], 128)
    assert 999 not in rows.tokens  # longer than a row
    for number, document in enumerate(given, start=1):
        places = np.argwhere(rows.tokens == number)
        assert len(places) == len(document.tokens)
        assert len(set(places[:, 0])) == 1
        assert list(places[:, 1]) == list(range(places[0, 1], places[0, 1] + len(places)))
        assert rows.starts[tuple(places[0])]
        assert rows.percent[tuple(places[0])] == 0
        assert (rows.percent[tuple(places[1:].T)] == PERCENT).all()
    assert (rows.tokens != END_ID).mean() > 0.95


def test_only_answers_count_in_full() -> None:
    rows = maker().held_out("held_out_numbers", 40)
    assert set(np.unique(rows.percent)) == {0, PERCENT}
    tokenizer = open_tokenizer(prepared())
    asked = tokenizer.decode(rows.tokens[0][rows.percent[0] == 0].tolist(), False)
    answered = tokenizer.decode(rows.tokens[0][rows.percent[0] == PERCENT].tolist(), False)
    assert "Answer: " in answered
    assert END in answered
    assert USER not in answered
    assert "Question: " in asked or USER in asked


def test_all_problems_are_told_each_once() -> None:
    problems = list(generate("train", 5, 300))
    documents = list(mixed(iter(problems), Random(1)))
    text = "".join(piece.text for document in documents for piece in document)
    assert text.count(END) == 300
    assert all(problem.worked in text for problem in problems)
    assert any(len(document) > 2 for document in documents)
    assert plain(problems[0]) in documents or talk(problems[:1]) in [list(one) for one in documents]


def test_boundaries_have_one_shape_and_end_with_all() -> None:
    starts = np.zeros((2, 8), np.bool_)
    starts[:, 0] = starts[0, 3] = starts[1, [2, 4, 6]] = True
    assert boundaries(starts, 3).tolist() == [0, 3, 8, 10, 12, 14, 16]
    assert boundaries(starts, 4).tolist() == [0, 3, 8, 10, 12, 14, 16, 16, 16]
    assert boundaries(starts, 2).tolist() == [0, 3, 8, 10, 16]  # no room: rows stay apart


def test_prose_is_read_whole_each_epoch_in_another_order() -> None:
    tokens = np.arange(1, 101, dtype=np.uint16)
    prose = ProseRows(tokens, 10, seed=1)
    epochs = [prose.rows(number * prose.per_epoch, prose.per_epoch).tokens for number in range(2)]
    assert all(len(set(epoch.flatten().tolist())) == 90 for epoch in epochs)
    assert not np.array_equal(epochs[0], epochs[1])
    assert np.array_equal(ProseRows(tokens, 10, seed=1).rows(9, 9).tokens, epochs[1])
    with pytest.raises(ImpossibleSetting, match="too few"):
        ProseRows(tokens[:15], 10, seed=1)


def test_prose_documents_start_after_an_end() -> None:
    rows = as_rows(np.array([[5, 6, END_ID, 7, 8]], np.uint16))
    assert rows.starts.tolist() == [[True, False, False, True, False]]
    assert rows.percent.tolist() == [[0, PERCENT, PERCENT, 0, PERCENT]]


def test_shards_differ_and_repeat() -> None:
    assert np.array_equal(maker()(3).tokens, maker()(3).tokens)
    assert not np.array_equal(maker()(3).tokens[:5], maker()(4).tokens[:5])
    assert not np.array_equal(maker(2)(3).tokens[:5], maker()(3).tokens[:5])


def test_workers_give_what_one_process_gives_and_a_position_goes_on() -> None:
    with ShardStream(maker(), 0) as here, ShardStream(maker(), 1) as there:
        first = [stream.rows(7) for stream in (here, there)]
        assert np.array_equal(first[0].tokens, first[1].tokens)
        position = here.position
        onward = here.rows(9)
        assert position != here.position
    with ShardStream(maker(), 0, position) as again:
        assert np.array_equal(again.rows(9).tokens, onward.tokens)
    assert position.shard > 0 or position.row == 7


def test_a_batch_has_its_share_of_prose() -> None:
    prose = ProseRows(np.full(10_000, 9, np.uint16), SHAPE.context, 1)
    with ShardStream(maker(length=SHAPE.context), 0) as problems:
        mixture = Mixture(RECIPE.data, prose, problems, DataPosition())
        batches = list(islice(iter(mixture.batch, None), 3))
        assert mixture.position.prose_row == 3 * RECIPE.data.prose_rows
        assert mixture.position.problems != Position()
    for batch in batches:
        assert batch.tokens.shape == (RECIPE.data.rows, SHAPE.context)
        assert (batch.tokens == 9).all(axis=1).sum() == RECIPE.data.prose_rows
