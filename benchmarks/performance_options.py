"""What a run of all measurements is asked for, and the sizes that it measures; routing
that was recorded elsewhere is checked against the model with random weights that replays it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from moesaic.core.errors import ImpossibleSetting
from moesaic.hardware.host import usable_cores
from moesaic.lab.bench.bench_model import random_model
from moesaic.workloads.source import open_trace

RATIOS = (0.25, 0.5, 0.75)  # of the experts in GPU memory


@dataclass(frozen=True, slots=True)
class Sizes:
    """Models by name or config.json, and how much of each test is run."""

    qwen: str = "qwen3-30b-a3b"
    olmoe: str = "olmoe-1b-7b"
    deepseek: str = "deepseek-v2-lite"
    layers: int = 12  # on the CPU alone
    deep: int = 48  # all of them
    two_layers: int = 4  # on two cores
    two_prompt: int = 128
    device_layers: int = 24  # beside a GPU
    deepseek_layers: int = 27  # all: llama.cpp knows this model by them
    prompt: int = 512
    decode: int = 48
    device_prompt: int = 1024
    device_decode: int = 64
    batches: tuple[int, ...] = (64, 256)  # beside a GPU
    accelerator: str = "cuda"
    kernel_seconds: float = 6.0

    @property
    def bundled_decode(self) -> int:
        return 2 * self.decode


@dataclass(frozen=True, slots=True)
class Programs:
    """Where other programs are; None: not given. `cuda`: llama-bench built with CUDA."""

    llama: Path | None = None
    cuda: Path | None = None
    ik: Path | None = None
    kt: Path | None = None


@dataclass(frozen=True, slots=True)
class MeasurementOptions:
    sizes: Sizes
    programs: Programs
    threads: int
    repetitions: int = 2
    deepseek_trace: Path | None = None  # routing to replay; None: synthetic


SMALL = Sizes(
    layers=2, deep=3, two_layers=2, two_prompt=16, device_layers=2, deepseek_layers=2, prompt=16,
    decode=8, device_prompt=16, device_decode=8, batches=(2, 4), accelerator="emulated",
    kernel_seconds=0.2,
)  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="RESULTS.json")
    parser.add_argument("--only", help="sections or SECTION:ROW, by commas  [all]")
    parser.add_argument("--seconds", type=float, help="for everything; what comes later is left")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--layers", type=int, help="of Qwen3-30B-A3B on the CPU  [12]")
    parser.add_argument("--device-layers", type=int, help="the same beside a GPU  [24]")
    parser.add_argument("--llama-bench", type=Path, metavar="PATH", help="llama.cpp's")
    parser.add_argument(
        "--llama-batched-bench", type=Path, metavar="PATH", help="beside llama-bench  [there]"
    )
    parser.add_argument(
        "--llama-bench-cuda", type=Path, metavar="PATH", help="built with CUDA  [--llama-bench]"
    )
    parser.add_argument("--ik-llama-bench", type=Path, metavar="PATH", help="ik_llama.cpp's")
    parser.add_argument("--kt", type=Path, metavar="PATH", help="folder with kt_kernel")
    parser.add_argument(
        "--deepseek-trace", type=Path, metavar="PATH",
        help="routing of DeepSeek-V2-Lite to replay, as `moesaic bench --trace`  [synthetic]",
    )  # fmt: skip
    parser.add_argument("--commit", help="where there is no git  [what git says]")
    parser.add_argument("--small", action="store_true", help="try everything: tiny models, no GPU")
    parser.add_argument("--list", action="store_true", help="rows, seconds, commands; runs nothing")


def asked_for(options: argparse.Namespace, small: Sizes = SMALL) -> MeasurementOptions:
    """`small`: what --small measures."""
    if options.threads < 1 or options.repetitions < 1:
        raise ImpossibleSetting("--threads and --repetitions must be at least 1")
    sizes = small if options.small else Sizes()
    changes = {"layers": options.layers, "device_layers": options.device_layers}
    given = {name: value for name, value in changes.items() if value is not None}
    sizes = replace(sizes, **given)
    trace: Path | None = options.deepseek_trace
    if trace is not None:
        check_trace(trace, sizes.deepseek, sizes.deepseek_layers)
    return MeasurementOptions(
        sizes, _programs(options), options.threads, options.repetitions, trace
    )


def _programs(options: argparse.Namespace) -> Programs:
    given: dict[str, Path | None] = {
        "llama_bench": options.llama_bench, "llama_batched_bench": options.llama_batched_bench,
        "llama_bench_cuda": options.llama_bench_cuda, "ik_llama_bench": options.ik_llama_bench,
        "kt": options.kt,
    }  # fmt: skip
    for name, path in given.items():
        if path is not None and not path.exists():
            raise ImpossibleSetting(f"--{name.replace('_', '-')} {path}: there is no such file")
    llama, batched = given["llama_bench"], given["llama_batched_bench"]
    if batched is not None and (llama is None or batched.resolve().parent != _folder(llama)):
        raise ImpossibleSetting("--llama-batched-bench must be beside the program of --llama-bench")
    cuda = given["llama_bench_cuda"] or llama
    return Programs(llama, cuda, given["ik_llama_bench"], given["kt"])


def _folder(path: Path) -> Path:
    return path.resolve() if path.is_dir() else path.resolve().parent


def check_trace(path: Path, model: str, layers: int) -> None:
    """Refuses now what `moesaic bench --trace` would refuse once it is that row's turn."""
    try:
        header = open_trace(path).header
    except OSError as error:
        raise ImpossibleSetting(f"--deepseek-trace {path}: {error.strerror}") from None
    spec = random_model(model, layers).spec
    asked = (spec.num_moe_layers, spec.num_experts, spec.top_k)
    found = (header.num_layers, header.num_experts, header.top_k)
    if asked != found:
        names = ("MoE layers", "experts", "experts per token")
        have, want = (
            ", ".join(f"{count} {name}" for count, name in zip(counts, names, strict=True))
            for counts in (found, asked)
        )
        raise ImpossibleSetting(
            f"--deepseek-trace {path} has {have}; the rows cuda:deepseek-* need {want}: give a "
            "trace of that model, or leave the option out (synthetic routing)"
        )
