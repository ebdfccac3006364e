"""Does the table of verbs tell what runs from what does not?"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import gguf
from click.testing import CliRunner

import gguf_models
import quantized_models
import small_tokenizers
import stock
from chat_models import CHATML, talking
from gguf_models import Type
from moesaic.cli.command_line import app
from quantized_models import FORMS, STACKS

# Every family and every format through run, chat, bench, plan and eval, as a table.
# PYTHONPATH=tests:tests/cli python -m test_verb_table [--accelerator KIND] [NAME ...] Models are
# small random ones with a small tokenizer; the real command line runs in this process.
# Numbers are compared elsewhere (tests/parity, tests/models): here it is only whether a command
# that a user would give comes to its end.

VOCABULARY = 512
GREEDY = ("--max-tokens", "2", "--temperature", "0", "--threads", "1")
Maker = Callable[[Path], Path]


def verbs(model: Path, accelerator: str | None = None) -> dict[str, list[str]]:
    on = [] if accelerator is None else ["--accelerator", accelerator]
    return {
        "run": ["run", str(model), "-p", "Weights", *GREEDY, *on],
        "chat": ["chat", str(model), *GREEDY, *on],
        "bench": ["bench", str(model), "-p", "4", "-n", "2", "--threads", "1", *on],
        "plan": ["plan", str(model), *on],
        "eval": ["eval", str(model), "--limit", "1", "--max-tokens", "2", "--threads", "1", *on],
    }


def outcomes(model: Path, accelerator: str | None = None) -> dict[str, str]:
    """Of every verb: yes, or the last line it said."""
    found = {}
    for verb, words in verbs(model, accelerator).items():
        asked = "Which experts rest?\n/exit\n" if verb == "chat" else None
        result = CliRunner().invoke(app, words, input=asked)
        said = (result.output.strip().splitlines() or [""])[-1]
        done = result.exit_code == 0
        found[verb] = "yes" if done else f"NO: {result.exception or said}"[:90]
    return found


def makers() -> dict[str, Maker]:
    families: dict[str, Maker] = {
        name: partial(_family, name) for name in (*stock.FAMILIES, *stock.ROWS)
    }
    quantized: dict[str, Maker] = {
        f"format {name}": partial(_quantized, name) for name in (*FORMS, "mxfp4")
    }
    kinds = (
        Type.F32,
        Type.F16,
        Type.BF16,
        Type.Q8_0,
        Type.Q4_0,
        Type.Q4_1,
        Type.Q5_0,
        Type.Q5_1,
        Type.MXFP4,
    )
    files: dict[str, Maker] = {f"GGUF {kind.name}": partial(_gguf, kind) for kind in kinds}
    return families | quantized | files | {"packed": _packed}


def rows(
    names: Iterable[str], accelerator: str | None = None
) -> Iterator[tuple[str, dict[str, str]]]:
    known = makers()
    for name in names:
        with TemporaryDirectory(prefix="moesaic-verbs-") as folder:
            yield name, outcomes(known[name](Path(folder)), accelerator)


def _family(name: str, place: Path, **changes: Any) -> Path:
    folder = place / "model"
    small_tokenizers.save(folder, "byte-level", chat_template=CHATML)
    return stock.save(stock.make(name, vocab_size=VOCABULARY, **changes), folder)


def _quantized(name: str, place: Path) -> Path:
    of = {"intermediate_size": 64} if name == "mxfp4" else {}
    source = _family("gpt-oss" if of else "qwen3-moe", place, **of)
    quantized = quantized_models.write(source, place, (STACKS if of else FORMS)[name]).quantized
    for file in source.glob("*token*"):
        shutil.copy(file, quantized)
    for file in source.glob("*.jinja"):
        shutil.copy(file, quantized)
    return quantized


def _gguf(kind: Type, place: Path) -> Path:
    def add(writer: gguf.GGUFWriter) -> None:
        content = json.loads(small_tokenizers.trained("byte-level"))
        gguf_models.write_tokenizer(writer, content, "gpt-2", VOCABULARY)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_chat_template(CHATML)

    return gguf_models.convert(_family("qwen3-moe", place), place / "m.gguf", kind, add=add)


def _packed(place: Path) -> Path:
    words = ["pack", str(_family("qwen3-moe", place)), "-o", str(place / "packed")]
    result = CliRunner().invoke(app, [*words, "--expert-dtype", "int4"])
    assert result.exit_code == 0, result.output
    return place / "packed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accelerator")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in makers()]:
        parser.error(f"{', '.join(unknown)}: not among {', '.join(makers())}")
    names = options.names or list(makers())
    click.echo("| model | run | chat | bench | plan | eval |\n|---|---|---|---|---|---|")
    failures = 0
    for name, found in rows(names, options.accelerator):
        failures += sum(said != "yes" for said in found.values())
        click.echo(f"| {name} | {' | '.join(found.values())} |")
    click.echo(f"\n{failures} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()


def test_what_is_no_model_does_not_run(tmp_path: Path) -> None:
    found = outcomes(tmp_path / "absent")
    assert list(found) == ["run", "chat", "bench", "plan", "eval"]
    assert all(said.startswith("NO: ") for said in found.values())


def test_a_model_runs_through_every_verb() -> None:
    assert set(outcomes(talking().folder).values()) == {"yes"}


def test_families_and_formats_are_in_it() -> None:
    assert {"mixtral", "gpt-oss", "format gptq", "format mxfp4", "GGUF Q8_0"} <= makers().keys()


def test_an_accelerator_is_asked_for_by_every_verb() -> None:
    said = outcomes(talking().folder, "nonsense")
    assert list(said) == ["run", "chat", "bench", "plan", "eval"]
    assert all(each.startswith("NO: ") for each in said.values())
