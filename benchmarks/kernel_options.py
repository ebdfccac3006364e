"""Command line options of the kernel benchmark, and their defaults."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection
from pathlib import Path

from benchmarks.kernel_cases import DTYPES, MODELS, TOKENS
from benchmarks.kernel_rounds import Effort
from benchmarks.kernel_run import KernelOptions
from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.hardware.caches import TIMES, last_level_cache_bytes
from moesaic.hardware.host import usable_cores
from moesaic.kernels.instruction_sets import KERNELS, choose

QUICK_MODELS, QUICK_TOKENS = ("deepseek-v2-lite", "qwen3-30b-a3b"), (1, 16, 256)
FULL_SECONDS, QUICK_SECONDS = 6.0, 2.0
MAX_TOKENS = 4096
STORE_BYTES = 1_500_000_000
STORE_HELP = "1.5, or four times the last-level cache"


def parser(description: str) -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=description)
    p.add_argument("--json", type=Path, metavar="FILE", help="write down everything measured")
    p.add_argument("--quick", action="store_true", help="two shapes, three token counts: a minute")
    p.add_argument("--threads", type=int, help="default: one per core")
    p.add_argument("--kt-threads", type=int, help="of kt-kernel; default: as --threads")
    p.add_argument("--shapes", help=f"models, by commas, of {', '.join(MODELS)}")
    p.add_argument("--tokens", help="per expert, by commas")
    p.add_argument("--dtypes", help=f"by commas, of {', '.join(DTYPES)}")
    p.add_argument("--kernel", default="auto", help=f"one of {', '.join(KERNELS)}")
    p.add_argument("--store-gb", type=float, help=f"of every contender; default: {STORE_HELP}")
    p.add_argument("--seconds", type=float, help="for each shape and token count, about")
    return p


def asked_for(options: argparse.Namespace) -> KernelOptions:
    quick: bool = options.quick
    threads = usable_cores() if options.threads is None else options.threads
    kt_threads = threads if options.kt_threads is None else options.kt_threads
    seconds = options.seconds or (QUICK_SECONDS if quick else FULL_SECONDS)
    for option, value in (("--threads", threads), ("--kt-threads", kt_threads)):
        if value < 1:
            raise ImpossibleSetting(f"{option} {value}: at least one has to compute")
    store = default_store_bytes() if options.store_gb is None else int(options.store_gb * 1e9)
    if store <= 0 or seconds <= 0:
        raise ImpossibleSetting("--store-gb and --seconds must be above zero")
    check_writable(options.json)
    models = QUICK_MODELS if quick else tuple(MODELS)
    return KernelOptions(
        models=names("shape", options.shapes, MODELS, models),
        tokens=token_counts(options.tokens, QUICK_TOKENS if quick else TOKENS),
        dtypes=names("dtype", options.dtypes, DTYPES, DTYPES),
        threads=threads,
        kt_threads=kt_threads,
        kernel=choose(options.kernel),
        store_bytes=store,
        effort=Effort(seconds, min_rounds=3, max_rounds=40),
    )


def default_store_bytes() -> int:
    """Weights must come from memory, whatever the cache holds."""
    return max(STORE_BYTES, TIMES * (last_level_cache_bytes() or 0))


def names(
    kind: str, asked: str | None, known: Collection[str], default: tuple[str, ...]
) -> tuple[str, ...]:
    if asked is None:
        return default
    found = tuple(dict.fromkeys(name.strip() for name in asked.split(",")))
    for name in found:
        if name not in known:
            raise UnknownName(kind, name, known)
    return found


def token_counts(asked: str | None, default: tuple[int, ...]) -> tuple[int, ...]:
    if asked is None:
        return default
    counts = asked.split(",")
    if not all(count.strip().isdecimal() and 1 <= int(count) <= MAX_TOKENS for count in counts):
        raise ImpossibleSetting(f"--tokens {asked}: give counts from 1 to {MAX_TOKENS}, as in 1,64")
    return tuple(dict.fromkeys(int(count) for count in counts))


def check_writable(path: Path | None) -> None:
    """Now rather than after ten minutes."""
    if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise ImpossibleSetting(f"--json {path}: no file can be written there")
