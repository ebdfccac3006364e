"""A GPU that fails, is full or has an old driver: is it said in words, does the request end, and
can the engine go on, or does it say why not? The CPU plays the GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from executors import layers_of

import stock
from moesaic import LLM, SamplingParams
from moesaic.core.errors import ImpossibleSetting, MoesaicError
from moesaic.engine import gpu_memory, loading
from moesaic.engine.assemble import assemble
from moesaic.engine.engine_settings import EngineSettings
from moesaic.hardware.nvidia import _too_old, torch_cuda_version
from moesaic.kernels.gpu.driver import CudaFailed
from moesaic.machines.layerwise.gpu_layers import GpuLayers
from moesaic.machines.real.device_slots import DeviceSlots

HOW: dict[str, Any] = {"accelerator": "cuda", "cache_ratio": 0.25, "threads": 1, "dtype": "fp32"}
PARAMS = SamplingParams(max_tokens=4, temperature=0.0)
PROMPT = [1, 2, 3, 4]


REAL_FREE = gpu_memory.accelerator_free  # which the fixture replaces


@pytest.fixture(autouse=True)
def _a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "assemble", partial(assemble, device="cpu"))
    monkeypatch.setattr(gpu_memory, "accelerator_free", lambda settings: 2_000_000_000)


def opened(**changes: Any) -> LLM:
    return LLM(stock.saved("olmoe").folder, **(HOW | changes))


def machine_of(llm: LLM) -> GpuLayers:
    return layers_of(llm.model.runner)


def fail_once(
    machine: GpuLayers, error: Exception, monkeypatch: pytest.MonkeyPatch, name: str = "start"
) -> None:
    usual = getattr(machine, name)

    def failing(*args: Any) -> None:
        monkeypatch.setattr(machine, name, usual)
        raise error

    monkeypatch.setattr(machine, name, failing)


def test_after_an_error_of_a_step_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened() as llm:
        (usual,) = llm.generate([PROMPT], PARAMS)
        for error, words in (
            (RuntimeError("a kernel is wrong"), "a kernel is wrong"),
            (torch.OutOfMemoryError("CUDA out of memory"), "another process must have taken it"),
        ):
            fail_once(machine_of(llm), error, monkeypatch)
            with pytest.raises((RuntimeError, MoesaicError), match=words):
                llm.generate([PROMPT], PARAMS)
            (again,) = llm.generate([PROMPT], PARAMS)
            assert again.tokens == usual.tokens


def test_after_an_error_of_the_gpu_it_says_why_it_cannot_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everything that is asked of it raises from then on, also closing's last wait."""
    llm = opened()
    machine = machine_of(llm)
    llm.generate([PROMPT], PARAMS)
    lost = RuntimeError("CUDA error: an illegal memory access was encountered\nSee the docs")

    def raising() -> None:
        raise CudaFailed("the GPU failed")

    monkeypatch.setattr(machine.streams, "synchronize", raising)
    fail_once(machine, lost, monkeypatch)
    for _ in range(2):
        with pytest.raises(CudaFailed) as caught:
            llm.generate([PROMPT], PARAMS)
        assert "in mid-step: CUDA error: an illegal memory access was encountered." in str(
            caught.value
        )
        assert "load the model again in a new one" in str(caught.value)
    llm.close()
    llm.close()


def test_memory_that_was_taken_after_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")

    monkeypatch.setattr(DeviceSlots, "__init__", full)
    with pytest.raises(ImpossibleSetting, match="less free memory than when the model was planned"):
        opened()


def test_memory_that_another_process_has_before_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "accelerator_free", lambda settings: 1_000_000_000)
    with pytest.raises(ImpossibleSetting, match="are free there"):
        opened()


def test_a_driver_that_pytorch_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def old() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040)")

    monkeypatch.setattr(gpu_memory, "check_usable", lambda name: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", old)
    with pytest.raises(ImpossibleSetting, match="too old") as caught:
        REAL_FREE(EngineSettings(accelerator="cuda"))
    assert "update the driver or install an older build of PyTorch" in str(caught.value)


def test_a_driver_older_than_pytorchs_cuda_is_seen_before_loading_it() -> None:
    assert _too_old("11.8", "12.8") == (
        "NVIDIA's driver is too old, for CUDA 11.8, and PyTorch was built for 12.8: update the "
        "driver, or install an older build of PyTorch"
    )
    assert _too_old("12.2", "12.8") is None, "the same major version serves"
    assert _too_old("13.0", "12.8") is None
    assert _too_old(None, "12.8") is None
    assert torch_cuda_version() == torch.version.cuda
