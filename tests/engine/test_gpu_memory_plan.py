"""Does the plan of a machine with a GPU keep its two memories apart, and to their limits? Numbers
are computed by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from planned_models import GROUPED, LATENT, architecture

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.units import GB
from moesaic.engine.assemble import on_store, synthetic_store
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.memory_plan import MemoryPlan, plan_memory
from moesaic.engine.memory.plan_parts import CONTEXT
from moesaic.engine.memory.sizes import (
    MOST_PIECES,
    PIECE_LENGTH,
    SAMPLING,
    SINGLE_PIECE_LENGTH,
    Sizes,
)
from moesaic.machines.accelerators import CUDA
from moesaic.machines.captured.latent_buffers import LatentBuffers
from moesaic.machines.layerwise.gpu_layers import GpuLayers
from moesaic.model_info.model_zoo import load_model
from moesaic.models.synthetic_model import synthetic_decoder
from moesaic.policies.policy_set import with_options

OLMOE = load_model("olmoe-1b-7b")
BLOCK = 3 * 2048 * 1024 * 2
PLENTY = 10_000 * GB
SMALL: dict[str, Any] = {"max_sequences": 2, "max_step_tokens": 16, "max_model_len": 64}


def plan(spec: Any = OLMOE, free: float | None = None, **fields: Any) -> MemoryPlan:
    settings = with_options(EngineSettings(accelerator="cuda"), fields)
    return plan_memory(spec, settings, PLENTY, None if free is None else round(free))


def part_bytes(found: MemoryPlan) -> dict[str, int]:
    return {part.name: part.bytes for part in found.parts}


def test_experts_are_in_the_host_and_everything_else_on_the_gpu() -> None:
    found = plan(cache_ratio=0.25, max_model_len=1000)
    main = [part.name for part in found.parts if part.main]
    device = [part.name for part in found.parts if part.accelerator]
    assert main == ["routed experts", "host workspace", "left free"]
    assert device == [
        *("dense weights", "KV cache", "workspace", "graphs", "CUDA context", "slots"),
        "gate bank",
    ]
    sizes = part_bytes(found)
    assert sizes["routed experts"] == 16 * 64 * BLOCK
    assert sizes["slots"] == (256 + CUDA.staging_slots(64, BLOCK)) * BLOCK
    pieces = 32 * 16 * 4 * (128 + 2)  # sequences, heads, pieces of 256 positions
    assert sizes["graphs"] > 3 * 4 * (pieces + 32 * 50304)
    assert sizes["KV cache"] == 8 * 1024 * 16 * (2048 + 2048) * 2
    assert sizes["gate bank"] == 16 * 64 * 2048 * 2
    assert sizes["CUDA context"] == CONTEXT == 1_000_000_000
    assert found.accelerator_bytes == sum(sizes[name] for name in device)
    assert found.main_bytes == sum(sizes[name] for name in main)


def test_the_gpus_workspace() -> None:
    """16 tokens of 2 sequences of 64: the stream in fp32 (four times, and a sum of each device), in
    the worst layer scores and an expert, and bf16 activations and fp32 results of 32 pairs."""
    sizes = Sizes.of(GROUPED, with_options(EngineSettings(accelerator="cuda"), SMALL))
    stream, scores, expert = 4 * 16 * 256 * 6, 4 * 16 * 8 * 6, 4 * 16 * (3 * 256 + 4 * 192)
    pairs = 16 * 2 * (2 * 192 + 4 * 256)
    assert sizes.pair_buffers == pairs == 45_056
    assert sizes.device_workspace(64) == pairs + stream + scores + expert == 244_736


def test_pytorch_computes_other_precisions_without_buffers() -> None:
    wide = Sizes.of(GROUPED, with_options(EngineSettings(accelerator="cuda"), {"dtype": "fp32"}))
    assert wide.pair_buffers == 0


def test_the_hosts_workspace() -> None:
    sizes = Sizes.of(GROUPED, with_options(EngineSettings(accelerator="cuda"), SMALL))
    moved = 4 * (2 * 16 * 256 + 2 * 16 * (8 + 2))
    sampling = 2 * 2000 * 4 * 7
    assert sizes.host_workspace(64) == sizes.kernel_workspace(16) + moved + sampling


@pytest.mark.parametrize("free_gb", [6.0, 10.0, 14.0])
def test_slots_fill_what_is_free(free_gb: float) -> None:
    found = plan(free=free_gb * GB)
    assert found.accelerator_limit_bytes == free_gb * GB
    assert found.accelerator_bytes <= free_gb * GB
    left = free_gb * GB - found.accelerator_bytes
    assert left < 16 * BLOCK + 16 * 8 * 4096 * 2, "a slot of every layer, or a token of each"
    assert found.capacity.slots > 0


def test_a_gpu_with_plenty_holds_every_expert() -> None:
    assert plan(free=140 * GB).capacity[:3] == (1024, 32, 4096)


def test_no_more_than_is_free_whatever_is_allowed() -> None:
    assert plan(free=8 * GB, gpu_memory_gb=6.0).accelerator_limit_bytes == 6 * GB
    assert plan(free=8 * GB, gpu_memory_gb=60.0).accelerator_limit_bytes == 8 * GB


def test_without_a_known_gpu_the_usual_share() -> None:
    found = plan()
    assert found.accelerator_limit_bytes is None
    assert found.capacity.slots == 256


@pytest.mark.parametrize(
    ("fields", "there", "advice"),
    [
        ({}, "5.00 GB are free there", "or a GPU with "),
        ({"gpu_memory_gb": 4.0}, "--gpu-memory allows 4.00 GB", "or --gpu-memory "),
    ],
)
def test_what_does_not_fit_is_refused(fields: dict[str, Any], there: str, advice: str) -> None:
    with pytest.raises(ImpossibleSetting) as caught:
        plan(free=5 * GB, cache_ratio=0.5, **fields)
    said = str(caught.value)
    assert "in the accelerator: dense weights" in said
    assert there in said
    assert "--cache-ratio 0." in said
    assert advice in said


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_what_is_planned_is_what_is_allocated(dtype: str) -> None:
    torch.set_num_threads(1)
    settings = with_options(EngineSettings(accelerator="cuda"), SMALL | {"dtype": dtype})
    found = plan_memory(LATENT, settings, GB, 2 * GB)
    decoder = synthetic_decoder(architecture(LATENT), found.dtype, "reference")
    store = synthetic_store(decoder, found.expert_dtype, kernel_name="reference")
    runner = on_store(decoder, store, settings, found.capacity, device="cpu")
    try:
        machine, cache = runner.machine, runner.cache
        layers = machine.layerwise
        assert isinstance(layers, GpuLayers)
        assert part_bytes(found)["routed experts"] == store.bytes
        assert part_bytes(found)["slots"] == layers.slots.slab.nbytes
        assert part_bytes(found)["KV cache"] == cache.nbytes
    finally:
        runner.close()


@pytest.mark.parametrize(("step_tokens", "rows"), [(8, 16), (300, 300), (4096, 2048)])
def test_the_plan_counts_what_latent_prompts_share(step_tokens: int, rows: int) -> None:
    """Every size of a captured step has its queries and results in one memory, and so does a run
    that warms up: nothing is taken a second time."""
    changes = {"max_sequences": 4, "max_step_tokens": step_tokens, "max_model_len": 8192}
    sizes = Sizes.of(LATENT, with_options(EngineSettings(accelerator="cuda"), changes))
    latent = LATENT.latent_attention
    assert latent is not None
    shared = LatentBuffers(rows, LATENT.num_heads, latent.kv_lora_rank, "meta")
    assert sizes.latent_buffers == shared.nbytes
    assert sizes.graphs(8192) > shared.nbytes
    of_cpu = LatentBuffers(rows, 2, 4, "cpu")
    places = {part.data_ptr() for size in (1, 5, rows) for part in of_cpu.of(size)}
    assert len(places) == 2
    assert all(part.is_contiguous() for size in (1, 5, rows) for part in of_cpu.of(size))
    with pytest.raises(AssertionError, match="but buffers for"):
        of_cpu.of(rows + 1)
    grouped = Sizes.of(GROUPED, with_options(EngineSettings(accelerator="cuda"), changes))
    assert grouped.latent_buffers == 0


def test_pieces_of_attention_are_as_long_as_the_kernels() -> None:
    """The plan is made without Triton, and has the number once more."""
    pytest.importorskip("triton")
    from moesaic.kernels.gpu.attention import PIECE

    assert PIECE_LENGTH == PIECE


@pytest.mark.parametrize("heads", [4, 16, 128])
@pytest.mark.parametrize("length", [100, 4096, 5000, 40_000])
def test_one_tokens_pieces_are_no_more_than_is_planned(length: int, heads: int) -> None:
    pytest.importorskip("triton")
    from moesaic.kernels.gpu.latent_attention import piece_size

    used = -(-length // piece_size(length, tokens=1, heads=heads))
    assert used <= min(-(-length // SINGLE_PIECE_LENGTH), MOST_PIECES)


def test_counts_of_sampling_are_those_of_the_kernel() -> None:
    pytest.importorskip("triton")
    from moesaic.kernels.gpu.sampling import TokenSampling

    many = TokenSampling(100, 100, 1000, device="cpu")
    rows, counts = SAMPLING
    assert many._counts.nbytes == rows * counts
    assert TokenSampling(100, 3, 1000, device="cpu")._counts.nbytes == 3 * counts
