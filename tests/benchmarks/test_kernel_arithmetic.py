"""Are the kernel benchmark's ratios and verdicts what its rounds say?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("moesaic.kernels._native", reason="the native kernels were not built")

from benchmarks.kernel_cases import even_case, prompt_case
from benchmarks.kernel_contenders import Ring, tokens_of
from benchmarks.kernel_goals import GOALS, Latency, judge, judge_latency
from benchmarks.kernel_options import asked_for, parser
from benchmarks.kernel_process import CaseResult, in_a_row, shared_effort, together
from benchmarks.kernel_rounds import Effort, Roofline, Round, Turn, between, median_roofline
from benchmarks.kernel_rows import Row, RowKey, Spread, Work, make_row
from benchmarks.kernel_run import CpuTimes, now, others_share

from moesaic.core.errors import MoesaicError


def turn(seconds: float, stream_gb_s: float = 10.0, peak_tflops: float | None = 2.0) -> Turn:
    return Turn(seconds, Roofline(stream_gb_s, peak_tflops))


def row(rounds: list[Round], dtype: str = "bf16", tokens: str = "1") -> Row:
    key = RowKey("mixtral-8x7b", tokens, 2, "moesaic", dtype)
    return make_row(key, rounds, Work(bytes=8 * 10**9, flops=10**12), error=0.0)


def test_ratios_are_taken_within_a_round() -> None:
    """The second round is three times slower for all contenders: no ratio may notice."""
    ours, theirs = ("moesaic", "bf16"), ("pytorch", "bf16")
    rounds: list[Round] = [
        {ours: turn(1.0), theirs: turn(2.0)},
        {ours: turn(3.0, 10 / 3, 2 / 3), theirs: turn(6.0, 10 / 3, 2 / 3)},
    ]
    found = row(rounds)
    assert found.of_peak is not None
    assert (found.of_stream.median, found.of_stream.best) == pytest.approx((0.8, 0.8))
    assert (found.of_peak.median, found.of_peak.best) == pytest.approx((0.5, 0.5))
    assert found.times_faster == {"pytorch": Spread(2.0, 2.0)}
    assert (found.ms.best, found.ms.median) == (1000.0, 2000.0)
    assert found.gb_s.best == 8.0


def test_a_machine_without_tiles_has_no_share_of_a_peak() -> None:
    assert row([{("moesaic", "bf16"): turn(1.0, 10.0, None)}]).of_peak is None


def test_precisions_meet_their_own_bf16_and_others_in_their_precision() -> None:
    turns: Round = {
        ("moesaic", "bf16"): turn(3.0),
        ("moesaic", "int4"): turn(1.0),
        ("pytorch", "bf16"): turn(4.0),
        ("kt-kernel", "bf16"): turn(9.0),
        ("kt-kernel", "int4"): turn(2.0),
    }
    faster = {name: s.median for name, s in row([turns], "int4").times_faster.items()}
    assert faster == {"bf16": 3.0, "pytorch": 4.0, "kt-kernel": 2.0}


def test_two_rooflines_are_averaged_by_time() -> None:
    assert between(Roofline(10.0, 1.0), Roofline(30.0, None)) == Roofline(15.0, None)


@pytest.mark.parametrize(("seconds", "met"), [(0.94, True), (0.95, False)])
def test_the_worst_point_decides(seconds: float, met: bool) -> None:
    """Of 10 GB/s, 8 GB in 0.94 s are 85.1 %, in 0.95 s 84.2 %."""
    rows = [row([{("moesaic", "bf16"): turn(s)}]) for s in (0.5, seconds, 0.6)]
    verdict = judge(GOALS[0], rows)
    assert verdict.met is met
    assert verdict.reached.startswith("85.1" if met else "84.2")


def test_faster_means_more_than_as_fast() -> None:
    as_fast = [
        row([{("moesaic", "int8"): turn(1.0), ("moesaic", "bf16"): turn(1.0)}], "int8", "256")
    ]
    faster = next(goal for goal in GOALS if goal.tokens == "256" and goal.dtype == "int8")
    assert judge(faster, as_fast).met is False
    assert judge(replace(faster, more=False), as_fast).met is True


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    assert {judge(goal, []).met for goal in GOALS} == {None}
    assert judge_latency(None).met is None
    assert judge_latency(Latency(1.0, 70.0)).met is True
    assert judge_latency(Latency(5.0, 70.0)).met is False


def test_work_of_the_cases() -> None:
    case = even_case("mixtral-8x7b", 4)
    assert case.loads() == [4, 4]
    assert case.flops == 4 * 2 * 6 * 4096 * 14336
    loads = prompt_case().loads()
    assert sum(loads) == 512 * 8
    assert min(loads) >= 1
    assert max(loads) > 3 * sum(loads) / len(loads), "skewed, as real prompts are"


def test_every_token_belongs_to_its_experts() -> None:
    case = prompt_case()
    rows = [tokens_of(case, expert)[0] for expert in range(case.experts)]
    assert [len(r) for r in rows] == case.loads()
    assert all((case.ids[r] == e).any(dim=1).all() for e, r in enumerate(rows))
    assert tokens_of(even_case("qwen3-30b-a3b", 3), 0)[0] is None, "all of them"


def test_a_ring_takes_new_slots_and_keeps_even_ones_even() -> None:
    ring = Ring(13)
    runs = [ring.take(count).tolist() for count in (4, 3, 4, 4)]
    assert runs == [[0, 1, 2, 3], [4, 5, 6], [8, 9, 10, 11], [0, 1, 2, 3]]


def test_other_programs_share_is_what_is_left_of_the_busy_time(tmp_path: Path) -> None:
    before, after = CpuTimes(0.0, 100.0, 5.0, cores=2), CpuTimes(10.0, 116.0, 11.0, cores=2)
    assert others_share(before, after) == pytest.approx(0.5)
    assert others_share(before, None) is None
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 200 300 9999 8888 1 2 97 55 0\ncpu0 1 2\ncpu1 1 2\nintr 5\n")
    found = now(stat)
    assert found is not None
    assert (found.busy_s, found.cores) == (7.0, 2)
    assert now(tmp_path / "missing") is None


@pytest.mark.parametrize(
    "words",
    ["--shapes qwen4", "--tokens 0", "--tokens 1,x", "--dtypes int3", "--threads 0",
     "--store-gb 0", "--json /nowhere/at/all.json"],
)  # fmt: skip
def test_invalid_options_are_refused(words: str) -> None:
    with pytest.raises(MoesaicError):
        asked_for(parser("").parse_args(words.split()))


def test_processes_that_take_turns_are_compared_round_by_round() -> None:
    ours, theirs = ("moesaic", "bf16"), ("kt-kernel", "bf16")
    first = CaseResult([{ours: turn(1.0)}, {ours: turn(2.0)}], {ours: "a"}, {ours: 3})
    second = CaseResult([{theirs: turn(4.0)}, {theirs: turn(6.0)}], {theirs: "b"}, {theirs: 5})
    both = together([first, second])
    assert [set(one) for one in both.rounds] == [{ours, theirs}] * 2
    assert both.expert_bytes == {ours: 3, theirs: 5}
    found = row(in_a_row([both, both]).rounds)
    assert found.times_faster == {"kt-kernel": Spread(3.5, 4.0)}
    assert found.rounds == 4
    with pytest.raises(ValueError, match="shorter"):
        together([first, replace(second, rounds=second.rounds[:1])])


def test_a_turn_has_its_share_of_the_effort() -> None:
    assert shared_effort(Effort(6.0, 3, 40), 3) == Effort(2.0, 1, 13)
    assert shared_effort(Effort(6.0, 3, 40), 1) == Effort(6.0, 3, 40)


def test_another_process_is_judged_by_our_roofline() -> None:
    rounds: list[Round] = [{("moesaic", "bf16"): turn(1.0, gb_s, 2.0)} for gb_s in (1.0, 5.0, 9.0)]
    assert median_roofline(rounds) == Roofline(5.0, 2.0)
