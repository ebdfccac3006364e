"""`LLM(accelerator="cuda")` from settings to text: batches, pieces of prompts, gates, recordings.
The CPU plays the GPU where there is none."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from executors import layers_of

import stock
from moesaic import LLM, SamplingParams
from moesaic.core.errors import ImpossibleSetting
from moesaic.engine import gpu_memory, loading
from moesaic.engine.assemble import assemble
from moesaic.engine.engine_settings import EngineSettings
from moesaic.machines import accelerators
from moesaic.workloads.documents import documents
from moesaic.workloads.source import open_trace

TIGHT: dict[str, Any] = {"threads": 1, "max_step_tokens": 7, "max_sequences": 3, "dtype": "fp32"}
CUDA: dict[str, Any] = {"accelerator": "cuda", "cache_ratio": 0.25, "checked": True}
LENGTHS = (3, 20, 1, 9, 12)
HALF = 1e-3  # what fp16 leaves of a number below 1


@pytest.fixture(autouse=True)
def _a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        return
    monkeypatch.setattr(loading, "assemble", partial(assemble, device="cpu"))
    monkeypatch.setattr(gpu_memory, "accelerator_free", lambda settings: 2_000_000_000)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(0, 97, (n,), generator=generator).tolist() for n in LENGTHS]


def said(name: str, **options: Any) -> list[tuple[int, ...]]:
    with LLM(stock.saved(name).folder, **(TIGHT | options)) as llm:
        made = llm.generate(prompts(), SamplingParams(max_tokens=10, temperature=0.0))
        return [tuple(one.tokens) for one in made]


@pytest.mark.parametrize("name", stock.FAMILIES)
def test_batches_and_prompts_in_pieces(name: str) -> None:
    assert said(name, **CUDA) == said(name)


@pytest.mark.parametrize("gate", ["little:k=1", "big-little:gamma=0.6"])
@pytest.mark.parametrize("name", ["olmoe", "deepseek-v2"])
def test_gates(name: str, gate: str) -> None:
    assert said(name, gate=gate, **CUDA) == said(name, gate=gate)


@pytest.mark.parametrize("system", ["hybrimoe", "ktransformers", "adapmoe", "moesaic"])
def test_named_systems(system: str) -> None:
    assert said("qwen2-moe", system=system, **CUDA) == said("qwen2-moe")


def test_a_recording_is_the_cpus(tmp_path: Path) -> None:
    files = [tmp_path / "cuda.moet", tmp_path / "cpu.moet"]
    said("olmoe", record=files[0], **CUDA)
    said("olmoe", record=files[1])
    cuda, cpu = (list(documents(open_trace(file))) for file in files)
    assert len(cuda) == len(cpu) == len(LENGTHS)
    for one, other in zip(cuda, cpu, strict=True):
        assert np.array_equal(one.experts, other.experts)
        assert one.weights == pytest.approx(other.weights, abs=HALF)


def test_slots_are_what_fits_on_the_gpu() -> None:
    with LLM(stock.saved("olmoe").folder, **TIGHT, accelerator="cuda") as llm:
        plan = llm.model.plan
        assert plan.capacity.slots == llm.model.spec.num_expert_blocks, "all of so small a model"
        assert layers_of(llm.model.runner).slots.count == plan.capacity.slots


def test_without_a_gpu_it_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    row = accelerators.ACCELERATORS["cuda"]
    without = accelerators.Accelerator(
        row.summary, row.described_as, row.capabilities, lambda: "no driver: install it"
    )
    monkeypatch.setitem(accelerators.ACCELERATORS, "cuda", without)
    with pytest.raises(ImpossibleSetting) as caught:
        LLM(stock.saved("olmoe").folder, accelerator="cuda")
    assert "accelerator 'cuda' cannot be used here: no driver: install it" in str(caught.value)
    assert "--accelerator none or emulated" in str(caught.value)


@pytest.mark.parametrize(("problem", "chosen"), [(None, "cuda"), ("no driver", "none")])
def test_auto_takes_the_gpu_where_there_is_one(
    problem: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(accelerators.VARIABLE)
    monkeypatch.setattr(accelerators, "cuda_problem", lambda: problem)
    monkeypatch.setattr(accelerators, "compiler_problem", lambda: None)
    assert EngineSettings().accelerator == chosen
    assert EngineSettings(accelerator="auto").accelerator == chosen


@pytest.mark.parametrize("name", ["olmoe", "deepseek-v2"])
def test_a_prefix_is_read_once_and_the_text_is_the_same(name: str) -> None:
    """KV is kept and copied on the device: at the same time, and from a request that has ended."""
    shared = prompts()[1] * 2
    several = [[*shared, end] for end in (1, 2, 3)]
    params = SamplingParams(max_tokens=8, temperature=0.0)

    def texts(**options: Any) -> tuple[list[tuple[int, ...]], list[int]]:
        with LLM(stock.saved(name).folder, **(TIGHT | options)) as llm:
            made = [*llm.generate(several, params), *llm.generate([several[0]], params)]
        return [one.tokens for one in made], [one.cached_tokens for one in made]

    found, cached = texts(**CUDA)
    assert cached == [0, 40, 40, 40]
    assert found == texts(prefix_cache=False)[0]
