"""What an engine's process does: it loads a model, serves callers and closes the model."""

from __future__ import annotations

import pickle
import sys
import traceback
from pathlib import Path
from time import monotonic

from moesaic.engine.batcher_thread import BatcherThread
from moesaic.engine.loading import Progress, load_prepared
from moesaic.engine.preparation import ModelText, prepare
from moesaic.engine.process.admission import Admission
from moesaic.engine.process.engine_process import STEPS, Launch
from moesaic.engine.process.faults import Fault, fault_of
from moesaic.engine.process.server import EngineServer, Serving
from moesaic.engine.process.step_record import StepRecord
from moesaic.engine.sampling.sampling_params import SamplingParams

_GREETING_S = 30.0  # for the caller to hear why a model could not be loaded
_PROGRESS_S = 0.05  # between two messages


def run(folder: Path) -> None:
    server = EngineServer(folder, StepRecord(folder / STEPS))
    server.begin()
    try:
        batcher = _load(server)
    except BaseException as error:
        traceback.print_exc()
        server.fail(error)
        server.greeted.wait(_GREETING_S)
    else:
        server.shut_down.wait()
        server.closed(_close(batcher, server.shutdown_error))
    server.end()


def _load(server: EngineServer) -> BatcherThread:
    launch: Launch = pickle.load(sys.stdin.buffer)
    server.watch_parent(launch.options)
    text = ModelText(None, launch.eos_ids, SamplingParams())
    prepared = prepare(launch.folder, launch.settings, text)
    model = load_prepared(prepared, launch.record, _seldom(server.progress))
    batcher = BatcherThread(model, server)
    capacity = prepared.plan.capacity
    admission = Admission(launch.folder, prepared)
    server.serve(Serving(batcher, admission, capacity.length, capacity.sequences))
    return batcher


def _close(batcher: BatcherThread, error: BaseException | None) -> Fault | None:
    try:
        batcher.close(error)
    except BaseException as failure:
        return fault_of(failure)
    return None


def _seldom(progress: Progress) -> Progress:
    last = 0.0

    def report(done: int, total: int) -> None:
        nonlocal last
        if done == total or monotonic() - last >= _PROGRESS_S:
            last = monotonic()
            progress(done, total)

    return report
