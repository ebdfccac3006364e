"""An error while several clients share a model: does each get it, and does none wait for ever?"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from small_llms import TIGHT, greedy

import stock
from moesaic import AsyncLLM
from moesaic.core.errors import ImpossibleSetting
from moesaic.workloads.recorder import Recorder

FULL = "no space left"


def recording_llm(folder: Path) -> AsyncLLM:
    return AsyncLLM(stock.saved("olmoe").folder, record=folder / "t.moet", **TIGHT)


def soon(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


async def begun(model: AsyncLLM, prompt: int) -> asyncio.Task[Any]:
    before = model.stats().generated_tokens
    call = asyncio.create_task(model.generate([[prompt]], greedy(200)))
    while model.stats().generated_tokens < before + 2:
        await asyncio.sleep(0.001)
    return call


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(FULL)

    monkeypatch.setattr(Recorder, "end_document", full)


@pytest.mark.usefixtures("full_disk")
def test_a_client_who_leaves_a_full_disk(tmp_path: Path) -> None:
    """To leave is to end a recorded document, which fails: the others hear of it, and the next
    are served, without a recording."""

    async def serve() -> None:
        async with recording_llm(tmp_path) as model:
            leaver = await begun(model, 1)
            stayer = await begun(model, 2)
            leaver.cancel()
            with pytest.raises(OSError, match=FULL):
                await stayer
            assert len((await model.generate([[3]], greedy(2)))[0].tokens) == 2

    soon(serve())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("full_disk")
def test_an_error_without_a_callback_is_raised_on_closing(tmp_path: Path) -> None:
    before = threading.enumerate()

    async def serve() -> None:
        model = recording_llm(tmp_path)
        leaver = await begun(model, 1)
        leaver.cancel()
        await asyncio.sleep(0)
        with pytest.raises(OSError, match=FULL):
            await model.close()
        await model.close()
        assert model.model.closed

    soon(serve())
    assert list(tmp_path.iterdir()) == []
    assert not any(one.name.startswith("moesaic") for one in set(threading.enumerate()) - {*before})


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_while_closing_reaches_the_waiting_clients(tmp_path: Path) -> None:
    async def serve() -> None:
        model = recording_llm(tmp_path)
        call = await begun(model, 1)
        await model.close()
        with pytest.raises(OSError, match=FULL):
            await call

    soon(serve())


def test_a_thread_that_dies_leaves_no_client_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even those whose orders it had not heard."""

    async def serve() -> None:
        async with recording_llm(tmp_path) as model:
            batcher = model.model.batcher
            last = threading.Event()

            def fail() -> None:
                last.wait(10)
                raise OSError(FULL)

            with monkeypatch.context() as broken:
                broken.setattr(batcher, "step", fail)
                broken.setattr(batcher, "cancel_all", fail)
                calls = [asyncio.create_task(model.generate([[n]], greedy(2))) for n in range(3)]
                await asyncio.sleep(0.05)
                calls.append(asyncio.create_task(model.generate([[4]], greedy(2))))
                await asyncio.sleep(0)
                last.set()
                said = await asyncio.gather(*calls, return_exceptions=True)
                assert [str(one) for one in said] == [FULL] * 4
                with pytest.raises(ImpossibleSetting, match="was closed"):
                    await model.generate([[1]])

    soon(serve())
