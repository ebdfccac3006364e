"""Does `bench --against` run others in turns with ours, and refuse what cannot be compared?"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import pytest
from command import refused, run, run_json
from small_measurements import TINY

from moesaic.cli.study.bench_against import stock_source
from moesaic.core.errors import ImpossibleSetting
from moesaic.lab.against import llama_cpp, ours, program_runs, random_gguf, stock_transformers
from moesaic.lab.against.llama_batched import check_cases
from moesaic.lab.against.llama_cpp import LlamaCpp, find_program
from moesaic.lab.against.ours import MeasuredModel
from moesaic.lab.against.own_process import in_own_process
from moesaic.lab.against.random_gguf import check_writable, file_bytes, write_random_gguf
from moesaic.lab.against.rounds import AgainstRow, Rates, Spread, rows_of, take_turns
from moesaic.lab.bench.cases import Case
from moesaic.lab.user_environment import of_stock_process
from moesaic.models.checkpoints.checkpoint import Checkpoint
from moesaic.models.configs.synthetic_architecture import synthetic_architecture

QWEN = {
    "model_type": "qwen3_moe", "vocab_size": 128, "hidden_size": 64, "intermediate_size": 64,
    "moe_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "max_position_embeddings": 256, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "vocab_size": 128, "hidden_size": 64, "intermediate_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
    "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 256,
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1e6, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "sliding_window": None,
}  # fmt: skip
LITE = {
    "model_type": "deepseek_v2", "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96,
    "moe_intermediate_size": 32, "num_hidden_layers": 27, "num_attention_heads": 4,
    "num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 2,
    "num_experts_per_tok": 2, "first_k_dense_replace": 1, "kv_lora_rank": 32, "q_lora_rank": None,
    "qk_rope_head_dim": 32, "qk_nope_head_dim": 64, "v_head_dim": 64, "n_group": 1,
    "topk_group": 1, "topk_method": "greedy", "routed_scaling_factor": 1.0,
    "scoring_func": "softmax", "norm_topk_prob": False, "max_position_embeddings": 256,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_moe": QWEN, "olmoe": TINY, "mixtral": MIXTRAL, "deepseek_v2": LITE,
}  # fmt: skip
# One test of llama-bench -o json, shortened to what tells tests apart and what was measured.
FAKE = """#!{python}
import json, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert given["-o"] == "json" and given["-r"] == "1", given
with open({log!r}, "a") as log:
    log.write(json.dumps(given) + "\\n")
open(given["-m"], "rb").read(4) == b"GGUF" or sys.exit("not a model")
prompts, answers = ([int(n) for n in given[key].split(",") if n != "0"] for key in ("-p", "-n"))
print(json.dumps([{{
    "build_commit": "unknown", "build_number": 0, "cpu_info": "CPU", "backends": "CPU",
    "model_type": "qwen3moe ?B (guessed) BF16", "n_threads": int(given["-t"]), "n_gpu_layers": 0,
    "n_prompt": prompt, "n_gen": answer, "n_depth": 0,
    "avg_ns": 22000000, "stddev_ns": 0, "avg_ts": 50.5, "stddev_ts": 0.0,
    "samples_ns": [22000000], "samples_ts": [50.5],
}} for prompt, answer in [*((n, 0) for n in prompts), *((0, n) for n in answers)]]))
"""
# What llama-batched-bench prints, between other lines.
FAKE_BATCHED = """#!{python}
import json, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert given["--output-format"] == "jsonl" and "-fmoe" not in given, given
assert (given["-ngl"], given["-fa"]) == ("0", "on"), given
batch, answer = int(given["-npl"]), int(given["-ntg"])
assert int(given["-c"]) >= batch * (int(given["-npp"]) + answer), given
print("{{not JSON")
print(json.dumps({{"pp": 1, "tg": answer, "pl": batch, "speed_pp": 1.0, "speed_tg": 404.0}}))
print()
"""


def config(folder: Path, family: str, **changes: Any) -> str:
    path = folder / f"{family}.json"
    path.write_text(json.dumps(CONFIGS[family] | changes))
    return str(path)


def program(folder: Path, text: str, name: str = "llama-bench") -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def fake(folder: Path) -> Path:
    """As llama-bench prints it; notes what it was called with."""
    batched = FAKE_BATCHED.format(python=sys.executable)
    program(folder, batched, "llama-batched-bench")
    return program(folder, FAKE.format(python=sys.executable, log=str(folder / "calls")))


def words_of(folder: Path, *options: str) -> list[str]:
    shape = ["--synthetic", config(folder, "qwen3_moe"), "-p", "8", "-n", "4", "--trace", "none"]
    return ["bench", *shape, "--threads", "1", "--repetitions", "2", *options]


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contenders need not start another one each time."""
    for module in (ours, stock_transformers):
        monkeypatch.setattr(module, "in_own_process", lambda name, work, *given, **_: work(*given))


@pytest.mark.usefixtures("in_this_process")
def test_llama_cpp_takes_turns_with_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path)
    temporary = tmp_path / "temporary"
    (temporary / "moesaic-gguf-killed").mkdir(parents=True)
    os.utime(temporary / "moesaic-gguf-killed", (0, 0))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    result = run_json(*words_of(tmp_path, "--against", f"llama.cpp={tmp_path}"))
    assert [(row["test"], row["name"]) for row in result["rows"]] == [
        ("pp8", "moesaic"),
        ("pp8", "llama.cpp"),
        ("tg4", "moesaic"),
        ("tg4", "llama.cpp"),
    ]
    own, theirs = result["rows"][:2]
    assert theirs["tokens_per_s"] == {"median": 50.5, "low": 50.5, "high": 50.5}
    assert theirs["times"]["low"] == pytest.approx(own["tokens_per_s"]["low"] / 50.5)
    assert own["times"] is None
    calls = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    assert [(one["-p"], one["-n"], one["-t"]) for one in calls] == [("8", "4", "1")] * 2
    assert Path(calls[0]["-m"]).is_relative_to(temporary)
    assert os.listdir(temporary) == [], "nothing is left behind, nor what a killed process left"


@pytest.mark.usefixtures("in_this_process")
def test_its_fork_and_several_sequences_take_turns(tmp_path: Path) -> None:
    """Both read one file; the fork is given its own flags."""
    fake(tmp_path)
    against = [f"--against={name}={tmp_path}" for name in ("llama.cpp", "ik_llama.cpp")]
    asked = words_of(tmp_path, "-p", "0", "--batch", "1,2", "--repetitions", "1", *against)
    streams = run(*asked, "--json")
    batched = "tg4@2 by llama-batched-bench -ngl 0 -fa on -t 1"
    for options in ("-ngl 0 -fa 1", "-ngl 0 -fa 1 -fmoe 1 -rtr 1"):
        assert f"BF16; tg4 by llama-bench {options} -t 1; {batched}\n" in streams.err
    result = json.loads(streams.out)
    rates = {(row["test"], row["name"]): row["tokens_per_s"]["median"] for row in result["rows"]}
    assert {name for _, name in rates} == {"moesaic", "llama.cpp", "ik_llama.cpp"}
    assert rates["tg4", "ik_llama.cpp"] == 50.5
    assert rates["tg4@2", "llama.cpp"] == 404.0
    plain, fork = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    assert plain["-m"] == fork["-m"]
    assert (fork["-fmoe"], fork["-rtr"], fork["-ngl"]) == ("1", "1", "0")
    assert "-fmoe" not in plain


def test_a_contender_has_a_process_of_its_own() -> None:
    assert in_own_process("one", os.getpid) != os.getpid()
    with pytest.raises(ImpossibleSetting, match="other ended before it had measured anything"):
        in_own_process("other", os._exit, 9)


def test_what_a_contender_says_before_it_ends() -> None:
    """Our own errors cannot all be sent between processes, and others' are not ours to raise."""
    with pytest.raises(ImpossibleSetting, match=r"one: checkpoint 'nowhere': file: expected model"):
        in_own_process("one", Checkpoint, Path("nowhere"))
    with pytest.raises(ImpossibleSetting, match=r"other failed with ValueError: .*'many'"):
        in_own_process("other", int, "many")


def test_no_contender_outlives_an_interrupt() -> None:
    """A signal ends this process without waiting for a turn."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    started = perf_counter()
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            in_own_process("one", sleep, 30.0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert perf_counter() - started < 20.0
    assert not multiprocessing.active_children()


@pytest.mark.usefixtures("in_this_process")
def test_stock_transformers_on_the_same_config(tmp_path: Path) -> None:
    options = ("--against", "transformers", "--repetitions", "1", "-p", "0")
    table = run(*words_of(tmp_path, *options)).out
    assert "tg4" in table
    assert "transformers" in table


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("llama.cpp=/nowhere", "there is no llama-bench at /nowhere"),
        ("llama.cpp", "--against is llama.cpp=PATH"),
        ("llama.cpp=", "--against is llama.cpp=PATH"),
        ("vllm", "--against vllm was given"),
        ("transformers=4", "--against transformers=4 was given"),
    ],
)
def test_who_is_not_there_or_not_known(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    asked: str,
    words: str,
) -> None:
    assert words in refused(monkeypatch, capsys, *words_of(tmp_path, "--against", asked))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--systems", "moesaic,hybrimoe"), "leave out --systems"),
        (("--accelerator", "emulated"), "on the CPU"),
        (("--against", "llama.cpp=again"), "there is no llama-bench at again"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    words: str,
) -> None:
    against = ("--against", f"llama.cpp={fake(tmp_path)}")
    assert words in refused(monkeypatch, capsys, *words_of(tmp_path, *against, *options))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/bin/sh\necho 'error: no such model' >&2; exit 3\n", "failed with code 3: error: no"),
        ("#!/bin/sh\necho 'usage: something else'\n", "printed no JSON"),
        ("#!/bin/sh\necho '[]'\n", "did not report its test pp8"),
        (
            '#!/bin/sh\necho \'[{"n_prompt": 8, "n_gen": 0, "avg_ts": "fast"}]\'\n',
            "'fast' tokens/s",
        ),
        (
            "#!/bin/sh\nprintf 'bad \\377 model' >&2; exit 3\n",
            "failed with code 3: bad \ufffd model",
        ),
        ("not a program", "cannot be run"),
    ],
)
def test_programs_that_fail(tmp_path: Path, text: str, words: str) -> None:
    one = LlamaCpp(program(tmp_path, text), tmp_path / "m.gguf", "BF16", 1, (Case("prefill", 8),))
    with pytest.raises(ImpossibleSetting) as caught:
        one.turn()
    assert words in str(caught.value)


def test_a_program_that_does_not_end_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_runs, "TIME_LIMIT_S", 0.2)
    slow = program(tmp_path, "#!/bin/sh\nexec sleep 30\n")
    with pytest.raises(ImpossibleSetting, match=r"had not ended after 0\.2 s and was stopped"):
        llama_cpp.run_program([str(slow)], gpu=False)


def test_the_program_is_found_in_a_build_folder(tmp_path: Path) -> None:
    (tmp_path / "build/bin").mkdir(parents=True)
    there = program(tmp_path / "build/bin", "#!/bin/sh\n")
    assert find_program(str(tmp_path)) == find_program(str(there)) == there
    there.chmod(0o644)
    with pytest.raises(ImpossibleSetting, match="cannot be executed"):
        find_program(str(tmp_path))


@pytest.mark.parametrize("given", [".", "llama-bench"])
def test_a_program_of_this_folder_is_not_searched_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """A name without a folder would be looked up in PATH."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    fake(tmp_path)
    found = find_program(given)
    one = LlamaCpp(found, tmp_path / "m.gguf", "BF16", 1, (Case("prefill", 8),))
    assert one.turn() == {"pp8": 50.5}


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("family", CONFIGS)
def test_a_written_model_has_the_shape(tmp_path: Path, family: str, dtype: str) -> None:
    gguf = pytest.importorskip("gguf")
    architecture = synthetic_architecture(config(tmp_path, family))
    spec, path = architecture.spec, tmp_path / "m.gguf"
    write_random_gguf(architecture, dtype, path)
    reader = gguf.GGUFReader(path)
    tensors = {each.name: each for each in reader.tensors}
    gate = tensors["blk.1.ffn_gate_exps.weight"]
    assert gate.tensor_type.name == {"bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}[dtype]
    assert gate.shape.tolist() == [spec.hidden_size, spec.expert_intermediate, spec.num_experts]
    assert ("blk.0.attn_q_norm.weight" in tensors) == (family in ("qwen3_moe", "olmoe"))
    weights = gguf.quants.dequantize(gate.data, gate.tensor_type)
    assert np.isfinite(weights).all()
    assert 0.0 < np.abs(weights).mean() < 0.1
    assert abs(path.stat().st_size / file_bytes(architecture, dtype) - 1) < 0.3


def test_latent_attention_is_written_as_llama_cpp_reads_it(tmp_path: Path) -> None:
    """And as our own reader does, which knows these files, too."""
    from moesaic.lab.bench.bench_model import from_folder

    architecture = synthetic_architecture(config(tmp_path, "deepseek_v2"))
    path = tmp_path / "m.gguf"
    write_random_gguf(architecture, "bf16", path)
    spec, again = architecture.spec, from_folder(path).spec
    assert again.latent_attention == spec.latent_attention
    assert (again.moe_layers, again.shared_intermediate) == (spec.moe_layers, 64)
    cut = synthetic_architecture(config(tmp_path, "deepseek_v2"), 3)
    with pytest.raises(ImpossibleSetting, match=r"26 or 27 layers .*leave out --layers"):
        check_writable(cut, "bf16", tmp_path)


def test_models_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = synthetic_architecture(config(tmp_path, "qwen3_moe", moe_intermediate_size=40))
    check_writable(wide, "bf16", tmp_path)
    with pytest.raises(ImpossibleSetting, match="blocks of 32 weights"):
        check_writable(wide, "int4", tmp_path)
    with pytest.raises(ImpossibleSetting, match="models can be written of the families"):
        check_writable(synthetic_architecture("qwen2-57b-a14b", 1), "bf16", tmp_path)
    shared = synthetic_architecture(config(tmp_path, "olmoe", num_key_value_heads=1))
    with pytest.raises(ImpossibleSetting, match="shares keys between heads"):
        check_writable(shared, "bf16", tmp_path)
    monkeypatch.setattr(random_gguf, "file_bytes", lambda *_: 1 << 60)
    with pytest.raises(ImpossibleSetting, match="does not fit"):
        check_writable(wide, "bf16", tmp_path)
    monkeypatch.setattr(random_gguf, "find_spec", lambda name: None)
    with pytest.raises(ImpossibleSetting, match="pip install gguf"):
        check_writable(wide, "bf16", tmp_path)


class Scripted:
    words = ""

    def __init__(self, name: str, *rates: float) -> None:
        self.name, self._rates = name, list(rates)

    def turn(self) -> Rates:
        return {"tg8": self._rates.pop(0)}


def test_ratios_are_taken_within_rounds() -> None:
    """The machine was ten times slower in the second round: no ratio may notice."""
    rounds = take_turns([Scripted("moesaic", 30, 3, 33), Scripted("other", 10, 1, 10)], 3)
    assert rows_of(rounds, "moesaic") == [
        AgainstRow("tg8", "moesaic", Spread(30, 3, 33), None),
        AgainstRow("tg8", "other", Spread(10, 1, 10), Spread(3.0, 3.0, 3.3)),
    ]


def test_several_sequences_need_a_program_of_their_own(tmp_path: Path) -> None:
    one = program(tmp_path, "#!/bin/sh\n")
    check_cases([Case("decode", 4)], one)
    with pytest.raises(ImpossibleSetting, match=r"tg4@2 .*, which is not beside"):
        check_cases([Case("decode", 4, 2)], one)
    fake(tmp_path)
    check_cases([Case("decode", 4, 2)], one)


def test_a_shape_alone_becomes_a_config_for_transformers() -> None:
    spec = synthetic_architecture("qwen3-30b-a3b", 2).spec
    with ExitStack() as stack:
        of_shape = MeasuredModel(None, "qwen3-30b-a3b", 2, "none", (Case("decode", 4),))
        path = Path(stock_source(of_shape, spec, stack))
        written = json.loads(path.read_text())
        file = MeasuredModel("model.gguf", None, None, "none", (Case("decode", 4),))
        with pytest.raises(ImpossibleSetting, match=r"model\.gguf is a file"):
            stock_source(file, spec, stack)
    assert (written["model_type"], written["num_hidden_layers"]) == ("qwen3_moe", 2)
    assert not path.exists()


def test_a_packed_model_is_none_for_transformers(tmp_path: Path) -> None:
    """It would make up the experts, which are in a file of ours."""
    (tmp_path / "experts.moepack").touch()
    spec = synthetic_architecture("qwen3-30b-a3b", 2).spec
    packed = MeasuredModel(str(tmp_path), None, None, "none", (Case("decode", 4),))
    with (
        ExitStack() as stack,
        pytest.raises(ImpossibleSetting, match="is packed: give the model it was made from"),
    ):
        stock_source(packed, spec, stack)


@pytest.mark.parametrize("ours", [True, False])
def test_others_threads_wait_as_their_user_wants(
    monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    """Ours sleep at barriers; a policy that was there before is the user's."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.delenv("MOESAIC_WAIT_POLICY", raising=False)
    if ours:
        monkeypatch.setenv("MOESAIC_WAIT_POLICY", "own")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for gpu in (True, False):
        found = program_runs.environment_of(gpu)
        assert ("OMP_WAIT_POLICY" in found) != ours
        assert "MOESAIC_WAIT_POLICY" not in found
        assert ("CUDA_VISIBLE_DEVICES" in found) != gpu


@pytest.mark.parametrize("set_by_user", ["active", None])
def test_stock_processes_have_their_users_policy(
    monkeypatch: pytest.MonkeyPatch, set_by_user: str | None
) -> None:
    """They load this package, which then sets nothing; processes of ours keep it."""
    monkeypatch.setenv("OMP_WAIT_POLICY", set_by_user or "passive")
    monkeypatch.delenv("MOESAIC_WAIT_POLICY", raising=False)
    if set_by_user is None:
        monkeypatch.setenv("MOESAIC_WAIT_POLICY", "own")
    before = dict(os.environ)
    asked = (os.getenv, "OMP_WAIT_POLICY")
    found = in_own_process("stock", *asked, environment=of_stock_process())
    assert found == set_by_user
    assert os.environ == before
    assert in_own_process("ours", *asked) == (set_by_user or "passive")


def test_transformers_is_such_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(
        stock_transformers, "in_own_process", lambda *_, **named: given.update(named) or {}
    )
    stock_transformers.Transformers("folder", None, "bf16", 1, ()).turn()
    assert given["environment"] == of_stock_process()
