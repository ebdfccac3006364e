"""Are settings that cannot be meant refused in words, before anything else sees them?"""

from __future__ import annotations

import inspect
import pydoc
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

import numpy as np
import pytest

from moesaic import LLM, AsyncLLM
from moesaic.core.errors import ImpossibleSetting
from moesaic.engine import engine_settings
from moesaic.engine.engine_options import PLANS_ONLY, EngineOptions
from moesaic.engine.engine_settings import EngineSettings
from moesaic.policies.policy_set import POLICY_FIELDS, Choices, PolicySet


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"threads": "2"}, "threads is '2'; it must be a whole number"),
        ({"threads": 1.5}, "threads is 1.5; it must be a whole number"),
        ({"threads": True}, "threads is True; it must be a whole number"),
        ({"max_sequences": 1.5}, "max_sequences is 1.5; it must be a whole number"),
        ({"max_sequences": "8"}, "max_sequences is '8'; it must be a whole number"),
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


# Do `help()` and editors show every option of `LLM`, as the settings have it?

FIELDS = [field for field in fields(EngineSettings) if field.name not in PLANS_ONLY]
SETTINGS = [field.name for field in FIELDS]
BOTH = pytest.mark.parametrize("model", [LLM, AsyncLLM])


def test_the_typed_options_are_the_settings() -> None:
    options, settings = get_type_hints(EngineOptions), get_type_hints(EngineSettings)
    assert set(options) == {*SETTINGS, *POLICY_FIELDS, "quality"}
    assert all(options[name] == settings[name] for name in SETTINGS)
    assert set(get_type_hints(Choices)) == set(POLICY_FIELDS)


@BOTH
def test_the_signature_has_them_with_their_defaults(model: type) -> None:
    shown = inspect.signature(model).parameters
    assert {*SETTINGS, *POLICY_FIELDS, "quality"} <= set(shown)
    assert list(shown)[:5] == ["model", "settings", "system", "record", "progress"]
    assert not any(each.kind is each.VAR_KEYWORD for each in shown.values())
    for field in FIELDS:
        if field.default is not MISSING:
            assert shown[field.name].default == field.default
        assert shown[field.name].annotation == get_type_hints(EngineOptions)[field.name]
    for name in POLICY_FIELDS:
        assert PolicySet.of(**{name: shown[name].default}) == PolicySet()


@BOTH
def test_help_describes_each_in_a_line(model: type) -> None:
    text = pydoc.plain(pydoc.render_doc(model))
    assert "cache_ratio: float | None = None" in text
    for name in (*SETTINGS, *POLICY_FIELDS, "quality"):
        (line,) = [line for line in text.splitlines() if line.strip("| ").startswith(f"{name}: ")]
        assert len(line.partition(": ")[2].split()) >= 3, line
    assert "max_sequences: that run at once" in text
