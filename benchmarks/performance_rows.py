"""Every measurement of docs/performance.md: its command, and about how long it takes on the
reference machine (16 cores, one H200)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import performance_two_cores
from benchmarks.performance_options import RATIOS, MeasurementOptions
from benchmarks.performance_row import CPU, MOESAIC, PYTHON, RESULT, Conditions, Row, against

# Where other programs are, in commands as they are shown.
PROGRAM_WORDS = {"llama": "$LLAMA_BENCH", "cuda": "$LLAMA_BENCH_CUDA", "ik": "$IK_LLAMA_BENCH"}
TRACE_WORD = "$DEEPSEEK_TRACE"
SECTIONS = (
    *("cpu", performance_two_cores.SECTION, "cpu-floor", "cpu-olmoe", "kernels"),
    *("cuda", "cuda-gates", "fidelity"),
)


def all_rows(asked: MeasurementOptions) -> list[Row]:
    """In the order in which they are run."""
    two = performance_two_cores.rows
    made = (_cpu, two, _cpu_floor, _cpu_olmoe, _kernels, _cuda, _cuda_gates, _fidelity)
    return [row for make in made for row in make(asked)]


def _cpu(asked: MeasurementOptions) -> Iterator[Row]:
    sizes = asked.sizes
    shape = ["--synthetic", sizes.qwen, "--layers", str(sizes.layers)]
    threads = ["--threads", str(asked.threads), "--repetitions", str(asked.repetitions)]
    tests = ["-p", str(sizes.prompt), "-n", str(sizes.decode)]
    common = (MOESAIC, "bench", *CPU, *shape, *tests, *threads, "--dtype", "bf16", "--json")
    four = ("--expert-dtype", "int4", "--dense-dtype", "int4")
    others = ("llama.cpp", "ik_llama.cpp")
    stock = against(asked, *others, "transformers")
    yield Row("cpu", "bf16", (*common, *stock), 150, "against")
    peers = against(asked, *others)
    none = None if peers else "neither --llama-bench nor --ik-llama-bench was given"
    yield Row("cpu", "int4", (*common, *four, *peers), 60, "against", none)
    yield Row("cpu", "bf16-alone", common, 35, "bench")
    yield Row("cpu", "int4-alone", (*common, *four), 25, "bench")
    prompt = (PYTHON, "-m", "benchmarks.cpu_prompt", "--model", sizes.qwen, "--layers",
              str(sizes.layers), "--threads", str(asked.threads), "--tokens",
              str(sizes.prompt))  # fmt: skip
    yield Row("cpu", "dense-product", prompt, 60, "lines")


def _cpu_floor(asked: MeasurementOptions) -> Iterator[Row]:
    sizes = asked.sizes
    common = (PYTHON, "-m", "benchmarks.cpu_decode", "--json", "--model", sizes.qwen, "--threads",
              str(asked.threads), "--batches", "1,4,16", "--steps", "24")  # fmt: skip
    for layers, precisions, seconds in (
        (sizes.layers, "bf16,int8,int4", 60),
        (sizes.deep, "int8,int4", 100),
        (sizes.deep, "bf16", 100),
    ):
        name = f"{layers}-{precisions.split(',')[0]}"
        words = (*common, "--layers", str(layers), "--precisions", precisions)
        yield Row("cpu-floor", name, words, seconds, "lines")


def _cpu_olmoe(asked: MeasurementOptions) -> Iterator[Row]:
    sizes, llama = asked.sizes, against(asked, "llama.cpp")
    missing = None if llama else "--llama-bench was not given"
    tests = ["-p", "0", "--threads", str(asked.threads), "--repetitions", str(asked.repetitions),
             "--dtype", "bf16", "--json", *llama]  # fmt: skip
    shape = (MOESAIC, "bench", *CPU, "--synthetic", sizes.olmoe, "-n", str(sizes.decode), *tests)
    four = ("--expert-dtype", "int4", "--dense-dtype", "int4")
    yield Row("cpu-olmoe", "bf16", (*shape, "--batch", "1,16"), 90, "against", missing)
    yield Row("cpu-olmoe", "int4", (*shape, *four, "--batch", "1,16"), 50, "against", missing)
    bundled = (MOESAIC, "bench", *CPU, "-n", str(sizes.bundled_decode), *tests, "--batch", "1,16")
    yield Row("cpu-olmoe", "bundled", bundled, 20, "against", missing)


def _kernels(asked: MeasurementOptions) -> Iterator[Row]:
    """One token, and what a prompt of 512 gives each of 128 experts."""
    words = (PYTHON, "-m", "benchmarks.kernels", "--shapes", "qwen3-30b-a3b", "--tokens", "1,32",
             "--threads", str(asked.threads), "--kt-threads", str(max(asked.threads - 1, 1)),
             "--seconds", f"{asked.sizes.kernel_seconds:g}", "--json", RESULT)  # fmt: skip
    conditions = Conditions(kt=asked.programs.kt)
    yield Row("kernels", "layer", words, 45, "kernels", conditions=conditions)


def _cuda(asked: MeasurementOptions) -> Iterator[Row]:
    sizes = asked.sizes
    shape = ["--synthetic", sizes.qwen, "--layers", str(sizes.device_layers)]
    latent = ["--synthetic", sizes.deepseek, "--layers", str(sizes.deepseek_layers)]
    ratios = ["--cache-ratios", ",".join(map(str, RATIOS))]
    both = ["-p", str(sizes.device_prompt), "-n", str(sizes.device_decode)]
    decode = ["-p", "0", "-n", str(sizes.device_decode)]
    llama = asked.programs.cuda
    peer = [] if llama is None else ["--against", f"llama.cpp={llama}"]
    compared = ["--policies", "moesaic", "--compare", "--no-stock"]
    for dtype, seconds in (("int4", 150), ("bf16", 270)):
        words = [*shape, *both, *ratios, *compared, *peer]
        yield _on_device(asked, f"qwen-{dtype}", dtype, words, seconds)
    trace = [] if asked.deepseek_trace is None else ["--trace", str(asked.deepseek_trace)]
    for dtype, seconds in (("int4", 90), ("bf16", 170)):
        words = [*latent, *trace, *decode, *ratios, *compared, *peer]
        yield _on_device(asked, f"deepseek-{dtype}", dtype, words, seconds)
    many = ["-p", "0", "-n", "16", "--batch", ",".join(map(str, sizes.batches))]
    for dtype, seconds in (("int4", 60), ("bf16", 90)):
        words = [*shape, *many, "--cache-ratio", "0.5", *compared]
        yield _on_device(asked, f"batches-{dtype}", dtype, words, seconds)
    driven = ["--systems", "ktransformers", "--layerwise"]
    for dtype, seconds in (("int4", 40), ("bf16", 70)):
        words = [*shape, *both, *ratios, *driven]
        yield _on_device(asked, f"layerwise-{dtype}", dtype, words, seconds)
    for dtype, seconds in (("int4", 60), ("bf16", 80)):
        words = [*latent, *trace, *decode, *ratios, *driven]
        yield _on_device(asked, f"layerwise-deepseek-{dtype}", dtype, words, seconds)
    stock = ["-p", str(sizes.device_prompt), "-n", "4", "--cache-ratio", "0.5", "--compare",
             "--policies", "moesaic"]  # fmt: skip
    yield _on_device(asked, "accelerate", "bf16", [*shape, *stock], 150, repetitions=1)


def _on_device(
    asked: MeasurementOptions,
    name: str,
    dtype: str,
    words: list[str],
    seconds: int,
    repetitions: int = 0,
) -> Row:
    # As in llama.cpp's files, int4 is everything in four bits.
    dense = () if dtype == "bf16" else ("--dense-dtype", dtype)
    command = (
        *(MOESAIC, "bench", "--accelerator", asked.sizes.accelerator, "--dtype", "bf16"),
        *("--expert-dtype", dtype, *dense, *words),
        *("--repetitions", str(repetitions or asked.repetitions), "--json"),
    )
    return Row("cuda", name, command, seconds, "bench")


def _cuda_gates(asked: MeasurementOptions) -> Iterator[Row]:
    words = (PYTHON, "-m", "benchmarks.gates", "--accelerator", asked.sizes.accelerator, "--rounds",
             "2", "--tokens", "32", "--batches", "1", "--model", asked.sizes.olmoe)  # fmt: skip
    small = () if asked.sizes.accelerator == "cuda" else ("--layers", "2")
    yield Row("cuda-gates", "gates", (*words, *small), 120, "lines")


def _fidelity(asked: MeasurementOptions) -> Iterator[Row]:
    kind, olmoe = asked.sizes.accelerator, asked.sizes.olmoe
    profile, words = [MOESAIC, "profile", "--accelerator", kind, "--json"], []
    if kind != "cuda":  # tried with small models: this machine's own description stays as it is
        profile += ["--output", str(Path(olmoe).with_name("tried.toml"))]
        words = ["--synthetic", olmoe, "--layers", "2"]
    yield Row("fidelity", "profile", tuple(profile), 120, "profile")
    command = (MOESAIC, "fidelity", "--accelerator", kind, "--tokens", "32", "--json", *words)
    yield Row("fidelity", "fidelity", command, 150, "fidelity")


def shown(row: Row, asked: MeasurementOptions) -> tuple[str, ...]:
    """The command as a reader would type it: other programs and files by variables of the shell."""
    programs = asked.programs
    paths: dict[str, Path | None] = {
        "ik": programs.ik, "llama": programs.llama, "cuda": programs.cuda,
    }  # fmt: skip
    if paths["cuda"] == paths["llama"]:
        paths["cuda"] = None
    replaced = {str(path): PROGRAM_WORDS[name] for name, path in paths.items() if path}
    if asked.deepseek_trace is not None:
        replaced[str(asked.deepseek_trace)] = TRACE_WORD
    words = [*row.conditions.words]
    for word in row.command:
        name, equals, path = word.partition("=")
        of_program = f"{name}={replaced[path]}" if equals and path in replaced else word
        words.append(replaced.get(word, of_program))
    return tuple(words)
