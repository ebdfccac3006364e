"""Makes insights of a loaded model: what has to hold still is taken between two steps, the rest is
worked out while the next one runs."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.engine.insight.conversations import kept, of_requests
from moesaic.engine.insight.facts import EngineFacts, HitFacts, Insight, StepFacts
from moesaic.engine.insight.hit_rates import hit_facts
from moesaic.engine.insight.layer_facts import layer_facts
from moesaic.engine.insight.settle import refuse, settle
from moesaic.engine.insight.step_log import NotedStep, RoutedStep
from moesaic.engine.loading import LoadedModel
from moesaic.hardware.host import cpu_name, usable_cores
from moesaic.model_info.kv_blocks import KV_BLOCK

_HITS_S = 2.0  # between two counts of what caches would have hit


@dataclass(frozen=True, slots=True)
class _Taken:
    """An insight without what can be worked out later."""

    insight: Insight
    step: NotedStep | None
    window: list[RoutedStep]
    resident: NDArray[np.uint8] | None


class Collector:
    """Has a thread of its own as soon as there is work for it."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._worker = ThreadPoolExecutor(1, "moesaic-insight")
        self._began = perf_counter()
        self._hits: HitFacts | None = None
        self._hits_until = 0.0

    def collect(self, result: Future[Insight]) -> None:
        """Called by the batcher's thread, between two steps. From here on, steps are noted for some
        seconds."""
        try:
            taken = self._take()
        except Exception as error:
            refuse(result, error)
        else:
            self._worker.submit(settle, result, partial(self._finished, taken))

    def close(self) -> None:
        self._worker.shutdown()

    def _take(self) -> _Taken:
        batcher, runner = self._model.batcher, self._model.runner
        batcher.log.want()
        listed, more = kept(runner.kv)
        conversations = [*of_requests(runner.kv, batcher.requests), *listed]
        passed = perf_counter() - self._began
        engine, stats = engine_facts(self._model), batcher.stats()
        insight = Insight(engine, stats, passed, None, [], None, conversations, more)
        return _Taken(insight, batcher.log.last, list(batcher.log.window), self._resident())

    def _finished(self, taken: _Taken) -> Insight:
        spec, slots = self._model.spec, taken.insight.engine.slots
        resident = [] if taken.resident is None else [row.nonzero()[0] for row in taken.resident]
        return replace(
            taken.insight,
            step=None if taken.step is None else self._step(taken.step),
            resident=[row.tolist() for row in resident] or [[] for _ in range(spec.num_moe_layers)],
            hits=self._counted(taken.window, slots),
        )

    def _step(self, noted: NotedStep) -> StepFacts:
        layers = layer_facts(noted, self._model.runner.brain.belief, self._model.spec.num_experts)
        return StepFacts(
            noted.number, noted.kind, noted.tokens, noted.sequences, noted.report.latency_ns,
            noted.executor, layers,
        )  # fmt: skip

    def _resident(self) -> NDArray[np.uint8] | None:
        """As the brain saw it last, also where another executor than layerwise has the slots."""
        runner = self._model.runner
        machine = runner.machine
        if not machine.residency.slots:
            return None
        seen = machine.last is not None and machine.last.name == "captured"
        where = runner.brain.state.inputs.resident if seen else machine.residency.resident
        return where.copy()

    def _counted(self, window: list[RoutedStep], slots: int) -> HitFacts | None:
        """Counted again now and then, since it takes some milliseconds."""
        now = monotonic()
        if self._hits is None or not window or now >= self._hits_until:
            self._hits, self._hits_until = hit_facts(window, slots), now + _HITS_S
        return self._hits


def engine_facts(model: LoadedModel) -> EngineFacts:
    spec, settings, runner = model.spec, model.settings, model.runner
    machine, slots = runner.machine, runner.machine.residency.slots
    policies = settings.policies.given_slots(slots)
    words = {kind: str(text) for kind, text in policies.as_dict().items() if kind != "parameters"}
    accelerator = _accelerator(model)
    cores = settings.threads or usable_cores()
    return EngineFacts(
        model=spec.name,
        layers=spec.num_moe_layers,
        experts=spec.num_experts,
        top_k=spec.top_k,
        shared_experts=spec.shared_intermediate > 0,
        expert_bytes=machine.store.kernel.block_bytes,
        expert_dtype=machine.store.kernel.dtype,
        executor=machine.executors[0].name,
        why_layerwise=machine.why_layerwise,
        accelerator=accelerator,
        slots=slots,
        policies=words,
        decides=runner.brain.schedule.decides,
        machine=f"{cpu_name() or 'an unknown CPU'}, {cores} {'core' if cores == 1 else 'cores'}",
        lanes=[CPU] if accelerator is None else [GPU, CPU, PCIE],
        block_tokens=KV_BLOCK,
    )


def _accelerator(model: LoadedModel) -> tuple[str, str] | None:
    kind = model.settings.accelerator
    if not model.settings.capabilities.moves:
        return None
    device = model.runner.decoder.device
    if device.type == "cuda":
        return kind, torch.cuda.get_device_name(device)
    return kind, "a part of main memory, a CPU thread and a link with a speed limit"
