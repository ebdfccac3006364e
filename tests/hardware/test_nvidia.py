"""Is a GPU found that is there, and the reason where none can be used?"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moesaic.hardware import nvidia
from moesaic.hardware.nvidia import NvidiaDriver, NvidiaGpu, cuda_problem, nvidia_driver


class Library:
    """The driver's functions, of a machine with some GPUs; `init` is what cuInit answers."""

    def __init__(
        self, gpus: list[tuple[str, int]], init: int = 0, capability: tuple[int, int] = (9, 0)
    ) -> None:
        self._gpus, self._init = gpus, init
        # A driver that knows stream memory operations by the old name only.
        self._attributes = {92: 1, 75: capability[0], 76: capability[1]}

    def cuInit(self, flags: int) -> int:
        return self._init

    def cuDriverGetVersion(self, at: Any) -> int:
        return _store(at, 12080)

    def cuDeviceGetCount(self, at: Any) -> int:
        return _store(at, len(self._gpus))

    def cuDeviceGet(self, at: Any, number: int) -> int:
        return _store(at, number)

    def cuDeviceGetName(self, at: Any, size: int, device: Any) -> int:
        at.value = self._gpus[device.value][0].encode()
        return 0

    def cuDeviceTotalMem_v2(self, at: Any, device: Any) -> int:
        return _store(at, self._gpus[device.value][1])

    def cuDeviceGetAttribute(self, at: Any, which: int, device: Any) -> int:
        return _store(at, self._attributes[which]) if which in self._attributes else 1


def _store(at: Any, value: int) -> int:
    at._obj.value = value
    return 0


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    nvidia_driver.cache_clear()
    yield
    nvidia_driver.cache_clear()


def with_library(monkeypatch: pytest.MonkeyPatch, library: Library) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)


def with_torch(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
    found = None if folder is None else SimpleNamespace(origin=str(folder / "__init__.py"))
    monkeypatch.setattr(nvidia, "find_spec", lambda name: found)


def test_gpus_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    with_library(monkeypatch, Library([("NVIDIA H200", 150 * 10**9), ("other", 8 * 10**9)]))
    gpus = tuple(
        NvidiaGpu(name, size * 10**9, True, (9, 0))
        for name, size in (("NVIDIA H200", 150), ("other", 8))
    )
    assert nvidia_driver() == NvidiaDriver("12.8", gpus, None)


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert nvidia_driver().gpus == ()
    assert "driver (libcuda.so.1) is not installed: install" in (cuda_problem() or "")


@pytest.mark.parametrize("library", [Library([("a", 1)], init=100), Library([])])
def test_no_gpu(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    with_library(monkeypatch, library)
    assert "finds no GPU" in (cuda_problem() or "")


def test_pytorch_must_be_there_and_built_with_cuda(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_library(monkeypatch, Library([("NVIDIA H200", 150 * 10**9)]))
    with_torch(monkeypatch, None)
    assert "PyTorch is not installed" in (cuda_problem() or "")
    with_torch(monkeypatch, tmp_path)
    assert "PyTorch was built without CUDA" in (cuda_problem() or "")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libtorch_cuda.so").touch()
    assert cuda_problem() is None


def test_an_old_gpu_is_refused_with_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_library(monkeypatch, Library([("Tesla T4", 16 * 10**9)], capability=(7, 5)))
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libtorch_cuda.so").touch()
    with_torch(monkeypatch, tmp_path)
    said = cuda_problem() or ""
    assert "Tesla T4 is too old (compute capability 7.5)" in said
    assert "--accelerator none" in said
    nvidia_driver.cache_clear()
    with_library(monkeypatch, Library([("GPU", 16 * 10**9)], capability=(0, 0)))
    assert cuda_problem() is None, "one that does not say is tried"
