"""Does a plan use all the memory there is and no more, and is what it refuses refused for a reason
that holds, with advice that works?"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from planned_models import GROUPED, LATENT, architecture

from made_up import small_machine
from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.core.units import GB
from moesaic.engine.assemble import on_store, synthetic_store
from moesaic.engine.engine_settings import EngineSettings, UsualSequences
from moesaic.engine.memory.fitting import MIN_LENGTH
from moesaic.engine.memory.memory_plan import MemoryPlan, plan_memory
from moesaic.engine.memory.sizes import Sizes
from moesaic.lab.simulate.settings import Settings
from moesaic.model_info.kv_blocks import KV_BLOCK
from moesaic.model_info.model_zoo import load_model
from moesaic.models.synthetic_model import synthetic_decoder
from moesaic.policies.policy_set import PolicySet, with_options

torch.set_num_threads(1)
OLMOE, MIXTRAL = load_model("olmoe-1b-7b"), load_model("mixtral-8x7b")
PLENTY = 10_000 * GB
EMULATED: dict[str, Any] = {"accelerator": "emulated"}


def plan(spec: Any = OLMOE, available: float = PLENTY, **fields: Any) -> MemoryPlan:
    return plan_memory(spec, with_options(EngineSettings(), fields), round(available))


def pooled(per_layer: bool) -> str:
    return f"two-speed:pool={'per-layer' if per_layer else 'global'}"


def refused(spec: Any = OLMOE, available: float = PLENTY, **fields: Any) -> str:
    with pytest.raises(ImpossibleSetting) as caught:
        plan(spec, available, **fields)
    return str(caught.value)


def size_of(found: MemoryPlan) -> dict[str, int]:
    return {part.name: part.bytes for part in found.parts}


def test_without_an_accelerator_everything_is_in_main_memory() -> None:
    found = plan(available=25 * GB)
    assert found.capacity[:3] == (0, 32, 4096)
    assert [part.name for part in found.parts if part.main] == [
        *("routed experts", "dense weights", "KV cache", "workspace", "left free")
    ]
    assert found.main_bytes == sum(size_of(found).values())
    assert found.accelerator_bytes == 0


def test_an_emulated_accelerator_counts_in_both_memories() -> None:
    found = plan(**EMULATED)
    assert all(part.main for part in found.parts)
    others = [part.name for part in found.parts if not part.accelerator]
    assert others == ["routed experts", "left free"]
    assert found.capacity.slots == OLMOE.num_expert_blocks // 4
    block = OLMOE.expert_bytes("bf16")
    assert size_of(found)["slots"] == (found.capacity.slots + 2) * block


@pytest.mark.parametrize("per_layer", [True, False])
@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.3, 0.77, 1.0])
def test_a_cache_ratio_means_what_it_means_in_the_simulator(ratio: float, per_layer: bool) -> None:
    policies = PolicySet.of(cache=pooled(per_layer))
    simulated = Settings(GROUPED, small_machine(), cache_ratio=ratio, policies=policies)
    found = plan(GROUPED, **EMULATED, cache_ratio=ratio, cache=pooled(per_layer))
    assert found.capacity.slots == simulated.slots
    again = replace(simulated, cache_ratio=found.cache_ratio)
    assert again.slots == found.capacity.slots, "a plan can be simulated"


def test_the_gate_bank_is_there_only_for_prefetching_into_slots() -> None:
    assert "gate bank" in size_of(plan(**EMULATED))
    assert "gate bank" not in size_of(plan(**EMULATED, prefetch="none"))
    assert "gate bank" not in size_of(plan(**EMULATED, cache_ratio=0.0))
    assert "gate bank" not in size_of(plan())


def test_what_is_planned_is_what_is_allocated() -> None:
    settings = EngineSettings(**EMULATED, max_sequences=3, max_model_len=64, max_step_tokens=16)
    found = plan_memory(LATENT, settings, GB)
    decoder = synthetic_decoder(architecture(LATENT), found.dtype)
    store = synthetic_store(decoder, found.expert_dtype)
    runner = on_store(decoder, store, settings, found.capacity)
    try:
        machine: Any = runner.machine
        arena = machine.layerwise.accelerator.staging().block.untyped_storage()
        cache = runner.cache
        assert size_of(found)["routed experts"] == store.bytes
        assert size_of(found)["slots"] == arena.nbytes()
        assert size_of(found)["KV cache"] == cache.nbytes
    finally:
        runner.close()


def test_a_longer_sequence_than_the_model_knows_is_refused() -> None:
    assert plan(max_model_len=4096).capacity.length == 4096
    said = refused(max_model_len=5000)
    assert "5000" in said
    assert "at most 4096 (its context length)" in said
    assert plan(replace(OLMOE, max_context=0), max_model_len=5000).capacity.length == 5000


def test_the_length_is_all_that_fits() -> None:
    available = 15.2 * GB
    found = plan(available=available)
    length = found.capacity.length
    assert MIN_LENGTH < length < OLMOE.max_context
    assert plan(available=available, max_model_len=length).fits
    refused(available=available, max_model_len=length + 1)


def test_a_model_with_less_context_than_the_shortest_sequence() -> None:
    assert plan(replace(OLMOE, max_context=100)).capacity.length == 100


@pytest.mark.parametrize("per_layer", [True, False])
@pytest.mark.parametrize("limit_gb", [2.0, 4.0, 8.0, 12.0])
def test_slots_and_sequences_share_what_the_accelerator_may_use(
    limit_gb: float, per_layer: bool
) -> None:
    found = plan(**EMULATED, gpu_memory_gb=limit_gb, cache=pooled(per_layer))
    assert found.accelerator_bytes <= limit_gb * GB
    layers = OLMOE.num_moe_layers
    assert found.capacity.slots >= layers
    assert found.capacity.slots % (layers if per_layer else 1) == 0
    assert found.capacity.length > MIN_LENGTH
    left = limit_gb * GB - found.accelerator_bytes
    step = layers if per_layer else 1
    assert left < step * OLMOE.expert_bytes("bf16") + 8 * 8 * 2**20, "nothing lies idle"


def test_a_large_accelerator_holds_every_expert_and_no_more() -> None:
    found = plan(**EMULATED, gpu_memory_gb=100)
    assert found.capacity[:3] == (OLMOE.num_expert_blocks, 32, OLMOE.max_context)


@pytest.mark.parametrize(("per_layer", "smallest"), [(True, OLMOE.num_moe_layers), (False, 1)])
def test_an_accelerator_without_slots_must_be_asked_for(per_layer: bool, smallest: int) -> None:
    lengths = {"max_model_len": 1024, "kv_tokens": 8192}
    fields: dict[str, Any] = {**EMULATED, **lengths, "cache": pooled(per_layer)}
    network = plan(**fields, cache_ratio=0.0)
    assert network.capacity.slots == 0
    limit = {"gpu_memory_gb": network.accelerator_bytes / GB}
    said = refused(**fields, **limit)
    assert "with the smallest cache there is" in said
    options = check_advice(said, OLMOE, PLENTY, {**fields, **limit})
    assert {"--cache-ratio", "--gpu-memory"} <= set(options)
    assert plan(**fields, **limit, cache_ratio=0.0).capacity.slots == 0
    enough = float(re.search(r"--gpu-memory ([\d.]+)$", said)[1])  # type: ignore[index]
    assert plan(**fields, gpu_memory_gb=enough).capacity.slots >= smallest


@pytest.mark.parametrize(("per_layer", "smallest"), [(True, OLMOE.num_moe_layers), (False, 1)])
def test_a_share_of_no_expert_at_all_is_refused(per_layer: bool, smallest: int) -> None:
    fields: dict[str, Any] = {**EMULATED, "cache": pooled(per_layer)}
    said = refused(**fields, cache_ratio=0.0001)
    assert "cache ratio 0.0001 leaves no slot" in said
    least = float(re.search(r"--cache-ratio ([\d.]+) to 1", said)[1])  # type: ignore[index]
    assert plan(**fields, cache_ratio=least).capacity.slots == smallest


@pytest.mark.parametrize("schedule", ["hybrid", "gpu-only"])
def test_with_one_expert_per_layer_the_only_cache_ratio_is_one(schedule: str) -> None:
    single = replace(OLMOE, num_experts=1, top_k=1)
    fields: dict[str, Any] = {**EMULATED, "cache": pooled(True), "schedule": schedule}
    said = refused(spec=single, **fields, cache_ratio=0.4)
    assert re.search(r"use (--cache-ratio )?1, or", said), said
    assert plan(spec=single, **fields, cache_ratio=1.0).capacity.slots == OLMOE.num_moe_layers


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("qwen3-30b-a3b", 1.9, 2.0), ("deepseek-v2-lite", 1.7, 1.8)],  # rotary keys stay in bf16
)
def test_more_tokens_fit_in_int8(name: str, least: float, most: float) -> None:
    spec = load_model(name)
    fields: dict[str, Any] = {"dtype": "bf16", "max_sequences": 64, "max_model_len": 32768}
    lowest = plan(spec, **fields, kv_tokens=32768)
    available = (lowest.main_bytes - size_of(lowest)["left free"] + 4 * GB) / 0.95
    whole, small = (plan(spec, available, **fields, kv_dtype=kv) for kv in ("auto", "int8"))
    tokens, more = (found.capacity.kv_blocks for found in (whole, small))
    assert least < more / tokens < most
    if name == "qwen3-30b-a3b":
        said = refused(spec, available, **fields, kv_tokens=64 * (tokens + more) // 2)
        assert "--kv-dtype int8" in said


@pytest.mark.parametrize("name", ["olmoe-1b-7b", "gpt-oss-20b", "qwen3-next-80b-a3b"])
def test_main_memory_for_prefixes_is_counted(name: str) -> None:
    spec = load_model(name)
    lengths = {"max_model_len": 1024, "kv_tokens": 8192}
    fields: dict[str, Any] = {**EMULATED, **lengths, "cache_ratio": 0.25}
    without, found = (plan(spec, **fields, kv_host_gb=size) for size in (0.0, 8.0))
    assert found.capacity.copies > without.capacity.copies == 0
    assert found.accelerator_bytes == without.accelerator_bytes
    added = found.main_bytes - without.main_bytes + size_of(without).get("checkpoints", 0)
    assert 7.9 * GB < added <= 8 * GB, "with the checkpoints"
    needed = (found.main_bytes - size_of(found)["left free"]) / 0.95
    assert "--kv-host 0" in refused(spec, needed - GB, **fields, kv_host_gb=8.0)


@pytest.mark.parametrize(
    ("name", "memory", "expected"),
    [
        ("qwen3-30b-a3b", 24, 32),
        ("gpt-oss-20b", 24, 16),  # windows of 53 MB each
        ("gpt-oss-20b", 140, 32),
        ("qwen3-next-80b-a3b", 24, 8),  # states of 193 MB each
        ("qwen3-next-80b-a3b", 80, 16),
    ],
)
def test_what_each_sequence_holds_limits_how_many_run(
    name: str, memory: float, expected: int
) -> None:
    fields: dict[str, Any] = {"accelerator": "cuda", "expert_dtype": "int4"}
    fields["gpu_memory_gb"] = memory
    found = plan(load_model(name), 1000 * GB, **fields)
    assert found.capacity.sequences == expected
    asked = plan(load_model(name), 1000 * GB, **fields, max_sequences=24)
    assert asked.capacity.sequences == 24


@pytest.mark.parametrize(
    ("name", "memory", "expected"),
    [
        ("qwen3-30b-a3b", 24, 128),
        ("qwen3-30b-a3b", 8, 64),  # what its captured steps keep grows by 0.4 GB beyond
        ("gpt-oss-20b", 24, 16),
        ("gpt-oss-20b", 140, 64),
    ],
)
def test_a_batch_has_more_sequences_where_memory_allows(
    name: str, memory: float, expected: int
) -> None:
    """And a pool of blocks for them; never fewer than a server has."""
    fields: dict[str, Any] = {"accelerator": "cuda", "expert_dtype": "int4"}
    fields["gpu_memory_gb"] = memory
    found = plan(load_model(name), 1000 * GB, **fields, max_sequences=UsualSequences(128))
    usual = plan(load_model(name), 1000 * GB, **fields)
    assert found.capacity.sequences == expected
    if memory > 100:
        assert found.capacity.kv_blocks == 2 * usual.capacity.kv_blocks


def test_slots_must_fit_in_main_memory_too() -> None:
    """An emulated accelerator that may use more than there is."""
    found = plan(available=20 * GB, **EMULATED, gpu_memory_gb=100)
    assert 0 < found.capacity.slots < OLMOE.num_expert_blocks
    assert found.main_bytes <= 20 * GB


@pytest.mark.parametrize("phase", ["", "prefill_"])
def test_a_schedule_that_needs_an_accelerator(phase: str) -> None:
    named: dict[str, Any] = {f"{phase}schedule": "gpu-only"}
    assert "there is none: add --accelerator emulated" in refused(**named)
    assert plan(**EMULATED, **named).capacity.slots >= OLMOE.num_moe_layers
    said = refused(**EMULATED, **named, cache_ratio=0.0001)
    assert "leaves 0 slots" in said
    least = float(re.search(r"use ([\d.]+) to 1", said)[1])  # type: ignore[index]
    assert plan(**EMULATED, **named, cache_ratio=least).capacity.slots == OLMOE.num_moe_layers


def test_a_budget_too_small_for_a_slot_in_every_layer() -> None:
    lengths: dict[str, Any] = {**EMULATED, "max_model_len": 1024, "kv_tokens": 8192}
    fields = {**lengths, "schedule": "gpu-only"}
    network = plan(**lengths, cache_ratio=0.0).accelerator_bytes
    said = refused(**fields, gpu_memory_gb=network / GB)
    assert "schedule 'gpu-only' needs a slot for every layer" in said
    check_advice(said, OLMOE, PLENTY, {**fields, "gpu_memory_gb": network / GB}, least=2)


ADVICE = {
    "--max-sequences": ("max_sequences", int),
    "--max-model-len": ("max_model_len", int),
    "--kv-tokens": ("kv_tokens", int),
    "--kv-host": ("kv_host_gb", float),
    "--kv-dtype": ("kv_dtype", str),
    "--cache-ratio": ("cache_ratio", float),
    "--expert-dtype": ("expert_dtype", str),
    "--gpu-memory": ("gpu_memory_gb", float),
    "--dense-dtype": ("dense_dtype", str),
    "--dtype": ("dtype", str),
    "--schedule": ("schedule", str),
}


def check_advice(
    said: str, spec: Any, available: float, fields: dict[str, Any], least: int = 1
) -> list[str]:
    """Every alternative that a refusal names makes the plan fit; returns their options."""
    advice = said.rpartition(". Use ")[2]
    tried = []
    for alternative in advice.split(", or "):
        found = re.search(r"a machine with ([\d.]+) ([GM])B", alternative)
        memory = float(found[1]) * (GB if found[2] == "G" else GB / 1000) if found else available
        options = re.findall(r"(--[\w-]+) ([\w.-]+)", alternative)
        changes = {ADVICE[option][0]: ADVICE[option][1](value) for option, value in options}
        assert found or changes, alternative
        assert plan(spec, memory, **{**fields, **changes}).fits
        tried += [option for option, _ in options]
    assert len(tried) >= least, said
    return tried


REFUSALS: list[tuple[Any, float, dict[str, Any], set[str]]] = [
    (MIXTRAL, 22.4, {}, set()),
    (MIXTRAL, 64, {}, {"--expert-dtype"}),
    (MIXTRAL, 31.5, {}, {"--expert-dtype"}),
    (MIXTRAL, 30.7, {"max_sequences": 64}, {"--expert-dtype"}),
    (OLMOE, 22.4, {"dtype": "fp32"}, {"--dtype", "--expert-dtype"}),
    (replace(OLMOE, native_dtype="fp32"), 22.4, {}, {"--dtype", "--expert-dtype"}),
    (load_model("deepseek-v3"), 500, {}, {"--expert-dtype"}),
    (OLMOE, 22.4, {"kv_tokens": 200 * 4096, "max_sequences": 200}, {"--kv-tokens"}),
    (OLMOE, 22.4, {**EMULATED, "cache_ratio": 0.9}, {"--cache-ratio", "--expert-dtype"}),
    (OLMOE, 64, {**EMULATED, "gpu_memory_gb": 0.5}, {"--gpu-memory"}),
    (OLMOE, 64, {**EMULATED, "gpu_memory_gb": 1.2}, {"--gpu-memory", "--dense-dtype"}),
    (
        OLMOE,
        64,
        {**EMULATED, "gpu_memory_gb": 1.2, "dense_dtype": "bf16"},
        {"--gpu-memory", "--max-sequences"},
    ),
    (OLMOE, 64, {**EMULATED, "gpu_memory_gb": 3, "cache_ratio": 0.5}, {"--cache-ratio"}),
    (LATENT, 0.002, {**EMULATED, "gpu_memory_gb": 1.2}, set()),
]


@pytest.mark.parametrize(("spec", "available_gb", "fields", "options"), REFUSALS)
def test_a_refusal_has_the_numbers_and_advice_that_works(
    spec: Any, available_gb: float, fields: dict[str, Any], options: set[str]
) -> None:
    said = refused(spec, available_gb * GB, **fields)
    smallest = plan(spec, **{**fields, "gpu_memory_gb": None})
    assert f"dense weights {in_words(size_of(smallest)['dense weights'])}" in said
    if "of main memory" in said:
        experts = in_words(size_of(smallest)["routed experts"])
        assert f"routed experts {experts}" in said
        assert in_words(available_gb * GB, up=0.0) + " are available" in said
    else:
        assert f"--gpu-memory allows {fields['gpu_memory_gb']:.2f} GB" in said
    assert options <= set(check_advice(said, spec, available_gb * GB, fields, least=0))


def test_all_together_names_no_change_that_is_none() -> None:
    """One sequence cannot become fewer, nor a short context 256 tokens."""
    short = replace(MIXTRAL, max_context=100)
    fields: dict[str, Any] = {**EMULATED, "cache_ratio": 0.5, "max_sequences": 1}
    together = "all of --expert-dtype int4, --max-model-len 100, --cache-ratio 0"
    said = refused(short, 31 * GB, **fields)
    assert f"Use {together}, or a machine" in said
    check_advice(said, short, 31 * GB, fields)
    assert "--max-sequences 1" in refused(short, 31 * GB, **{**fields, "max_sequences": 64})


def in_words(size: float, up: float = 0.00999) -> str:
    """Two digits: needs are rounded up, what there is down."""
    unit, name = (GB, "GB") if size >= GB / 10 else (GB / 1000, "MB")
    return f"{int((size / unit + up) * 100 + 1e-6) / 100:.2f} {name}"


@given(
    available_gb=st.floats(0.001, 60),
    limit_gb=st.none() | st.floats(0.01, 20),
    ratio=st.none() | st.floats(0, 1),
    length=st.none() | st.integers(1, 4096),
    sequences=st.integers(1, 100),
    schedule=st.sampled_from(["best-split", "gpu-only"]),
    expert_dtype=st.sampled_from(["auto", "int4"]),
    per_layer=st.booleans(),
)
def test_a_plan_fits_or_is_refused(
    available_gb: float,
    limit_gb: float | None,
    ratio: float | None,
    length: int | None,
    sequences: int,
    schedule: str,
    expert_dtype: str,
    per_layer: bool,
) -> None:
    fields: dict[str, Any] = {
        **EMULATED,
        "gpu_memory_gb": limit_gb,
        "cache_ratio": ratio,
        "max_model_len": length,
        "max_sequences": sequences,
        "schedule": schedule,
        "expert_dtype": expert_dtype,
        "cache": pooled(per_layer),
    }
    try:
        found = plan(OLMOE, available_gb * GB, **fields)
    except ImpossibleSetting as refusal:
        if ". Use " in str(refusal):
            check_advice(str(refusal), OLMOE, available_gb * GB, fields, least=0)
        return
    assert found.main_bytes <= found.available_bytes
    assert limit_gb is None or found.accelerator_bytes <= limit_gb * GB + 1
    assert 0 <= found.capacity.slots <= OLMOE.num_expert_blocks
    assert found.capacity.sequences == sequences
    assert length in (None, found.capacity.length)
    if ratio is not None:
        unit = OLMOE.num_moe_layers if per_layer else 1
        assert found.capacity.slots == unit * round(ratio * OLMOE.num_expert_blocks / unit)
    sizes = Sizes.of(OLMOE, with_options(EngineSettings(), fields))
    tokens = KV_BLOCK * found.capacity.kv_blocks
    assert tokens >= found.capacity.length
    assert size_of(found)["KV cache"] == sizes.kv_cache(found.capacity.length, tokens)


def test_an_expert_precision_is_checked_with_the_settings() -> None:
    with pytest.raises(UnknownName, match=r"unknown expert dtype 'int5'.*Did you mean 'int"):
        EngineSettings(expert_dtype="int5")
    with pytest.raises(ImpossibleSetting, match="leave it out where there is no limit"):
        EngineSettings(**EMULATED, gpu_memory_gb=float("inf"))
