"""Are sampling parameters validated, and mistakes refused with what is possible?"""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.sampling.sampling_params import SamplingParams

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "value", "possible"),
    [
        ("max_tokens", 0, "at least 1"),
        ("max_tokens", None, "whole number"),
        ("max_tokens", 1.5, "whole number"),
        ("max_tokens", True, "whole number"),
        ("temperature", -0.1, "between 0 and 100"),
        ("temperature", NAN, "between 0 and 100"),
        ("temperature", INF, "between 0 and 100"),
        ("temperature", 10**400, "between 0 and 100"),
        ("temperature", "hot", "a number"),
        ("temperature", None, "a number"),
        ("top_k", -1, "0 keeps all"),
        ("top_k", NAN, "whole number"),
        ("top_p", 1.01, "between 0 and 1"),
        ("top_p", NAN, "between 0 and 1"),
        ("min_p", -0.1, "between 0 and 1"),
        ("min_p", NAN, "between 0 and 1"),
        ("repetition_penalty", 0.0, "between 0.01 and 100"),
        ("repetition_penalty", NAN, "between 0.01 and 100"),
        ("seed", 1.0, "whole number"),
        ("seed", "x", "whole number"),
        ("logprobs", -1, "at least 0"),
        ("logprobs", True, "whole number"),
        ("ignore_eos", 1, "true or false"),
        ("min_tokens", -1, "at least 0"),
        ("min_tokens", 300, "at most max_tokens"),
        ("stop", "", "empty"),
        ("stop", ["a", ""], "empty"),
        ("stop", ["a", 3], "string or a list"),
        ("stop", 3, "string or a list"),
        ("stop", None, "string or a list"),
        ("keep_special_tokens", 3, "string or a list"),
        ("keep_special_tokens", [""], "empty"),
    ],
)
def test_a_slip_is_refused(name: str, value: Any, possible: str) -> None:
    with pytest.raises(ImpossibleSetting) as caught:
        SamplingParams(**{name: value})
    message = str(caught.value)
    assert name in message
    assert possible in message
    if name not in ("stop", "keep_special_tokens"):
        assert str(value) in message


def test_the_ends_of_every_range_are_possible() -> None:
    SamplingParams(1, 0.0, 0, 0.0, 0.0, 0.01, -(2**63), (), 0, True, 1)
    SamplingParams(2**40, 100.0, 2**40, 1.0, 1.0, 100.0, 2**64, ("x",), 10**6, False, 2**40)


@pytest.mark.parametrize("stop", ["end", ["end"], ("end",)])
def test_stop_strings_are_kept_as_a_tuple(stop: Any) -> None:
    assert SamplingParams(stop=stop).stop == ("end",)
    assert SamplingParams(stop=stop) == SamplingParams(stop=("end",))
    assert SamplingParams(keep_special_tokens=stop).keep_special_tokens == ("end",)


def test_numbers_are_kept_as_plain_ones() -> None:
    numbers: Any = {"temperature": np.float32(0.5), "top_k": np.int64(3)}
    params = SamplingParams(**numbers, top_p=1)
    assert [type(v) for v in (params.temperature, params.top_k, params.top_p)] == [
        float,
        int,
        float,
    ]
    assert hash(params) == hash(SamplingParams(temperature=0.5, top_k=3))


def test_params_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        SamplingParams().seed = 3  # type: ignore[misc]


def test_only_no_temperature_is_greedy() -> None:
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams(temperature=1e-9).greedy
