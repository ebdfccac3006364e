"""Does the load benchmark ask what it says, and does it measure what requests see?"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from benchmarks.load import main, parse, settings_of, take_turns, workloads_of
from benchmarks.load_llama import LlamaBatched, rates
from benchmarks.load_process import Answer, Measurement, Served, difference, summary
from benchmarks.load_report import Round, ratios, report
from benchmarks.load_workload import Lengths, Workload
from benchmarks.open_engine import open_engine
from benchmarks.other_commit import built_package
from tiny_shape import TINY

SHORT = Lengths(6, 0.5, 2, 12)


def small(**values: Any) -> Workload:
    return Workload(**{"requests": 3, "prompts": SHORT, "answers": SHORT, **values})


def test_equal_seeds_draw_equal_requests_and_others_draw_others() -> None:
    one, same, other = (small(seed=seed).draw(96, 64) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_few_requests_have_the_lengths_of_many() -> None:
    lengths = Lengths(256, 1.0, 16, 2048)
    assert lengths.quantiles(1) == [256]
    many = lengths.quantiles(2000)
    assert min(many) == 16
    assert max(many) == 2048
    assert median(many) == pytest.approx(256, rel=0.01)
    few = lengths.quantiles(32)
    assert sum(few) / 32 == pytest.approx(sum(many) / 2000, rel=0.05)


def test_the_asked_share_of_prompts_has_the_prefix() -> None:
    (asks,) = small(requests=8, shared=0.5, prefix_tokens=4).draw(96, 64)
    prefixes = [tuple(each.prompt[:4]) for each in asks]
    common = max(set(prefixes), key=prefixes.count)
    assert prefixes.count(common) == 4
    assert all(len(each.prompt) > 4 for each in asks if tuple(each.prompt[:4]) == common)


def test_requests_fit_the_context_and_arrive_at_the_asked_rate() -> None:
    (asks,) = small(requests=400, rate=20.0).draw(96, 14)
    assert all(len(each.prompt) + each.answer <= 14 for each in asks)
    arrivals = [each.arrival_s for each in asks]
    assert arrivals == sorted(arrivals)
    assert 400 / arrivals[-1] == pytest.approx(20, rel=0.2)


def test_random_weights_are_served_and_measured(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    options = {"accelerator": "none", "max_sequences": 2, "an_option_of_the_future": 1}
    work = small(requests=4, shared=0.5, prefix_tokens=4, batches=2)
    found = asyncio.run(measured(str(path), options, work))
    asks = [ask for batch in work.draw(96, 256) for ask in batch]
    assert found["failed"] == []
    assert found["output_tokens"] == sum(each.answer for each in asks)
    assert found["prompt_tokens"] == sum(len(each.prompt) for each in asks)
    assert found["stats"]["generated_tokens"] == found["output_tokens"]
    assert 0 < found["ttft_ms"]["p50"] <= found["ttft_ms"]["p99"]


async def measured(shape: str, options: dict[str, Any], work: Workload) -> dict[str, Any]:
    async with open_engine("", shape, 2, options) as llm:
        return await Measurement(llm).run(work)


def test_times_are_those_that_a_request_sees() -> None:
    answers = [Answer(1.0, 5, [3.0, 3.5, 4.5]), Answer(2.0, 5, [3.0]), Answer(2.0, 5, [], "full")]
    found = summary([Served(1.0, answers)])
    assert found["seconds"] == 3.5
    assert found["output_tok_s"] == pytest.approx(4 / 3.5)
    assert found["ttft_ms"]["p50"] == pytest.approx(1500)
    assert found["tpot_ms"]["p50"] == pytest.approx(750)
    assert found["gap_ms"]["p99"] == pytest.approx(1000, rel=0.01)
    assert found["failed"] == ["full"]


def test_counters_are_of_the_run_and_levels_are_as_they_are() -> None:
    before, after = {"steps": 3.0, "kept_tokens": 9.0}, {"steps": 8.0, "kept_tokens": 7.0}
    assert difference(before, after) == {"steps": 5.0, "kept_tokens": 7.0}


def found_of(rate: float) -> dict[str, Any]:
    return {"output_tok_s": rate, "total_tok_s": 2 * rate, "ttft_ms": {"p50": 100 / rate}}


def test_ratios_are_taken_within_rounds() -> None:
    rounds = [Round(1, {"this": found_of(a), "x": found_of(b)}) for a, b in ((2, 1), (9, 3))]
    assert ratios(rounds, "x")["output_tok_s"] == {"median": 2.5, "rounds": [2, 3]}
    assert ratios(rounds, "x")["ttft_ms.p50"]["median"] == pytest.approx((1 / 2 + 1 / 3) / 2)


class Scripted:
    """A contender that notes its turns."""

    def __init__(self, name: str, order: list[tuple[str, int]]) -> None:
        self._name, self._order, self.options = name, order, {"a": 1}

    def turn(self, work: Workload) -> dict[str, Any]:
        self._order.append((self._name, work.requests))
        return found_of(1.0)


def test_contenders_take_turns_in_alternating_order() -> None:
    order: list[tuple[str, int]] = []
    work = [small(requests=1), small(requests=2)]
    rounds = take_turns({name: Scripted(name, order) for name in ("this", "x")}, work, 2)
    first, second = order[:4], order[4:]
    assert first == [("this", 1), ("x", 1), ("this", 2), ("x", 2)]
    assert second == [("x", 1), ("this", 1), ("x", 2), ("this", 2)]
    rows = report(rounds, {}, [], {})["rows"]
    assert [(row["requests"], row["name"]) for row in rows] == [
        (1, "this"), (1, "x"), (2, "this"), (2, "x")
    ]  # fmt: skip


def test_llama_is_asked_for_the_same_lengths_and_its_row_is_read() -> None:
    (work,) = workloads_of(parse(["--requests", "8", "--fixed", "512,128"]))
    llama = LlamaBatched(Path("/llama"), Path("/m.gguf"), 24, 4, 0.5)
    command = " ".join(llama.command(work))
    assert "-npp 512 -ntg 128 -npl 8" in command
    assert "-c 5120" in command
    assert "-ncmoe 12" in command
    row = {"pp": 512, "tg": 128, "pl": 8, "t_pp": 2.0, "t_tg": 2.0}
    found = rates(f"words\n{json.dumps(row)}\n", work, Path("/llama"))
    assert found["output_tok_s"] == 8 * 128 / 4
    assert found["tpot_ms"]["p50"] == pytest.approx(2000 / 128)


def test_only_options_that_were_given_are_set() -> None:
    assert settings_of(parse([])) == {}
    given = ["--shape", "x", "--max-sequences", "64", "--cache", "0.5", "--option", "mmap=false"]
    assert settings_of(parse(given)) == {
        "expert_dtype": "int4", "dense_dtype": "int4", "max_sequences": 64, "cache_ratio": 0.5,
        "mmap": False,
    }  # fmt: skip


def test_a_folder_with_a_package_stands_for_a_commit(tmp_path: Path) -> None:
    (tmp_path / "moesaic").mkdir()
    (tmp_path / "moesaic" / "__init__.py").touch()
    assert built_package(str(tmp_path)) == tmp_path
    with pytest.raises(SystemExit, match="neither a commit nor a folder"):
        built_package("no-such-commit")


def test_the_whole_command_measures_in_processes(tmp_path: Path) -> None:
    config, out = tmp_path / "config.json", tmp_path / "out.json"
    config.write_text(json.dumps(TINY))
    main(["--shape", str(config), "--layers", "1", "--requests", "2", "--fixed", "8,4",
          "--rounds", "1", "--accelerator", "none", "--json", str(out)])  # fmt: skip
    found = json.loads(out.read_text())
    (row,) = found["rows"]
    assert row["medians"]["output_tok_s"] > 0
    assert found["options"]["this"]["accelerator"] == "none"
