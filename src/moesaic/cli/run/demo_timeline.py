"""The demo's answer step by step: the same tokens once more, with everything that works filmed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from moesaic.cli.run.demo_runs import EMULATED
from moesaic.cli.shared.engine_options import one_text_settings

if TYPE_CHECKING:
    from moesaic.engine.completion import Completion
    from moesaic.engine.preparation import Prepared
    from moesaic.lab.bench.last_steps import Film


def draw_answer(answer: Completion, picture: Path, trace: Path) -> None:
    """A typical decode step as a picture, the last ones as a Chrome trace."""
    from moesaic.cli.shared.perfetto import write_perfetto
    from moesaic.cli.shared.recorded_scene import film_recording, film_scene
    from moesaic.cli.shared.timeline_picture import draw_timeline
    from moesaic.engine.preparation import prepare

    prepared = prepare(None, one_text_settings(EMULATED))
    film = _filmed(prepared, answer)
    scene = film_scene(film, prepared.settings, prepared.plan, "own routing")
    recording = film_recording(film)
    draw_timeline(str(picture), scene, recording)
    write_perfetto(str(trace), scene, recording, "moesaic demo")


def _filmed(prepared: Prepared, answer: Completion) -> Film:
    from moesaic.engine.assemble import assemble
    from moesaic.engine.runner import Feed
    from moesaic.lab.bench.last_steps import Film
    from moesaic.lab.bench.steps import Taken, Work, run_steps
    from moesaic.models.load import load_decoder

    settings, plan, film = prepared.settings, prepared.plan, Film()
    prompt, piece = list(answer.prompt_tokens), settings.max_step_tokens
    pieces = [prompt[start : start + piece] for start in range(0, len(prompt), piece)]
    runner = assemble(
        load_decoder(prepared.opened, plan.dtype, kernel=settings.kernel),
        prepared.opened.experts,
        plan.expert_dtype,
        settings,
        plan.room,
        timeline=film.timeline,
    )
    try:
        run_steps(runner, [Work([Feed(0, tokens)], None) for tokens in pieces], Taken())
        film.record(runner, [Work([Feed(0, [token])], None) for token in answer.tokens])
    finally:
        runner.close()
    return film
