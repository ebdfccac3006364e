"""Does `moesaic plan` say what a model would need and how fast it would be, or why not?"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import refused, run, run_json

from moesaic.cli.study.plan_target import available_memory
from moesaic.core.units import GB
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.fitting import decide
from moesaic.engine.memory.memory_plan import plan_memory
from moesaic.engine.memory.refusal import main_memory_needed
from moesaic.hardware.host import this_host
from moesaic.hardware.machine_reader import load_machine, machine_file
from moesaic.hardware.machine_writer import save_machine
from moesaic.hardware.planned_host import PlannedHost
from moesaic.lab import speed_estimate
from moesaic.lab.plan_rows import PlanningTarget, left_for_gpu
from moesaic.lab.speed_estimate import estimate_speed, simulated
from moesaic.model_info.model_zoo import load_model
from moesaic.model_info.sliding_window import REWIND
from moesaic.models.configs.families import RUNNABLE
from moesaic.policies.policy_set import PolicySet, with_options

OLMOE, A6000 = ("plan", "olmoe-1b-7b"), ("--machine", "a6000-xeon5220r")
EMULATED = ("--accelerator", "emulated")
DETAILED = ("--dtype", "auto")  # with any option, what `run` would do is planned in detail
CONFIG = {
    "model_type": "mixtral",
    "num_hidden_layers": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "vocab_size": 100,
    "tie_word_embeddings": False,
}


@pytest.fixture(autouse=True)
def unmeasured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`moesaic profile` was not run here. Fewer steps than usual are simulated."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(speed_estimate, "_DECODE", {"tokens": 8, "warmup": 4})
    monkeypatch.setattr(speed_estimate, "_PREFILL", {"prompts": 1, "warmup": 1})


def measure_as(name: str) -> None:
    save_machine(load_machine(name), machine_file())


def planned(memory_gb: float, **fields: Any) -> dict[str, int]:
    plan = plan_memory(
        load_model("olmoe-1b-7b"),
        with_options(EngineSettings(max_sequences=1), fields),
        round(memory_gb * GB),
    )
    return {part.name: part.bytes for part in plan.parts}


def test_json_has_the_plan_and_stable_keys() -> None:
    output = run_json(*OLMOE, *EMULATED, "--cache-ratio", 0.5, "--memory", 64)
    assert set(output) == {
        *("model", "dtype", "expert_dtype", "dense_dtype", "accelerator", "policies"),
        *("capacity", "parts"),
        *("main_bytes", "available_bytes", "accelerator_bytes", "accelerator_limit_bytes"),
        *("memory_of", "longer_sequences", "cannot_run", "download", "speed", "gpu_unused"),
    }
    assert output["gpu_unused"] is None
    parts = {part["name"]: part["bytes"] for part in output["parts"]}
    assert parts == planned(64, accelerator="emulated", cache_ratio=0.5)
    sizes = {"slots": 512, "sequences": 1, "length": 4096, "blocks": 64, "copies": 0}
    assert output["capacity"] == {**sizes, "cache_ratio": 0.5}
    assert output["available_bytes"] == 64 * GB
    assert output["main_bytes"] == sum(parts.values()) <= 64 * GB


def test_a_model_that_can_be_simulated_but_not_run_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.delitem(RUNNABLE, "gpt_oss")
        said = run("plan", "gpt-oss-20b", "--memory", 64).out
    assert "It cannot be run: architecture 'gpt_oss' can be simulated but not run" in said
    (tmp_path / "config.json").write_text(
        json.dumps({**CONFIG, "quantization_config": {"quant_method": "hqq", "bits": 4}})
    )
    planned = run_json("plan", tmp_path, "--memory", 64)
    assert "it can be simulated, its weights cannot be read: " in planned["cannot_run"]
    assert "quantized with 'hqq'" in planned["cannot_run"]
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert run_json("plan", tmp_path, "--memory", 64)["cannot_run"] is None
    assert "cannot be run" not in run(*OLMOE, "--memory", 64).out


def test_a_sliding_window_bounds_the_kv_cache_and_not_the_context(tmp_path: Path) -> None:
    """As a run of the same folder is planned: the whole context, in a cache of few tokens."""

    def planned_for(**fields: Any) -> tuple[int, int]:
        long = CONFIG | {"max_position_embeddings": 8192}
        (tmp_path / "config.json").write_text(json.dumps(long | fields))
        found = run_json("plan", tmp_path, "--memory", 64, *DETAILED)
        size = next(part["bytes"] for part in found["parts"] if part["name"] == "KV cache")
        return size, found["capacity"]["length"]

    whole, length = planned_for()
    windowed, same = planned_for(sliding_window=16)
    assert length == same == 8192
    kept = 16 - 1 + REWIND + EngineSettings().step_tokens
    assert windowed == whole * kept // length


def test_tables_show_every_part_and_the_capacity() -> None:
    said = run(*OLMOE, *EMULATED, "--gpu-memory", 6, "--memory", 64).out
    sizes = planned(64, accelerator="emulated", gpu_memory_gb=6.0)
    for name, size in sizes.items():
        row = next(line for line in said.splitlines() if f" {name} " in line)
        assert f" {size / GB:.3f} " in row
    assert "of 64.000 given by --memory" in said
    assert "of 6.000 allowed" in said
    assert "best-split + learned-speed:pool=global + impact" in said
    assert "main + accelerator" in said


def test_a_machine_that_was_not_measured_is_not_predicted() -> None:
    assert run_json(*OLMOE, "--memory", 64, *DETAILED)["speed"]["machine"] is None
    assert run_json(*OLMOE, "--memory", 64)["machine"] is None
    for words in ((), DETAILED):
        said = run(*OLMOE, "--memory", 64, *words).out
        assert "run `moesaic profile`, or name another with --machine" in said


def test_memory_is_what_is_available_here(tmp_path: Path) -> None:
    available = this_host().available_bytes
    assert available is not None
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    output = run_json("plan", tmp_path)
    assert output["memory_of"] == "available here"
    assert output["available_bytes"] == pytest.approx(available, rel=0.2)


@pytest.mark.parametrize("named", [(), ("--machine", "this")])
def test_the_measured_machine_is_predicted(named: tuple[str, ...]) -> None:
    measure_as("h200-emr16")
    output = run_json(*OLMOE, "--memory", 64, *named, *DETAILED)
    speed = output["speed"]
    assert speed["machine"] == "h200-emr16"
    assert output["memory_of"] == "given by --memory"
    assert 0 < speed["decode"]["tokens_per_s"] < speed["prefill"]["tokens_per_s"]
    assert speed["prefill"]["tokens_per_step"] == 512


def test_another_machine_is_planned_within_its_own_memories() -> None:
    a6000 = load_machine("a6000-xeon5220r")
    output = run_json("plan", "qwen3-30b-a3b", *A6000, *EMULATED)
    assert output["available_bytes"] == a6000.cpu.memory_gb * GB
    assert output["accelerator_limit_bytes"] == a6000.gpu.memory_gb * GB
    assert output["accelerator_bytes"] <= a6000.gpu.memory_gb * GB
    assert output["capacity"]["slots"] > 0
    assert output["speed"]["decode"]["hit_rate"] > output["capacity"]["cache_ratio"] - 0.1
    text = run("plan", "qwen3-30b-a3b", *A6000, *EMULATED).out
    assert f"{output['speed']['decode']['tokens_per_s']:.1f} tokens/s" in text


def test_more_slots_are_faster_and_so_is_a_faster_link() -> None:
    def per_s(*words: object) -> float:
        output = run_json("plan", "deepseek-v2-lite", *A6000, *EMULATED, *words)
        return float(output["speed"]["decode"]["tokens_per_s"])

    few, many = per_s("--cache-ratio", 0.1), per_s("--cache-ratio", 0.8)
    assert few < many
    slow = per_s("--cache-ratio", 0.1, "--policies", "adapmoe", "--link-bandwidth", 2)
    assert slow < per_s("--cache-ratio", 0.1, "--policies", "adapmoe", "--link-bandwidth", 50)


def test_without_an_accelerator_the_simulated_gpu_is_idle() -> None:
    """The link moves nothing, and attention is the CPU's; of the machine we run on, `gpu` is
    the device of attention."""
    spec, settings = load_model("olmoe-1b-7b"), EngineSettings()
    machine = load_machine("a6000-xeon5220r")
    plan = plan_memory(spec, settings, 64 * GB)
    found = estimate_speed(spec, settings, plan, machine)
    for result in (found.decode, found.prefill):
        assert result.bytes_moved == 0
        assert result.utilization["gpu"] < 0.05
    here = simulated(spec, settings, plan, machine, "decode", measured=True)
    assert str(here.policies.schedule) == "static-experts"
    assert here.slots == 0


def test_a_prediction_has_the_policies_and_slots_of_the_plan() -> None:
    spec = load_model("olmoe-1b-7b")
    policies = PolicySet.of(
        schedule="threshold", prefill_schedule="gpu-only", cache="pinned:pool=global",
        prefetch="none", promote=False,
    )  # fmt: skip
    settings = EngineSettings(
        policies, accelerator="emulated", gpu_memory_gb=5.0, expert_dtype="int8"
    )
    plan = plan_memory(spec, settings, 64 * GB)
    machine = load_machine("a6000-xeon5220r")
    decode = simulated(spec, settings, plan, machine, "decode", measured=True)
    prefill = simulated(spec, settings, plan, machine, "prefill", measured=True)
    assert decode.policies == prefill.policies == policies
    assert str(policies.schedule_for("prefill")) == "gpu-only"
    assert decode.slots == plan.capacity.slots > 0
    assert (decode.expert_dtype, decode.dense_dtype) == ("int8", "bf16")
    assert prefill.tokens == min(settings.step_tokens, plan.capacity.length)


def test_no_prediction_is_no_reason_to_refuse_a_plan() -> None:
    """Packaged machines state no rate for fp32."""
    output = run_json(*OLMOE, *A6000, "--dtype", "fp32")
    assert "no matmul rate for 'fp32'" in output["speed"]["reason"]
    assert output["dtype"] == "fp32"
    assert "Speed is not predicted: " in run(*OLMOE, *A6000, "--dtype", "fp32").out


def test_a_model_directory_is_planned_without_its_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for path in (tmp_path, tmp_path / "config.json"):
        output = run_json("plan", path, "--memory", 1, *DETAILED)
        assert output["model"] == tmp_path.name
        assert output["capacity"]["length"] == CONFIG["max_position_embeddings"]


MISTAKES = [
    (("mixtral-8x7b", "--memory", 22, *DETAILED), "routed experts 90.20 GB (256 in bf16)"),
    (
        ("mixtral-8x7b", "--memory", 22, *DETAILED),
        "GB of available memory and all of --expert-dtype int4",
    ),
    (("olmoe-1b-7b", "--memory", 22, "--max-model-len", 9999), "at most 4096"),
    (("olmoe-1b-7b", "--memory", 22, "--schedule", "gpu-only"), "there is none"),
    (("olmoe-1b-7b", "--memory", 22, *EMULATED, "--gpu-memory", 0.1), "Use --gpu-memory "),
    (("olmoe-1b-7b", "--memory", 0), "--memory is 0 GB"),
    (("olmoe-1b-7b", "--memory", "inf"), "must be finite"),
    (("olmoe-1b-7b", "--memory", 22, "--machine", "a6000"), "Did you mean 'a6000-xeon5220r'?"),
    (("olmoe-1b-7b", "--machine", "this"), "run `moesaic profile` first"),
    (("olmoe", "--memory", 22), "Did you mean 'olmoe-1b-7b'?"),
    (("absent/config.json",), "there is none here"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=lambda value: str(value)[:50])
def test_a_mistake_is_one_line(
    words: tuple[object, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert message in refused(monkeypatch, capsys, "plan", *words)


def test_unknown_memory_must_be_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host = replace(this_host(), available_bytes=None)
    monkeypatch.setattr("moesaic.hardware.host.this_host", lambda: host)
    assert "say it with --memory GB" in refused(monkeypatch, capsys, *OLMOE)
    assert available_memory(3.0, None).bytes == 3 * GB


@pytest.mark.parametrize("words", [("--help",), ("olmoe-1b-7b", "--memory", "64")], ids=str)
def test_neither_help_nor_a_plan_waits_for_torch(words: tuple[str, ...]) -> None:
    code = (
        "import sys; from moesaic.cli.command_line import app\n"
        f"app.main(['plan', *{words!r}], standalone_mode=False)\n"
        "print('loaded:', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.rsplit("loaded:", 1)[1].split())
    assert "moesaic.cli.study.plan" in loaded
    assert "torch" not in loaded
    if "--help" in words:
        assert not loaded & {"numpy", "numba", "rich"}


def test_a_plan_is_what_run_would_do(tmp_path: Path) -> None:
    """One sequence may have the whole KV cache, whether others could run beside it or not."""
    words = ("plan", "qwen3-30b-a3b", "--memory", 66, *DETAILED)
    alone, several = run_json(*words), run_json(*words, "--max-sequences", 8)
    assert (alone["capacity"]["sequences"], several["capacity"]["sequences"]) == (1, 8)
    lengths = [each["capacity"]["length"] for each in (alone, several)]
    assert 0.98 * lengths[0] < lengths[1] <= lengths[0], "the others need workspace"
    assert alone["longer_sequences"] is None


def test_without_options_every_precision_is_a_row_and_nothing_is_refused() -> None:
    output = run_json("plan", "mixtral-8x7b", "--memory", 40)
    rows = {row["expert_dtype"]: row for row in output["rows"]}
    assert list(rows) == ["bf16", "int8", "int4"]
    assert [row["fits"] for row in rows.values()] == [False, False, True]
    assert [row["stored"] for row in rows.values()] == [True, False, False]
    assert rows["bf16"]["problem"].startswith("needs 9")
    assert "of main memory, 40.00 GB available" in rows["bf16"]["problem"]
    detailed = run_json("plan", "mixtral-8x7b", "--memory", 40, "--expert-dtype", "int4")
    assert rows["int4"]["context"] == detailed["capacity"]["length"]
    said = run("plan", "mixtral-8x7b", "--memory", 22).out
    assert said.count("│ no ") == 3, "nothing fits, and the status is 0"
    assert "bf16*" in said
    assert "The smallest: int4 on a machine with" in said


@pytest.mark.parametrize(("model", "stored"), [("gpt-oss-20b", "int4"), ("deepseek-v3", "int8")])
def test_the_stored_precision_is_marked(model: str, stored: str) -> None:
    rows = run_json("plan", model, "--memory", 64)["rows"]
    assert [row["expert_dtype"] for row in rows if row["stored"]] == [stored]


def test_a_precision_of_its_own_is_a_row_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"torch_dtype": "float32"}))
    rows = run_json("plan", tmp_path, "--memory", 1)["rows"]
    assert [(row["expert_dtype"], row["stored"]) for row in rows] == [
        ("fp32", True), ("bf16", False), ("int8", False), ("int4", False),
    ]  # fmt: skip


def test_the_smallest_machine_is_large_enough_and_no_larger(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = run_json("plan", "mixtral-8x7b", "--memory", 22)["rows"]
    least = rows[-1]["smallest_machine"]
    length = ("--expert-dtype", "int4", "--max-model-len", least["context"])

    def words(main: float, gpu: float | None = None) -> tuple[object, ...]:
        device = () if gpu is None else ("--machine", "h100-xeon8470", "--gpu-memory", gpu / GB)
        return ("plan", "mixtral-8x7b", *length, "--memory", main / GB, *device)

    run(*words(least["main_bytes"]))
    assert "needs" in refused(monkeypatch, capsys, *words(0.99 * least["main_bytes"]))
    sizes = least["main_bytes_with_gpu"] + GB / 10, least["gpu_bytes"] + 1
    run(*words(*sizes))  # workers of the described CPU need more
    assert "in the accelerator" in refused(monkeypatch, capsys, *words(sizes[0], 0.99 * sizes[1]))


def test_a_described_gpu_is_used_and_is_not_looked_for_here() -> None:
    """10 tokens/s on its CPU, four times as many with its GPU."""
    here = ("plan", "gpt-oss-20b", *A6000)
    rows = run_json(*here)["rows"]
    assert all(row["accelerator"] == "cuda" and row["cache_ratio"] > 0 for row in rows)
    stored = next(row for row in rows if row["stored"])
    on_cpu = run_json(*here, "--accelerator", "none")["speed"]["decode"]["tokens_per_s"]
    assert stored["decode_tokens_per_s"] > 2 * on_cpu
    assert run_json(*here, *DETAILED)["accelerator"] == "cuda"


def test_a_described_machine_without_a_gpu_is_planned_without_one(tmp_path: Path) -> None:
    a6000 = load_machine("a6000-xeon5220r")
    cpu = replace(a6000, gpu=replace(a6000.gpu, name="Some CPU (attention)"))
    save_machine(cpu, tmp_path / "mine.toml")
    output = run_json("plan", "olmoe-1b-7b", "--machine", tmp_path / "mine.toml", *DETAILED)
    assert output["accelerator"] == "none"


def test_a_plan_for_another_machine_does_not_depend_on_this_ones_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def planned() -> list[str]:
        ways: list[tuple[object, ...]] = [
            (), ("--dense-dtype", "int4", "--accelerator", "none"), ("--kernel", "amx"),
            ("--threads", 10, "--accelerator", "none"),
        ]  # fmt: skip
        return [run(*OLMOE, *A6000, "--json", *words).out for words in ways]

    before = planned()
    monkeypatch.setattr("moesaic.kernels.instruction_sets.native", lambda: None)
    monkeypatch.setenv("MOESAIC_KERNEL", "reference")
    monkeypatch.setattr("moesaic.engine.engine_settings.usable_cores", lambda: 1)
    assert planned() == before


def test_a_gpu_that_is_too_small_is_left_out_as_a_run_would(tmp_path: Path) -> None:
    a6000 = load_machine("a6000-xeon5220r")
    small = replace(a6000, gpu=replace(a6000.gpu, memory_gb=1.5))
    save_machine(small, tmp_path / "small.toml")
    words = ("plan", "olmoe-1b-7b", "--machine", tmp_path / "small.toml")
    row = next(row for row in run_json(*words)["rows"] if row["stored"])
    assert (row["fits"], row["accelerator"]) == (True, "none")
    assert "on the GPU, 1.50 GB available" in row["problem"]
    assert "bf16 runs on the CPU only: needs" in run(*words).out
    assert run_json(*words, *DETAILED)["accelerator"] == "none"
    said = " ".join(run(*words, *DETAILED).out.split())
    assert "there is no accelerator" not in said
    assert "The GPU is not used: olmoe-1b-7b needs" in said
    assert "1.50 GB" in said


def test_what_a_gpu_cannot_compute_is_said_where_it_is_left_out() -> None:
    words = (*OLMOE, *A6000, "--dtype", "fp32", "--dense-dtype", "bf16")
    assert run_json(*words)["accelerator"] == "none"
    assert "The GPU is not used: " in run(*words).out
    assert run_json(*words, "--accelerator", "none")["gpu_unused"] is None


def test_the_command_for_one_row_names_the_same_machine(tmp_path: Path) -> None:
    mine = tmp_path / "my box.toml"
    save_machine(load_machine("a6000-xeon5220r"), mine)
    said = run(*OLMOE, "--machine", mine, "--memory", 48.5).out
    command = said.strip().rpartition("moesaic ")[2]
    assert shlex.split(command) == [
        *(*OLMOE, "--machine", str(mine)),
        *("--memory", "48.5", "--expert-dtype", "int4"),
    ]
    assert run(*shlex.split(command)).out.startswith("olmoe-1b-7b: int4 experts")


def test_precisions_without_an_estimate_are_named(tmp_path: Path) -> None:
    """More memory was given than the description has, which the simulator keeps to."""
    a6000 = load_machine("a6000-xeon5220r")
    small = replace(a6000, cpu=replace(a6000.cpu, memory_gb=6.0))
    save_machine(small, tmp_path / "small.toml")
    said = run(*OLMOE, "--machine", tmp_path / "small.toml", "--memory", 64).out
    assert "Speed of bf16, int8 is not estimated: " in said
    assert "Speed is simulated for " in said


def test_a_description_needs_a_gpu_and_says_how_a_computer_without_one_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run("machines", "a6000-xeon5220r", "--toml").out
    before, _, after = whole.partition("[gpu]")
    mine = tmp_path / "mine.toml"
    mine.write_text(before + after[after.index("[cpu]") :])
    said = refused(monkeypatch, capsys, *OLMOE, "--machine", mine)
    assert "gpu: expected a table [gpu]" in said
    assert "moesaic profile" in said
    assert "--accelerator none" in said


def test_the_table_is_not_cut_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = run("plan", "gpt-oss-20b", *A6000).out
    assert "\N{HORIZONTAL ELLIPSIS}" not in said
    for column in ("main GB", "GPU GB", "on GPU", "context", "tokens/s", "prompt/s", "fits"):
        assert f" {column} " in said


def test_copies_for_the_gpu_lie_beside_their_originals_in_one_memory() -> None:
    """What the GPU gets is what main memory leaves of the one that both have."""
    spec = load_model("qwen3-30b-a3b")
    machine = load_machine("dgx-spark")
    settings = EngineSettings(accelerator="cuda", expert_dtype="bf16", host=PlannedHost.of(machine))
    target = PlanningTarget(128 * GB, 128 * GB, machine, measured=False)
    left = left_for_gpu(spec, settings, target)
    assert left is not None
    main = main_memory_needed(decide(spec, settings, 128 * GB, left))
    assert 120 * GB < main + left <= 128 * GB
    apart = replace(machine, unified=None)
    assert left_for_gpu(spec, settings, replace(target, machine=apart)) == 128 * GB
