"""Do messages keep what they carry: parameters, errors, the record of a step?"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moesaic import ProcessOptions, SamplingParams
from moesaic.core import errors
from moesaic.core.errors import EngineFailed, ImpossibleSetting, MoesaicError
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.insight.facts import (
    Conversation,
    EngineFacts,
    ExpertFacts,
    HitFacts,
    Insight,
    LayerFacts,
    PlannedLanes,
    StepFacts,
)
from moesaic.engine.preparation import ModelText, prepare
from moesaic.engine.process import messages as m
from moesaic.engine.process.admission import Admission
from moesaic.engine.process.command_queue import CommandQueue
from moesaic.engine.process.faults import error_of, fault_of
from moesaic.engine.process.questions import Questions
from moesaic.engine.process.step_record import StepRecord
from moesaic.engine.run_stats import LaneStats, RunStats

KINDS = [each for each in vars(errors).values() if isinstance(each, type)]
GREEDY = SamplingParams(max_tokens=9, temperature=0.0)
# Those are the caller's.
OF_TEXTS = {"stop", "keep_special_tokens", "n", "json_schema", "grammar", "regex"}


def test_all_parameters_that_choose_tokens_are_carried() -> None:
    known = {each.name: each.default for each in fields(SamplingParams)}
    carried = m.SamplingFields.__struct_fields__
    assert set(carried) == set(known) - OF_TEXTS
    defaults = m.SamplingFields(max_tokens=256)
    assert {name: getattr(defaults, name) for name in carried} == {n: known[n] for n in carried}


def test_parameters_arrive_as_they_were() -> None:
    params = SamplingParams(
        max_tokens=9, temperature=0.7, top_k=5, seed=-(2**70), logprobs=2, logit_bias={3: -1.5},
        stop_token_ids=[4, 2], regex="a+",
    )  # fmt: skip
    sent = m.Submit(1, [1, 2], m.SamplingFields.of(params, 9), 9, 2, (1,), "a client", -3)
    received = m.decode_from_caller(m.encode(sent))
    assert received == sent
    assert isinstance(received, m.Submit)
    made = received.sampling.params()
    for each in m.SamplingFields.__struct_fields__:
        assert getattr(made, each) == getattr(params, each)


def test_a_request_of_the_engine_is_what_was_submitted() -> None:
    prepared = prepare(None, EngineSettings(threads=1), ModelText(None, frozenset({5}), GREEDY))
    fields = m.SamplingFields.of(GREEDY, 7)
    submitted = m.Submit(1, [1, 2, 3], fields, 7, 0, (2,), "a client", 4)
    request = Admission(Path(), prepared).request(submitted)
    assert (request.prompt, request.max_new_tokens, request.eos) == ((1, 2, 3), 7, frozenset({5}))
    assert (request.boundaries, request.client, request.priority) == ((2,), "a client", 4)
    assert request.output.text is None  # which is the caller's


def test_statistics_may_count_in_numbers_of_numpy() -> None:
    counted: Any = np.int64(3)
    stats = RunStats(counted, 2, 1, 1, 0.5, np.float64(0.25), 0, None)
    received = m.decode_from_engine(m.encode(m.Stats(stats, True)))
    assert isinstance(received, m.Stats)
    assert received.stats == stats


def test_an_insight_arrives_as_it_was() -> None:
    expert = ExpertFacts(np.int64(3), 2, "link", "host", 0, 30, None)  # type: ignore[arg-type]
    lanes = PlannedLanes(1, 2, 3, 4, 5, 6)
    layer = LayerFacts(0, 10, None, 1, 0, 99, 0, [expert], lanes)
    engine = EngineFacts(
        "a model", 1, 8, 2, False, 99, "bf16", "layerwise", None, ("emulated", "a part"), 4,
        {"schedule": "hybrid"}, True, "a machine", ["gpu", "cpu", "pcie"], 64,
    )  # fmt: skip
    step = StepFacts(1, "mixed", 5, 2, 1000, "layerwise", [layer])
    kept = Conversation(7, "a client", "kept", 2, 80, 80)
    hits = HitFacts(8, 0.5, 0.25, 0.75, 0.5)
    stats = RunStats(1, 2, 3, 4, 0.5, None, 6, None, lanes=LaneStats(0.5, 1.5, None))
    insight = Insight(engine, stats, 1.5, step, [[3]], hits, [kept], 1)
    sent = m.InsightFound(4, insight)
    assert m.decode_from_engine(m.encode(sent)) == sent
    assert m.decode_from_engine(m.encode(m.Captured(1, b"\0\xff"))) == m.Captured(1, b"\0\xff")
    for asked in (m.GetInsight(1), m.BeginCapture(2, "routing", 9), m.EndCapture()):
        assert m.decode_from_caller(m.encode(asked)) == asked


def test_questions_are_answered_once_or_fail_together() -> None:
    questions = Questions()
    asked = [Future[int]() for _ in range(4)]
    numbers = [questions.ask(each) for each in asked]
    asked[1].cancel()
    questions.answer(numbers[0], 5, None)
    questions.answer(numbers[0], 6, None)
    questions.answer(numbers[1], 7, None)
    questions.answer(numbers[2], None, ImpossibleSetting("no"))
    questions.fail_all(EngineFailed("it has ended"))
    assert asked[0].result(0) == 5
    assert asked[1].cancelled()
    assert [str(each.exception(0)) for each in asked[2:]] == ["no", "it has ended"]


def one_of(kind: type[MoesaicError]) -> MoesaicError:
    made = kind.__new__(kind)
    Exception.__init__(made, "what happened")
    return made


@pytest.mark.parametrize("kind", [k for k in KINDS if issubclass(k, MoesaicError)])
def test_errors_keep_their_class_and_text(kind: type[MoesaicError]) -> None:
    fault = fault_of(one_of(kind))
    message = m.decode_from_engine(m.encode(m.Refused(3, fault)))
    assert isinstance(message, m.Refused)
    again = error_of(message.fault)
    assert type(again) is (EngineFailed if kind is MoesaicError else kind)
    assert "what happened" in str(again)


def test_attributes_of_errors_are_kept() -> None:
    error = error_of(fault_of(errors.BadConfig(Path("a/config.json"), "layers", "expected 3")))
    assert isinstance(error, errors.BadConfig)
    assert (error.path, error.field) == ("a/config.json", "layers")
    assert str(error) == "model config 'a/config.json': layers: expected 3"


def test_other_errors_are_failures_of_the_engine() -> None:
    class Own(ImpossibleSetting):
        pass

    assert str(error_of(fault_of(OSError("the disk is gone")))) == "OSError: the disk is gone"
    assert type(error_of(fault_of(OSError()))) is EngineFailed
    assert type(error_of(fault_of(Own("no")))) is ImpossibleSetting


def test_a_step_can_be_read_by_another_who_maps_it(tmp_path: Path) -> None:
    reader = StepRecord.create(tmp_path / "steps")
    writer = StepRecord(tmp_path / "steps")
    assert not reader.read().under_way
    writer.begin([(1, 4), (2, 2**63)])
    assert reader.read() == (1, 0, ((1, 4), (2, 2**63)))
    assert reader.read().under_way
    writer.end()
    assert not reader.read().under_way
    writer.begin([(1, number) for number in range(1000)])
    assert len(reader.read().requests) == 64
    reader.close()
    writer.close()


def test_commands_run_in_order_and_not_after_the_end() -> None:
    queue, ran = CommandQueue(), list[int]()
    for number in range(100_000):  # more than the pipe has room for
        queue.put(partial(ran.append, number))
    queue.run()
    assert ran == list(range(100_000))
    queue.close()
    queue.put(lambda: ran.append(-1))
    queue.close()


@pytest.mark.parametrize(
    "options", [{"restarts": -1}, {"restarts": True}, {"stall_s": 0}, {"unread_messages": 0}]
)
def test_impossible_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ImpossibleSetting, match=next(iter(options))):
        ProcessOptions(**options)
