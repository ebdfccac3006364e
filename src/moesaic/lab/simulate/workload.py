"""Which routing a run replays: the user's trace, a bundled one, or a synthetic one.

The choice depends on the model and the workload only, never on policies or machines, so runs
that are compared replay the same tokens."""

from __future__ import annotations

from dataclasses import replace
from heapq import heapreplace
from pathlib import Path
from typing import NamedTuple

from moesaic.core.errors import ImpossibleSetting
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import check_trace
from moesaic.workloads.bundled_traces import BUNDLED, bundled_trace, recorded_trace
from moesaic.workloads.documents import documents, part_of_phase
from moesaic.workloads.source import TraceSource, open_trace
from moesaic.workloads.synthetic.calibration import default_calibration
from moesaic.workloads.synthetic.generate import TraceShape, synthesize

SYNTHETIC = "synthetic"  # the word for it, where a model has left a trace of its own
_FEWEST = 4  # steps that are worth simulating


class Workload(NamedTuple):
    source: TraceSource
    words: str  # where the routing comes from, for the user


def choose_workload(trace: str | None, settings: Settings) -> Workload:
    """The trace to replay, known to be of the right shape and long enough.

    None or SYNTHETIC makes one; BUNDLED is the small one that comes with the package."""
    if trace == SYNTHETIC:
        trace = None
    if trace == BUNDLED:
        found = bundled_trace(settings.model.name)
        if found is None:
            raise ImpossibleSetting(
                f"no trace of {settings.model.name} is bundled: use --trace {SYNTHETIC}, or name a "
                "file"
            )
        trace = str(found)
    return _synthetic(settings) if trace is None else _from_file(trace, settings)


def usual_trace(model_name: str) -> str:
    """What a study of this model replays where nothing is asked for: routing it has left itself
    if the package has some, synthetic otherwise."""
    return SYNTHETIC if recorded_trace(model_name) is None else BUNDLED


def shortened(trace: str, settings: Settings) -> Settings:
    """The same decode run with as many steps as the trace has: for recordings of a few answers.
    Halved until it fits; as it was where it fits, or where nothing would."""
    source = open_trace(trace)
    check_trace(settings, source)
    shorter = settings
    while settings.phase == "decode" and not playable(source, shorter):
        if shorter.tokens < _FEWEST:
            return settings
        shorter = replace(
            shorter,
            tokens=shorter.tokens // 2,
            warmup=shorter.warmup_steps // 2,
            profile_tokens=shorter.profile_tokens // 2,
            first_token=None if shorter.first_token is None else shorter.first_token // 2,
        )
    return shorter


def _from_file(trace: str, settings: Settings) -> Workload:
    source = open_trace(trace)
    check_trace(settings, source)
    if not playable(source, settings):
        found = sum(len(part_of_phase(each, settings.phase)) for each in documents(source))
        raise ImpossibleSetting(
            f"the trace {Path(trace).name!r} has {found} tokens for {settings.phase}; this run "
            f"needs {settings.tokens_needed}: {settings.skipped_tokens} to choose the initial "
            f"placement, then {_asked(settings)}, and the trace gives {_lasts(source, settings)}. "
            f"{_advice(source, settings)}, use a longer trace, or --trace {SYNTHETIC}"
        )
    words = provenance(source.header.source, source.header.origin)
    return Workload(source, f"{Path(trace).name}: {words}")


def _advice(source: TraceSource, settings: Settings) -> str:
    """What would make a short trace fit."""
    if settings.phase != "decode":
        return "Ask for fewer --tokens or --prompts"
    found = sum(1 for _ in documents(source))
    if found < settings.batch:
        return f"A batch replays as many documents side by side, and it has {found}: use --batch 1"
    return "Leave out --tokens and --warmup to play it as far as it goes"


def _synthetic(settings: Settings) -> Workload:
    model = settings.model
    calibration = default_calibration(model.name, model.num_experts)
    tokens = settings.tokens_needed
    if settings.phase == "decode" and settings.batch > 1:
        # Documents in a batch end at different times; tokens that are not read are never generated.
        tokens += settings.batch * calibration.document_tokens[-1]
    # Without forecasts, as recorded traces are: the brain learns to predict from routing alone.
    source = synthesize(
        calibration, TraceShape.of(model), tokens, seed=settings.seed, phase=settings.phase
    )
    return Workload(source, f"synthetic, calibration {calibration.name}, seed {settings.seed}")


def playable(source: TraceSource, settings: Settings) -> bool:
    """Whether the trace lasts for all steps of the run."""
    return _lasts(source, settings) >= settings.warmup_steps + settings.steps


def _lasts(source: TraceSource, settings: Settings) -> int:
    """How many steps the trace gives behind its profile part, counted up to those asked for:
    every sequence of the batch replays documents one after another, and the first without a next
    document ends the run."""
    sequences, per_step = (
        (settings.batch, 1) if settings.phase == "decode" else (1, settings.tokens)
    )
    asked = settings.warmup_steps + settings.steps
    ends = [0] * sequences
    for document in documents(source, settings.skipped_tokens):
        heapreplace(ends, ends[0] + len(part_of_phase(document, settings.phase)))
        if ends[0] >= asked * per_step:
            break
    return ends[0] // per_step


def _asked(settings: Settings) -> str:
    steps = settings.warmup_steps + settings.steps
    if settings.phase == "prefill":
        return f"{steps} prompts of {settings.tokens} tokens"
    return f"{steps} decode steps of batch {settings.batch}"


def provenance(source: str, origin: str) -> str:
    """Text on where routing comes from, which begins with whether it is real."""
    if source.startswith(origin):
        return source
    return f"{origin} routing, {source}" if source else f"{origin} routing"
