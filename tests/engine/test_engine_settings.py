"""Are settings that cannot be meant refused in words, before anything else sees them?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from moesaic.core.errors import ImpossibleSetting
from moesaic.engine import engine_settings
from moesaic.engine.engine_settings import EngineSettings


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"threads": "2"}, "threads is '2'; it must be a whole number"),
        ({"threads": 1.5}, "threads is 1.5; it must be a whole number"),
        ({"threads": True}, "threads is True; it must be a whole number"),
        ({"max_sequences": 1.5}, "max_sequences is 1.5; it must be a whole number"),
        ({"max_sequences": None}, "max_sequences is None; it must be a whole number"),
        ({"max_model_len": "long"}, "max_model_len is 'long'; it must be a whole number"),
        ({"cache_ratio": "0.5"}, "cache_ratio is '0.5'; it must be a number"),
        ({"gpu_memory_gb": "8"}, "gpu_memory_gb is '8'; it must be a number"),
        ({"link_gb_s": None}, "link_gb_s is None; it must be a number"),
        ({"link_latency_us": False}, "link_latency_us is False; it must be a number"),
    ],
    ids=str,
)
def test_what_is_no_number_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ImpossibleSetting) as caught:
        EngineSettings(accelerator="emulated", **fields)
    assert str(caught.value) == message


def test_numbers_of_any_library_are_numbers() -> None:
    numbers: dict[str, Any] = {"threads": np.int64(1), "cache_ratio": np.float32(0.5)}
    found = EngineSettings(accelerator="emulated", **numbers)
    assert (found.threads, found.cache_ratio) == (1, 0.5)
    assert EngineSettings(accelerator="emulated", gpu_memory_gb=8).gpu_memory_gb == 8


def test_more_threads_than_cores_can_serve_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_settings, "usable_cores", lambda: 3)
    assert EngineSettings(threads=12).threads == 12
    with pytest.raises(ImpossibleSetting, match=r"threads is 13; .* 3 cores.*: use 12 or fewer"):
        EngineSettings(threads=13)
