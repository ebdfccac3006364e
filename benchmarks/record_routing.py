"""The routing of a model while it answers prompts: one trace per source, and mixtures of them.

python -m benchmarks.record_routing [--model FOLDER] [--out FOLDER] problems gsm8k_test.jsonl.gz ...

A source is a file of prompts (.jsonl, .json, .csv; .txt is a text to go on with; packed with gzip
or xz or not) or the word `problems`. One prompt at a time, in chat form, so that a document is a
prompt and its answer and they end in order. --out gets SOURCE.moet for each, all.moet with every
document, and MODEL.moet, a small part of it for the package.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from benchmarks.record_routing_mixture import introduced, mixture, without_repeated_weights
from benchmarks.record_routing_prompts import Prompt, name_of, read_prompts
from moesaic.core.errors import ImpossibleSetting, MoesaicError
from moesaic.engine.completion import Completion
from moesaic.engine.llm import LLM
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.models.bundled_model import model_path
from moesaic.workloads.domains import with_domains
from moesaic.workloads.source import LazyTrace, TraceSource, open_trace
from moesaic.workloads.writer import write_trace

ALL = "all"
LOOP = 8
PROFILE_TOKENS = 256  # the first ones decide where a simulated run places experts
MOST_BUNDLED_BYTES = 1_500_000


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    try:
        _record_all(asked)
    except (MoesaicError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE")
    parser.add_argument("--model", help="a model directory; the package's own otherwise")
    parser.add_argument("--out", default="out/routing")
    parser.add_argument("--tokens", type=int, default=2500, help="to generate per source")
    parser.add_argument("--answer-tokens", type=int, default=128, help="an answer's most")
    parser.add_argument("--prompt-tokens", type=int, default=384, help="longer prompts are skipped")
    parser.add_argument("--bundle-tokens", type=int, default=6000, help="of the small trace")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _record_all(asked: argparse.Namespace) -> None:
    model, out = model_path(asked.model), Path(asked.out)
    _check_names([name_of(source) for source in asked.sources], {ALL, model.name})
    prompts = {name_of(source): read_prompts(source, asked.seed) for source in asked.sources}
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, several in prompts.items():
        Random(asked.seed).shuffle(several)
        paths.append(out / f"{name}.moet")
        print(f"{name:16} {record(model, several, paths[-1], asked)}", flush=True)
    recorded = [open_trace(path) for path in paths]
    _write(out / f"{ALL}.moet", mixture(recorded))
    each = PROFILE_TOKENS // len(recorded)
    small = without_repeated_weights(
        introduced(mixture(recorded, asked.bundle_tokens), recorded, each)
    )
    bundled = out / f"{small.header.model}.moet"
    _write(bundled, small)
    if bundled.stat().st_size > MOST_BUNDLED_BYTES:
        print(f"{bundled} is too large for the package: ask for fewer --bundle-tokens")


def _check_names(names: list[str], taken: set[str]) -> None:
    """Every source has a file of its own, beside those of the mixtures."""
    for name, count in Counter([*names, *taken]).items():
        if count > 1:
            raise ImpossibleSetting(f"two traces would be called {name}.moet: rename a source")


def record(model: Path, prompts: list[Prompt], path: Path, asked: argparse.Namespace) -> str:
    """Answer until enough tokens are generated; says in words what happened."""
    started, skipped = time.perf_counter(), 0
    domains: list[str] = []
    ended: Counter[str] = Counter()
    read = written = again = 0
    with TemporaryDirectory(dir=path.parent) as folder:
        raw = Path(folder) / "raw.moet"
        with LLM(model, record=raw, threads=asked.threads, accelerator="none") as llm:
            for prompt, answer in _answers(llm, prompts, asked):
                if answer is None:
                    skipped += 1
                    continue
                domains.append(prompt.domain)
                ended[answer.finish_reason] += 1
                read, written = read + len(answer.prompt_tokens), written + len(answer.tokens)
                again += repeating(answer.tokens)
                if written >= asked.tokens:
                    break
        _write(path, _described(open_trace(raw), model.name, path.stem, domains, asked))
    seconds = time.perf_counter() - started
    return (
        f"{len(domains)} answers, {ended['stop']} of them ended by the model; {read} tokens read, "
        f"{written} generated ({again / max(written, 1):.0%} in loops) in {seconds:.0f} s; "
        f"{skipped} prompts too long"
    )


def repeating(tokens: Sequence[int]) -> int:
    """How many tokens end a run of `LOOP` tokens that the answer has had before: what goes round
    in circles routes in circles, and looks like locality."""
    runs = [tuple(tokens[end - LOOP : end]) for end in range(LOOP, len(tokens) + 1)]
    return len(runs) - len(set(runs))


def _answers(
    llm: LLM, prompts: list[Prompt], asked: argparse.Namespace
) -> Iterator[tuple[Prompt, Completion | None]]:
    """One after another; None for a prompt that is too long."""
    tokenizer = llm.model.tokenizer
    assert tokenizer is not None, "prompts are text"
    for number, prompt in enumerate(prompts):
        messages = [{"role": "user", "content": prompt.text}]
        tokens = tokenizer.encode_chat(messages) if prompt.chat else tokenizer.encode(prompt.text)
        if len(tokens) > asked.prompt_tokens:
            yield prompt, None
            continue
        params = SamplingParams(
            max_tokens=asked.answer_tokens,
            temperature=asked.temperature,
            seed=asked.seed + number,
        )
        (answer,) = llm.generate([tokens], params)
        yield prompt, answer


def _described(
    source: TraceSource, model: str, name: str, domains: list[str], asked: argparse.Namespace
) -> TraceSource:
    """The trace with what was not known while it was recorded."""
    facts = {
        "prompt_tokens_most": asked.prompt_tokens,
        "answer_tokens_most": asked.answer_tokens,
        "temperature": asked.temperature,
        "seed": asked.seed,
    }
    header = replace(
        source.header,
        model=model,
        source=f"real routing, recorded while {model} answered prompts",
        metadata=facts,
    )
    return LazyTrace(with_domains(header, domains), source.blocks)


def _write(path: Path, trace: TraceSource) -> None:
    tokens = write_trace(path, trace.header, trace.blocks())
    print(f"wrote {path}: {tokens} tokens, {path.stat().st_size / 1e6:.2f} MB", flush=True)


if __name__ == "__main__":
    sys.exit(main())
