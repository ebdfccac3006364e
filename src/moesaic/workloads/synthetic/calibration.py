"""The numbers that make synthetic routing resemble a real trace, and where they come from.

A calibration belongs to no shape: it says how router logits vary, not how many there are. It
carries the statistics of the trace it was fitted on, so that a synthetic trace can be held
against them at any time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from moesaic.core.errors import BadTrace, UnknownName
from moesaic.core.parsing import parse_json, read_bounded

BUILT_IN = Path(__file__).parent / "data"
MIXTRAL = "mixtral-8x7b"
GPT_OSS = "gpt-oss-20b-decode"
DEEPSEEK = "deepseek-v2-lite-prefill"


@dataclass(frozen=True, slots=True)
class Logits:
    """How the router logits of one expert vary, as shares of a variance of 1.

    popularity: fixed for the expert; document: fixed within a document; slow: drifts within it,
    forgotten after about `memory_tokens`; token: new with nearly every token, `echo` is its
    correlation with the one before; noise: this token, this layer, this expert only. All but
    popularity and noise come from a latent vector of `dimensions` numbers that every layer sees
    through its own random directions and that keeps a correlation of `depth` from layer to
    layer: so one layer predicts the next."""

    popularity: float
    document: float
    slow: float
    token: float
    noise: float
    memory_tokens: float
    echo: float
    depth: float
    skew: float  # of popularity, from -1 (a tail of unpopular experts) to 1 (of popular ones)
    dimensions: int = 6
    sharpness: float = 1.0  # standard deviation of the logits that the softmax sees


@dataclass(frozen=True, slots=True)
class Calibration:
    name: str
    logits: Logits
    document_tokens: tuple[int, ...]  # quantiles of document length, evenly spaced from 0 to 1
    phase: str
    source: str  # the real trace, in words
    provenance: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, float] = field(default_factory=dict)  # of the real trace
    synthetic_statistics: Mapping[str, float] = field(default_factory=dict)  # same shape, fitted

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, allow_nan=False) + "\n"

    @staticmethod
    def from_json(text: str | bytes, path: object) -> Calibration:
        values = parse_json(text, BadTrace, path, "calibration", finite=True)
        try:
            logits = Logits(**values.pop("logits"))
            lengths = tuple(int(n) for n in values.pop("document_tokens"))
            calibration = Calibration(logits=logits, document_tokens=lengths, **values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadTrace(path, "calibration", f"cannot be read ({error})") from error
        _check(calibration, path)
        return calibration


def load_calibration(name_or_path: str) -> Calibration:
    """A built-in calibration by name, or a file made by `trace fit`."""
    built_in = BUILT_IN / f"{name_or_path}.json"
    path = built_in if built_in.is_file() else Path(name_or_path)
    if not path.is_file():
        raise UnknownName("calibration", name_or_path, calibration_names())
    return Calibration.from_json(read_bounded(path, BadTrace), path)


def calibration_names() -> list[str]:
    return sorted(p.stem for p in BUILT_IN.glob("*.json"))


def default_calibration(model_name: str, num_experts: int | None = None) -> Calibration:
    """The built-in calibration to use for a model, by its name.

    Models of DeepSeek's kind (many small experts, trained for balanced load) follow the
    DeepSeek-V2-Lite trace: DeepSeek, Qwen, OLMoE, Kimi, GLM, and any model that `num_experts`
    says has 64 or more. Those with few, large experts follow gpt-oss-20b, the only other trace
    with every token and layer. gpt-oss itself follows its own, at any size. Mixtral, whose load
    is far more even, has its own, made from what is published about it."""
    name = model_name.lower()
    if "mixtral" in name:
        return load_calibration(MIXTRAL)
    if "gpt-oss" in name:
        return load_calibration(GPT_OSS)
    fine = any(family in name for family in ("deepseek", "qwen", "olmoe", "kimi", "glm"))
    return load_calibration(DEEPSEEK if fine or (num_experts or 0) >= 64 else GPT_OSS)


def _check(calibration: Calibration, path: object) -> None:
    for name, value in asdict(calibration.logits).items():
        low = -1 if name == "skew" else 0
        if not isinstance(value, (int, float)) or not value >= low:
            message = f"must be a number of at least {low}, is {value!r}"
            raise BadTrace(path, f"logits.{name}", message)
    for name in ("echo", "depth", "skew"):
        if getattr(calibration.logits, name) > 1:
            raise BadTrace(path, f"logits.{name}", "must be at most 1")
    if calibration.logits.memory_tokens <= 0 or calibration.logits.dimensions < 1:
        raise BadTrace(path, "logits", "memory_tokens and dimensions must be positive")
    lengths = calibration.document_tokens
    if len(lengths) < 2 or min(lengths) < 1 or list(lengths) != sorted(lengths):
        raise BadTrace(path, "document_tokens", "must be rising quantiles of at least 1 token")
    if calibration.phase not in ("prefill", "decode"):
        raise BadTrace(path, "phase", "must be prefill or decode")
