"""Stock `transformers` on the same checkpoint or config: a contender in its own process."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from moesaic.core.errors import ImpossibleSetting
from moesaic.kernels.dtypes import torch_dtype
from moesaic.lab.against.own_process import in_own_process
from moesaic.lab.against.rounds import Rates
from moesaic.lab.bench.cases import Case
from moesaic.lab.bench.stock_child import filled
from moesaic.lab.user_environment import of_stock_process

_WARMUP = 4  # tokens that do not count


def check_installed() -> None:
    if find_spec("transformers") is None:
        raise ImpossibleSetting(
            "--against transformers needs that package, which is not installed: pip install "
            "transformers"
        )


@dataclass(frozen=True, slots=True)
class Transformers:
    source: str  # a checkpoint's folder, or a config.json: random weights
    layers: int | None  # of the config; None: all
    dtype: str
    threads: int
    cases: tuple[Case, ...]

    name = "transformers"

    @property
    def words(self) -> str:
        return f"everything in {self.dtype}"

    def turn(self) -> Rates:
        arguments = (self.source, self.layers, self.dtype, self.threads, self.cases)
        environment = of_stock_process()
        return in_own_process(self.name, stock_tests, *arguments, environment=environment)


def stock_tests(
    source: str, layers: int | None, dtype: str, threads: int, cases: tuple[Case, ...]
) -> Rates:
    torch.set_num_threads(threads)
    # PyTorch says on CPUs without bf16 products that it takes others, with a page of addresses.
    warnings.filterwarnings("ignore", message="mkldnn_matmul failed")
    model = _load(source, layers, torch_dtype(dtype))
    random = torch.Generator().manual_seed(0)
    vocabulary = model.config.vocab_size
    with torch.inference_mode():
        return {case.name: _rate(model, case, vocabulary, random) for case in cases}


def _load(source: str, layers: int | None, dtype: torch.dtype) -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if Path(source).is_dir():
        model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    else:
        config = transformers.AutoConfig.from_pretrained(source)
        if layers is not None:
            config.num_hidden_layers = layers
        model = _random(transformers, config, dtype)
    return model.eval()


def _random(transformers: Any, config: Any, dtype: torch.dtype) -> Any:
    """Drawing every number of a large model takes minutes, and speed does not depend on them: all
    parameters are filled with the same few."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with _nothing_drawn():
            model = transformers.AutoModelForCausalLM.from_config(config)
    finally:
        torch.set_default_dtype(before)
    return filled(model.to(dtype))


@contextmanager
def _nothing_drawn() -> Iterator[None]:
    """Parameters keep whatever their memory held."""
    drawing = ("normal_", "uniform_")
    kept = {name: getattr(torch.Tensor, name) for name in drawing}
    for name in drawing:
        setattr(torch.Tensor, name, lambda self, *given, **named: self)
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(torch.Tensor, name, method)


def _rate(model: Any, case: Case, vocabulary: int, random: torch.Generator) -> float:
    """Tokens per second; one prompt in one pass, or as many tokens as asked for one by one."""
    if case.phase == "prefill":
        prompt = torch.randint(0, vocabulary, (1, case.tokens), generator=random)
        _decode(model, prompt[:, :1], _WARMUP)
        started = perf_counter()
        model(prompt, use_cache=True, logits_to_keep=1)
        return case.tokens / (perf_counter() - started)
    first = torch.randint(0, vocabulary, (case.batch, 1), generator=random)
    _decode(model, first, min(_WARMUP, case.tokens))
    started = perf_counter()
    _decode(model, first, case.tokens)
    return case.all_tokens / (perf_counter() - started)


def _decode(model: Any, tokens: torch.Tensor, count: int) -> None:
    """Decode from an empty context, the likeliest token each time."""
    past = None
    for _ in range(count):
        out = model(tokens, past_key_values=past, use_cache=True)
        past, tokens = out.past_key_values, out.logits[:, -1:].argmax(-1)
