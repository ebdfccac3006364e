"""Do `help()` and editors show every option of `LLM`, as the settings have it?"""

from __future__ import annotations

import inspect
import pydoc
from dataclasses import MISSING, fields
from typing import get_type_hints

import pytest

from moesaic import LLM, AsyncLLM, EngineSettings
from moesaic.engine.engine_options import PLANS_ONLY, EngineOptions
from moesaic.policies.policy_set import POLICY_FIELDS, Choices, PolicySet

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
