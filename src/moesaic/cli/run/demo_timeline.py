"""The demo's answer step by step: the same tokens once more, with a recorded timeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from moesaic.cli.run.demo_runs import EMULATED
from moesaic.cli.shared.engine_options import one_text_settings

if TYPE_CHECKING:
    from moesaic.engine.completion import Completion
    from moesaic.engine.preparation import Prepared
    from moesaic.lab.bench.step_recorder import StepRecorder


def draw_answer(answer: Completion, picture: Path, trace: Path) -> None:
    """A typical decode step as a picture, the last ones as a Chrome trace."""
    from moesaic.cli.shared.perfetto import write_perfetto
    from moesaic.cli.shared.recorded_timeline import recorded_info, recording_of
    from moesaic.cli.shared.timeline_picture import draw_timeline
    from moesaic.engine.preparation import prepare

    prepared = prepare(None, one_text_settings(EMULATED))
    recorder = _recorded(prepared, answer)
    info = recorded_info(recorder, prepared.settings, prepared.plan, "own routing")
    recording = recording_of(recorder)
    draw_timeline(str(picture), info, recording)
    write_perfetto(str(trace), info, recording, "moesaic demo")


def _recorded(prepared: Prepared, answer: Completion) -> StepRecorder:
    from moesaic.engine.assemble import assemble
    from moesaic.lab.bench.bench_steps import CaseRuns, run_steps
    from moesaic.lab.bench.step_recorder import StepRecorder
    from moesaic.machines.real.forward_pass import ForwardPass, Piece
    from moesaic.models.open_model import load_decoder

    settings, plan, recorder = prepared.settings, prepared.plan, StepRecorder()
    prompt, piece = list(answer.prompt_tokens), settings.step_tokens
    pieces = [prompt[start : start + piece] for start in range(0, len(prompt), piece)]
    runner = assemble(
        load_decoder(prepared.opened, plan.dtype, kernel=settings.kernel),
        prepared.opened.experts,
        plan.expert_dtype,
        settings,
        plan.capacity,
        timeline=recorder.timeline,
    )
    try:
        run_steps(runner, [ForwardPass([Piece(0, tokens)]) for tokens in pieces], CaseRuns())
        recorder.record(runner, [ForwardPass([Piece(0, [token])]) for token in answer.tokens])
    finally:
        runner.close()
    return recorder
