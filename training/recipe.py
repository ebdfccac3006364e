"""What is trained and how: frozen settings, read from a TOML file with one table per class.

Why this shape. The weights must fit 40 MB in bf16, tokenizer included, so 19.5 million of them.
The embedding is tied and 4,096 tokens small: prose takes 3.3 characters per token with it, and
digits are tokens of their own anyway. 32 experts of 64 leave room for ten layers of width 256,
and 128 (gate and up together) and 64 are exact tiles of a matrix unit. Four of 32 experts per token
is the sparsity of gpt-oss and of OLMoE.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from moesaic.core.errors import ImpossibleSetting

BUNDLED = Path(__file__).with_name("recipe.toml")


@dataclass(frozen=True, slots=True)
class Shape:
    vocabulary: int = 4096  # tokens, special ones included
    hidden: int = 256
    layers: int = 10
    heads: int = 4
    experts: int = 32  # per layer
    top_k: int = 4
    expert_width: int = 64  # inner width of one expert
    context: int = 1024  # tokens of a training row, and the longest text the model promises
    normalized: bool = False  # the chosen experts' weights sum to 1 (OLMoE: they do not)
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0

    def __post_init__(self) -> None:
        if self.hidden % (2 * self.heads):
            _refuse(f"hidden {self.hidden} must be an even multiple of heads {self.heads}")
        if not 0 < self.top_k <= self.experts:
            _refuse(f"top_k {self.top_k} must be 1 to the number of experts, {self.experts}")
        if self.hidden % 8 or self.expert_width % 8:
            _refuse("hidden and expert_width must be multiples of 8, as grouped products need")
        if not 300 <= self.vocabulary <= 65536:
            _refuse(f"vocabulary {self.vocabulary} must be 300 to 65536 (tokens are two bytes)")

    @property
    def parameters(self) -> int:
        attention = 4 * self.hidden**2 + 2 * self.hidden
        experts = self.experts * (3 * self.hidden * self.expert_width + self.hidden)
        layer = attention + experts + 2 * self.hidden
        return self.vocabulary * self.hidden + self.layers * layer + self.hidden


@dataclass(frozen=True, slots=True)
class Data:
    prose_share: float = 0.35  # of the rows of a step; the rest are problems
    # Questions are mostly drawn names and numbers, which cannot be predicted: they count a little,
    # so that their wording is learned, and do not drown what follows from them.
    question_weight: float = 0.1
    rows: int = 128  # per step, each `context` tokens long
    shard_problems: int = 4000  # problems a worker makes and packs at a time
    documents_per_row: int = 16  # boundaries per row, on average; see batches.boundaries

    def __post_init__(self) -> None:
        if not 0 <= self.prose_share <= 1:
            _refuse(f"prose_share {self.prose_share} must be 0 to 1")
        if not 0 <= self.question_weight <= 1:
            _refuse(f"question_weight {self.question_weight} must be 0 to 1")
        if self.rows < 1 or self.shard_problems < 1:
            _refuse("rows and shard_problems must be at least 1")

    @property
    def prose_rows(self) -> int:
        return round(self.rows * self.prose_share)


@dataclass(frozen=True, slots=True)
class Learning:
    matrix_rate: float = 4e-3  # Muon: attention and experts
    vector_rate: float = 3e-3  # AdamW: embedding and norms
    router_rate: float = 1e-3  # AdamW
    weight_decay: float = 0.05  # of matrices, times their rate
    warm_up: float = 0.02  # share of the run
    decay: float = 0.45  # share of the run, at its end, in which rates fall to nothing
    largest_gradient: float = 1.0  # norm over all weights
    balance: float = 0.01  # coefficient of the load-balancing loss
    router_z: float = 0.001  # coefficient of the router's z-loss
    concentration: float = 0.0  # coefficient of losses.leaning


@dataclass(frozen=True, slots=True)
class Run:
    steps: int = 8000  # planned; a planned time, if given, replaces it
    seed: int = 1
    evaluate_every: int = 2000  # steps
    checkpoint_every: int = 1000  # steps
    loss_rows: int = 64  # rows of every held-out text in an evaluation
    exact_problems: int = 256  # problems of every held-out split, answered in an evaluation
    answer_tokens: int = 160  # the longest answer


@dataclass(frozen=True, slots=True)
class Recipe:
    shape: Shape = field(default_factory=Shape)
    data: Data = field(default_factory=Data)
    learning: Learning = field(default_factory=Learning)
    run: Run = field(default_factory=Run)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def with_run(self, **changes: Any) -> Recipe:
        return replace(self, run=replace(self.run, **changes))


_TABLES: dict[str, type[Any]] = {"shape": Shape, "data": Data, "learning": Learning, "run": Run}


def read_recipe(path: Path) -> Recipe:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ImpossibleSetting(f"the recipe {str(path)!r} cannot be read: {error}") from None
    return recipe_of(content)


def recipe_of(content: Mapping[str, Any]) -> Recipe:
    """A recipe from its tables; fields that are not named keep their defaults."""
    _know(content, _TABLES, "tables")
    return Recipe(**{name: _table(name, values) for name, values in content.items()})


def _table(name: str, values: Any) -> Any:
    kind = _TABLES[name]
    if not isinstance(values, Mapping):
        _refuse(f"{name} must be a table")
    defaults = {entry.name: getattr(kind(), entry.name) for entry in fields(kind)}
    _know(values, defaults, f"fields of [{name}]")
    for key, value in values.items():
        wanted = type(defaults[key])
        fits = isinstance(value, (int, float) if wanted is float else wanted)
        if not fits or (isinstance(value, bool) and wanted is not bool):
            _refuse(f"{name}.{key} must be a {wanted.__name__}, not {value!r}")
    return kind(**values)


def _know(names: Mapping[str, Any], known: Mapping[str, Any], what: str) -> None:
    for name in names:
        if name not in known:
            _refuse(f"{name!r} is none of the {what}: {', '.join(known)}")


def _refuse(what: str) -> None:
    raise ImpossibleSetting(f"recipe: {what}.")
