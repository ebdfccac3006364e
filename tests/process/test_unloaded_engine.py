"""Is an engine that was unloaded gone, and there again for the next request?"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path

import pytest
from engines import engine, greedy, pid_of, soon, until

from moesaic import AsyncLLM
from moesaic.core.errors import BadFile, EngineFailed, ImpossibleSetting
from moesaic.models.bundled_model import model_path

PROMPT = [5, 6, 7]


async def unloaded(model: AsyncLLM) -> None:
    pid = pid_of(model)
    model.unload()
    await until(lambda: model.state.unloaded and not os.path.exists(f"/proc/{pid}"))


def test_requests_start_an_unloaded_engine_again() -> None:
    """Also one that comes before the process has ended; those that run keep it."""

    async def use() -> None:
        async with engine() as model:
            running = asyncio.create_task(model.generate([PROMPT], greedy(200, ignore_eos=True)))
            await until(lambda: model.stats().generated_tokens > 10)
            model.unload()
            (whole,) = await running
            assert len(whole.tokens) == 200
            assert model.state.ready
            model.unload()
            answers = await asyncio.gather(*(model.generate([PROMPT], greedy(4)) for _ in range(2)))
            assert [each.tokens for (each,) in answers] == [whole.tokens[:4]] * 2
            await unloaded(model)

    soon(use())


def test_a_model_that_cannot_be_loaded_again_is_tried_for_the_next_request(tmp_path: Path) -> None:
    folder = shutil.copytree(model_path(None), tmp_path / "model")
    weights = next(folder.glob("*.safetensors"))

    async def use() -> None:
        async with engine(model=folder) as model:
            await model.generate([PROMPT], greedy(4))
            await unloaded(model)
            assert not model.state.ready
            assert model.state.failure is None
            assert model.stats().blocks.total == 0
            assert model.stats().generated_tokens == 4, "until it begins again"
            weights.rename(tmp_path / "elsewhere")
            with pytest.raises(BadFile):
                await model.generate([PROMPT], greedy(4))
            assert model.state.unloaded
            (tmp_path / "elsewhere").rename(weights)
            (again,) = await model.generate([PROMPT], greedy(4))
            assert len(again.tokens) == 4

    soon(use())


def test_a_process_that_cannot_be_started_is_tried_for_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the system has no more files, processes or memory."""

    def refused(*given: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def use() -> None:
        async with engine() as model:
            await unloaded(model)
            with monkeypatch.context() as change:
                change.setattr("moesaic.engine.process.client.EngineLink", refused)
                for _ in range(2):
                    with pytest.raises(EngineFailed, match="Too many open files"):
                        await model.generate([PROMPT], greedy(4))
            assert model.state.unloaded
            assert model.state.failure is None
            (again,) = await model.generate([PROMPT], greedy(4))
            assert len(again.tokens) == 4

    soon(use())


def test_an_engine_of_this_process_cannot_be_unloaded_alone() -> None:
    async def use() -> None:
        async with engine(process=False) as model:
            with pytest.raises(ImpossibleSetting, match="give process=True"):
                model.unload()

    soon(use())
