"""Is a mistake on the command line one clear message, before any work and without any file?"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command import SMALL, refused

from moesaic.core.errors import MissingExtra

MISTAKES = [
    (("--model", "deepseek-v2-lit"), "Did you mean 'deepseek-v2-lite'?"),
    (("--machine", "a6000-xeon"), "Did you mean 'a6000-xeon5220r'?"),
    (("--schedule", "hybird"), "unknown schedule 'hybird'. Did you mean 'hybrid'? Known: "),
    (("--cache", "mars"), "Did you mean 'mrs'?"),
    (("--prefetch", "impct"), "Did you mean 'impact'?"),
    (("--policies", "ktransformer"), "Did you mean 'ktransformers'?"),
    (("--phase", "decoding"), "Did you mean 'decode'?"),
    (("--fill", "populer"), "Did you mean 'popular'?"),
    (("--belief", "measure"), "Did you mean 'measured'?"),
    (("--belief-error", "cpu"), "expected NAME=FACTOR, as in cpu=1.2,pcie=0.5"),
    (("--belief-error", "cpu=fast"), "--belief-error has 'cpu=fast'"),
    (("--belief-error", "cpu=2,cpu=3"), "names 'cpu' twice"),
    (("--belief-error", "gpo=2"), "Did you mean 'gpu'? Known: cpu, gpu, pcie."),
    (("--belief-error", "pcie=0"), "must lie between 0.001 and 1000"),
    (("--belief-error", "cpu=nan"), "must lie between 0.001 and 1000"),
    (("--expert-dtype", "int5"), "unknown dtype 'int5'"),
    (("--cache", "lru:poll=global"), "Did you mean 'pool'? Known: admission, counts, pool."),
    (("--cache", "mrs:alpha=0.2,pool=globel"), "it must be per-layer | global"),
    (("--schedule", "hybrid:depth=2"), "schedule 'hybrid' has no parameters: leave out depth"),
    (("--prefetch", "impact:lookahead=0"), "it must be a whole number at least 1"),
    (("--cache-ratio", "1.5"), "must lie between 0 and 1"),
    (("--cache-ratio", "0", "--schedule", "gpu-only"), "leaves no GPU slot"),
    (("--model", "mixtral-8x7b", "--cache-ratio", "1"), "Use a cache ratio of at most"),
    (("--cache", "pinned"), "use prefetch 'none' or another cache"),
    (("--cache", "mrs:alpha=0"), "cache 'mrs': alpha is '0'; it must be a number above 0"),
    (("--cache", "mrs:0.7"), "'0.7' is not parameter=value; write it as in mrs:alpha=0.1"),
    (("--batch", "0"), "batch is 0"),
    (("--warmup", "-1"), "cannot be negative"),
    (("--trace", "absent.moet"), "absent.moet: No such file"),
    (("--trace", "bundled", "--model", "mixtral-8x7b"), "no trace of mixtral-8x7b is bundled"),
    (("--trace", "bundled", "--seed", "1"), "--seed 1 is of synthetic routing"),
    (("--timeline", "absent/out.png"), "there is no directory 'absent'"),
    (("--timeline", "out.gif"), "must end in .png or .svg or .pdf"),
    (("--perfetto", "out.txt"), "must end in .json"),
    (("moesaic-20m",), "a model is named with --model; see moesaic simulate --help"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=lambda value: str(value)[:40])
def test_a_mistake_is_one_line_and_leaves_nothing(
    words: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    outputs = () if "--perfetto" in words else ("--perfetto", "trace.json")
    assert message in refused(monkeypatch, capsys, "simulate", *SMALL, *outputs, *words)
    assert list(tmp_path.iterdir()) == []


def test_a_trace_must_be_of_the_model_and_long_enough(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from moesaic.workloads.bundled_traces import bundled_trace

    trace = bundled_trace("deepseek-v2-lite")
    other = refused(monkeypatch, capsys, "simulate", "--trace", trace, "--model", "qwen2-57b-a14b")
    assert "the trace is of deepseek-v2-lite" in other
    words = ("--trace", trace, "--model", "deepseek-v2-lite", "--tokens", 100_000)
    short = refused(monkeypatch, capsys, "simulate", *words)
    assert "has 2048 tokens for decode; this run needs 100288" in short


def test_a_directory_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "taken.png"
    folder.mkdir()
    assert "is a directory" in refused(monkeypatch, capsys, "simulate", "--timeline", folder)


def test_a_picture_without_matplotlib_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from moesaic.cli.shared import out_files

    monkeypatch.setattr(out_files, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"moesaic\[plot\]"):
        out_files.check_picture("--timeline", str(tmp_path / "out.png"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "moesaic.cli.shared.pictures", raising=False)
    with pytest.raises(MissingExtra, match="a picture"):
        __import__("moesaic.cli.shared.pictures")
