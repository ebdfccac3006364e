"""Does a simulated machine refuse what does not fit in its GPU memory, and is its advice right?"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from made_up import small_machine, small_model
from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.hardware.machine_reader import load_machine
from moesaic.hardware.what_if import changed
from moesaic.lab.simulate.gpu_memory import largest_ratio
from moesaic.lab.simulate.settings import Settings
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.systems import load_system
from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.memory import fitting_ratio
from moesaic.reproductions.trimoe.runs import Run, Workload
from moesaic.reproductions.trimoe.simulated import settings_of, simulated

QWEN = load_model("qwen3-235b-a22b")
PAPER = load_machine("trimoe-paper")
TRIMOE = load_system("trimoe").policies  # each layer has slots of its own
RUN: dict[str, Any] = {"batch": 512, "context": 511, "tokens": 1, "warmup": 0}


def settings(**changes: Any) -> Settings:
    asked = {"cache_ratio": 1 / 12, "policies": TRIMOE, **RUN, **changes}
    memory = asked.pop("memory", 80.0)
    return Settings(QWEN, changed(PAPER, {"gpu.memory_gb": memory}), **asked)


@pytest.mark.parametrize(("batch", "needs"), [(256, 80.7), (512, 106.3), (768, 131.9)])
def test_the_headline_of_trimoe_does_not_fit_its_gpu(batch: int, needs: float) -> None:
    """Qwen3-235B-A22B, a twelfth of the experts: 16 GB of weights, 39 of experts, 25.2 of KV per
    256 sequences of 512 tokens."""
    with pytest.raises(ImpossibleSetting, match=f"needs {needs:g} GB of GPU memory"):
        settings(batch=batch)
    need = settings(batch=batch, memory=256.0).need
    assert need.kv_bytes == batch * 512 * 94 * 2 * 4 * 128 * 2
    parts = need.parts()
    assert parts["1034 experts (bf16)"] == 1034 * QWEN.expert_bytes("bf16")
    assert sum(parts.values()) == need.gpu_bytes == pytest.approx(needs * 1e9, abs=1e8)


def test_every_change_that_is_advised_is_enough() -> None:
    with pytest.raises(ImpossibleSetting) as refused:
        settings(batch=256)
    advice = str(refused.value).partition("Use ")[2]
    numbers = re.fullmatch(
        r"a cache ratio of at most ([\d.]+), or --batch (\d+) or less, or --context (\d+) or less, "
        r"or --kv-cache main, or --kv-dtype int8, or a smaller --expert-dtype \(int8\), or a "
        r"larger card \(--set gpu.memory_gb=([\d.]+)\)",
        advice,
    )
    assert numbers is not None, advice
    ratio, batch, context, memory = map(float, numbers.groups())
    enough: list[dict[str, Any]] = [
        {"cache_ratio": ratio},
        {"batch": int(batch)},
        {"context": int(context)},
        {"kv_cache": "main"},
        {"kv_cache": "main-cpu"},
        {"kv_dtype": "int8"},
    ]
    for change in enough:
        settings(**{"batch": 256, **change})
    for change in ({"batch": int(batch) + 1}, {"context": int(context) + 1}):
        with pytest.raises(ImpossibleSetting):
            settings(**{"batch": 256, **change})
    assert settings(batch=256, memory=memory).machine.gpu.memory_gb == memory


def test_what_never_fits_is_not_advised() -> None:
    """91 GB for weights and KV cache: no cache ratio helps."""
    with pytest.raises(ImpossibleSetting) as refused:
        settings(batch=768)
    assert "cache ratio of at most" not in str(refused.value)
    roomy = settings(batch=768, memory=256.0)
    assert largest_ratio(roomy.need, roomy.policies, 80.0) is None


def test_keys_and_values_need_main_memory_where_they_are_there() -> None:
    model = small_model(layers=3, experts=6)
    machine = small_machine()
    experts = 18 * model.expert_bytes("bf16")
    tight = replace(machine, cpu=replace(machine.cpu, memory_gb=(experts + 1e6) / 1e9))
    asked: dict[str, Any] = {"batch": 8, "context": 1000, "tokens": 1, "warmup": 0}
    Settings(model, tight, **asked)
    with pytest.raises(ImpossibleSetting, match=r"and the KV cache 0\.0 GB"):
        Settings(model, tight, kv_cache="main", **asked)


def test_the_word_for_it_is_checked() -> None:
    with pytest.raises(UnknownName, match="place of the KV cache 'mian'"):
        settings(kv_cache="mian")


def test_a_reproduction_is_refused_as_well() -> None:
    """Four layers are simulated; it is the whole model that must fit."""
    run = Run(Workload(paper.QWEN, 512), paper.OURS, gpu_memory_gb=None)
    with pytest.raises(ImpossibleSetting, match="Use a cache ratio of at most"):
        simulated(run)
    ratio = fitting_ratio(paper.QWEN, 512)
    assert ratio is not None
    assert 0.02 < ratio < 1 / 12
    assert settings_of(replace(run, cache_ratio=ratio)).slots == 4 * 3
    assert fitting_ratio(paper.QWEN, 768) is None
