"""From a model directory to something that generates. Everything that can be refused is refused
before weights are read; see `preparation`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from itertools import count
from typing import Any

import torch

from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.engine.assemble import assemble
from moesaic.engine.batcher import Batcher
from moesaic.engine.belief_source import belief_source
from moesaic.engine.dense_weights import dense_packer
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.input_processor import InputProcessor
from moesaic.engine.learned_placement import LearnedPlacement
from moesaic.engine.memory.memory_plan import MemoryPlan
from moesaic.engine.model_use import SPAWN, closed_error, refuse_use_in_fork
from moesaic.engine.preparation import PathLike, Prepared, prepare
from moesaic.engine.recording import RoutingRecording, check_writable
from moesaic.engine.runner import Runner
from moesaic.engine.sampling.sampler import Sampler
from moesaic.engine.waiting_requests import WaitingRequests
from moesaic.model_info.model_spec import ModelSpec
from moesaic.models.open_model import load_decoder
from moesaic.models.text.tokenizer import Tokenizer
from moesaic.policies.policy_checks import check_gate
from moesaic.policies.policy_set import POLICY_FIELDS, with_options
from moesaic.policies.quality_levels import quality_level
from moesaic.policies.systems import load_system

Progress = Callable[[int, int], None]  # experts loaded, experts in all


@dataclass(slots=True, eq=False)
class LoadedModel:
    """A model with everything around it that turns requests into tokens."""

    spec: ModelSpec
    settings: EngineSettings
    plan: MemoryPlan
    tokenizer: Tokenizer | None
    runner: Runner
    input_processor: InputProcessor
    batcher: Batcher
    recording: RoutingRecording | None
    placement: LearnedPlacement | None
    threads: int  # torch's, in the thread that drives the batcher
    closed: bool = False
    process: int = field(default_factory=os.getpid)  # that loaded it

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that loaded the model. It has neither its
        threads nor its GPU, and would wait for them for ever; recording is the other's."""
        return os.getpid() != self.process

    def close(self, error: BaseException | None = None) -> None:
        """Stop the threads and finish the recording, which an error makes void. What was learned of
        the routing is kept after an error, too."""
        if self.closed or self.forked:
            return
        self.closed = True
        try:
            self.batcher.cancel_all()
            if self.recording is not None and isinstance(error, Exception):
                self.recording.discard(error)
            elif self.recording is not None:
                self.recording.close()
            if self.placement is not None:
                self.placement.save()
        finally:
            self.runner.close()

    def refuse_if(self, closed: bool) -> None:
        self.refuse_fork()
        if closed:
            raise closed_error(self.spec.name)

    def refuse_fork(self) -> None:
        refuse_use_in_fork(self.spec.name, self.process)


_opened_by: list[int] = []  # the process that has opened a model; a fork of it inherits the list


def _refuse_in_fork() -> None:
    me = os.getpid()
    if _opened_by and _opened_by[0] != me:
        raise ImpossibleSetting(
            f"a model cannot be opened in process {me}, a fork of process {_opened_by[0]}, which "
            f"has opened one: a fork has no threads. Instead, {SPAWN}"
        )
    _opened_by[:] = [me]


def load(
    model: PathLike | None,
    settings: EngineSettings,
    record: PathLike | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    return load_prepared(prepare(model, settings), record, progress)


def load_prepared(
    prepared: Prepared, record: PathLike | None = None, progress: Progress | None = None
) -> LoadedModel:
    _refuse_in_fork()
    settings, plan, spec = prepared.settings, prepared.plan, prepared.spec
    if record is not None:
        check_writable(record)
        _check_recordable(settings, spec.top_k)
    advance = _counting(progress, spec.num_expert_blocks)
    runner = assemble(
        load_decoder(
            prepared.opened,
            plan.dtype,
            kernel=settings.kernel,
            dense=dense_packer(settings, plan.dtype),
        ),
        prepared.opened.experts,
        plan.expert_dtype,
        settings,
        plan.capacity,
        None if prepared.profile is None else prepared.profile.counts,
        advance=advance,
        scores=record is not None,
    )
    recording = None if record is None else RoutingRecording(record, spec)
    sampler = Sampler(prepared.eos_ids)
    batcher = Batcher(
        runner,
        sampler,
        plan.capacity.sequences,
        settings.step_tokens,
        recording,
        settings.prefix_cache,
        settings.batch_invariant,
        WaitingRequests(settings.max_queue, settings.max_queue_tokens),
        None if prepared.tokenizer is None else prepared.tokenizer.token_text,
        settings.max_stall_ms,
    )
    return LoadedModel(
        spec=spec,
        settings=settings,
        plan=plan,
        tokenizer=prepared.tokenizer,
        runner=runner,
        input_processor=prepared.input_processor,
        batcher=batcher,
        recording=recording,
        placement=None
        if settings.placement is None
        else LearnedPlacement(settings.placement, spec, runner.brain),
        threads=torch.get_num_threads(),
    )


def _check_recordable(settings: EngineSettings, top_k: int) -> None:
    gate = settings.policies.gate
    if check_gate(settings.policies, top_k).draft:
        raise ImpossibleSetting(
            f"gate {gate.name!r} runs tokens that may not stand, several in a pass, and a "
            "recording has the passes that stood: record with gate full, whose text is the same, "
            "or with little, whose confidence says which drafts would stand"
        )


def settings_from(
    settings: EngineSettings | None, system: str | None, options: Mapping[str, Any]
) -> EngineSettings:
    """A system's policies come before the settings', single options before both. An option is a
    field of the settings or of their policies. Where nothing says which policies to use, those
    that `moesaic profile` advises for this machine are, if it does."""
    known = [*(field.name for field in fields(EngineSettings)), *POLICY_FIELDS]
    for name in options:
        if name not in (*known, "quality"):
            raise UnknownName("option", name, [*known, "quality", "system", "record", "progress"])
    options = _with_gate(options)
    chosen = EngineSettings() if settings is None else settings
    if system is not None:
        chosen = chosen.with_system(load_system(system))
    made = with_options(chosen, options)
    given = settings is not None or system is not None or any(o in POLICY_FIELDS for o in options)
    advised = None if given else belief_source(made).system
    return made if advised is None else made.with_system(load_system(advised))


def _with_gate(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """A quality level is a gate."""
    if options.get("quality") is None:
        return {name: value for name, value in options.items() if name != "quality"}
    if "gate" in options:
        raise ImpossibleSetting("both a gate and a quality were given: give one of them")
    level = quality_level(options["quality"])
    rest = {name: value for name, value in options.items() if name != "quality"}
    return {**rest, "gate": level.gate, "quality_of": level.model}


def _counting(progress: Progress | None, total: int) -> Callable[[int], None]:
    if progress is None:
        return lambda experts: None
    done = count(1)
    return lambda experts: progress(next(done), total)
