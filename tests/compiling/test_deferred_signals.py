"""Does a signal that comes while code is compiled end the process, and leave the cache intact?"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from numba.core.registry import cpu_target

from moesaic.compiling.kept_code import deferred_signals, kept, kept_c_function


class Ended(SystemExit):
    """As the command line raises it for SIGTERM."""


@pytest.fixture(params=[signal.SIGTERM, signal.SIGINT])
def ending(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal whose handler raises `Ended`."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Ended(128 + number)

    before = signal.signal(request.param, end)
    yield request.param
    assert signal.signal(request.param, before) is end


def doubled(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize("folder", ["kept", None])
def test_a_signal_in_a_function_that_llvm_calls_is_not_lost(
    folder: str | None, ending: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLVM calls `_object_cache_notify`; ctypes prints and drops what is raised there."""
    place = None if folder is None else str(tmp_path / folder)
    engine = cpu_target.target_context.codegen()._engine._ee
    notify = engine._object_cache_notify

    def signalled(*told: Any) -> None:
        signal.raise_signal(ending)
        notify(*told)

    function: Any = kept(doubled, place)
    with monkeypatch.context() as patched:
        patched.setattr(engine, "_object_cache_notify", signalled)
        with pytest.raises(Ended):
            function(21)
    assert function(21) == 42
    with monkeypatch.context() as patched:
        patched.setattr(engine, "_object_cache_notify", signalled)
        with pytest.raises(Ended):
            kept_c_function("float64(float64)", doubled, place)
    assert kept_c_function("float64(float64)", doubled, place).ctypes(2.5) == 5.0


def test_a_signal_waits_for_the_end_of_the_block(ending: signal.Signals) -> None:
    done: list[str] = []

    def work(fails: bool) -> None:
        with deferred_signals():
            signal.raise_signal(ending)
            done.append("all of it")
            if fails:
                raise ValueError("and failed")

    for fails in (False, True):
        with pytest.raises(Ended):
            work(fails)
    assert done == ["all of it"] * 2


def test_what_is_ignored_stays_ignored_and_threads_change_nothing() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with deferred_signals():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    found: list[object] = []

    def look() -> None:
        with deferred_signals():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
