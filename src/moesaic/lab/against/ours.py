"""Our own turn: the bench's tests in a process of their own."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.engine.dense_weights import dense_packer
from moesaic.lab.against.own_process import in_own_process
from moesaic.lab.against.rounds import Rates
from moesaic.lab.bench.bench_model import from_folder, load_bench_model, random_model
from moesaic.lab.bench.bench_row import BenchConfig
from moesaic.lab.bench.cases import Case
from moesaic.lab.bench.grid import run_bench
from moesaic.lab.bench.replayed_routing import choose_routing

OURS = "moesaic"
_REPETITIONS = 1  # a round is a repetition


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """What is measured: a checkpoint's folder, or random weights in a shape."""

    folder: str | None
    synthetic: str | None
    layers: int | None
    trace: str
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True)
class Ours:
    model: MeasuredModel
    config: BenchConfig
    kernel: str

    name = OURS

    @property
    def words(self) -> str:
        plan = self.config.plan
        return f"{plan.expert_dtype} experts, {plan.dense_dtype} elsewhere"

    def turn(self) -> Rates:
        return in_own_process("moesaic", our_tests, self.model, self.config, self.kernel)


def our_tests(model: MeasuredModel, config: BenchConfig, kernel: str) -> Rates:
    if model.folder is not None:
        found = from_folder(model.folder)
    else:
        assert model.synthetic is not None, "a folder or a shape"
        found = random_model(model.synthetic, model.layers)
    plan = config.plan
    dense = dense_packer(config.settings, plan.dtype)
    loaded = load_bench_model(found, plan.dtype, plan.expert_dtype, kernel=kernel, dense=dense)
    routing = choose_routing(model.trace, found.spec, model.cases, _REPETITIONS)
    rows = run_bench(loaded, [config], model.cases, routing, _REPETITIONS)
    return {row.case.name: row.tokens / row.seconds for row in rows}
