"""Does the benchmark of servers read what they send as they mean it, and is its model one that both
can serve?"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gguf")

from benchmarks.http_exchange import Exchange, exchange
from benchmarks.load_report import OURS, Round
from benchmarks.load_workload import Ask
from benchmarks.served_model import NOT_WRITTEN, tokens_of, vocabulary, write_served_model
from benchmarks.serving import front_rows, parse, workloads_of
from benchmarks.serving_contenders import DIRECT, answer_of, cached_of, times_of

from moesaic.models.configs.synthetic_architecture import synthetic_architecture
from moesaic.models.text.tokenizer import Tokenizer

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(text: str, **more: Any) -> bytes:
    body = {"choices": [{"text": text}]} | more
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def exchanged(*pieces: bytes) -> Exchange:
    """As it arrived, one piece each second."""
    made = Exchange(0.0)
    for number, piece in enumerate(pieces):
        made.raw += piece
        made.arrived.append((float(number + 1), len(made.raw)))
    made.ended = bytes(made.raw).endswith(b"\r\n0\r\n\r\n")
    return made


def test_each_token_has_the_time_at_which_the_end_of_its_piece_came() -> None:
    second = chunk(event(" w2") + event(" w3"))
    found = exchanged(
        HEAD + chunk(b": accepted\n\n"),
        chunk(event(" w1")) + second[:20],  # the rest comes later
        second[20:] + chunk(event("", usage={"prompt_tokens_details": {"cached_tokens": 7}})),
        chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n",
    )
    assert [each.at for each in found.events()] == [2.0, 3.0, 3.0, 3.0]
    assert times_of(found, 3) == [2.0, 3.0, 3.0]
    assert times_of(found, 4) == [2.0, 3.0, 3.0, 3.0], "one token had no text of its own"
    assert cached_of(found) == 7
    timings = chunk(event("", timings={"cache_n": 5}))
    assert cached_of(exchanged(HEAD, timings, b"0\r\n\r\n")) == 5


def test_an_answer_that_was_cut_has_failed() -> None:
    ask = Ask([1], 2)
    whole = (HEAD, chunk(event(" w1")), chunk(event(" w2")), b"0\r\n\r\n")
    assert answer_of(exchanged(*whole), ask, 0.0).failure is None
    cut = answer_of(exchanged(*whole[:-1]), ask, 0.0)
    assert cut.failure is not None
    assert cut.times == []


def test_a_real_server_is_asked_until_its_answer_ends() -> None:
    """In pieces with chunks, and with a length."""

    async def serve() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked = await reader.readuntil(b"\r\n\r\n")
            if asked.startswith(b"GET"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                return
            for piece in (HEAD, chunk(event(" w1")), b"0\r\n\r\n"):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.01)

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            assert (await exchange(address, "/health")).json() == {}
            found = await exchange(address, "/v1/completions", {"prompt": [1]})
            assert found.ended
            assert [each.value()["choices"] for each in found.events()] == [[{"text": " w1"}]]
            left = await exchange(address, "/", {}, lambda found: True)
            assert not left.ended

    asyncio.run(asyncio.wait_for(serve(), 30))


def test_every_word_of_the_model_is_a_text_of_its_own(tmp_path: Path) -> None:
    architecture = synthetic_architecture("moesaic-20m", 1)
    size = architecture.spec.vocab_size
    tokenizer = Tokenizer.open(write_served_model(architecture, "int4", tmp_path), size)
    ids = [0, 5, size - NOT_WRITTEN - 2]
    assert tokens_of(tokenizer.decode(ids)) == ids
    assert len(set(vocabulary(size))) == size


def test_what_is_no_word_is_never_the_likeliest(tmp_path: Path) -> None:
    from gguf import GGUFReader

    path = write_served_model(synthetic_architecture("moesaic-20m", 1), "int4", tmp_path)
    (output,) = [each for each in GGUFReader(path).tensors if each.name == "output.weight"]
    assert not output.data[-NOT_WRITTEN - 1 :].any()
    assert output.data[: -NOT_WRITTEN - 1].any(axis=1).all()


def test_what_the_server_adds_is_the_difference_of_medians() -> None:
    def found(p50: float) -> dict[str, Any]:
        return {"tpot_ms": {"p50": p50}, "front_cpu_ms_token": 0.2}

    rounds = [Round(64, {OURS: found(10.0 + n), DIRECT: found(9.5)}) for n in range(3)]
    (row,) = front_rows(rounds)
    assert row["added_ms"] == [0.5, 1.5, 2.5]
    assert row["front_cpu_ms_token"] == 0.2


def test_fewer_clients_ask_more_often() -> None:
    works = workloads_of(parse(["clients", "--requests", "1,8,64", "--fixed", "32,8"]))
    assert [(each.requests, each.batches) for each in works] == [(1, 16), (8, 2), (64, 1)]
    assert {each.prompts.median for each in works} == {32}
