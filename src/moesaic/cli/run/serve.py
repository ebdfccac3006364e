"""`moesaic serve`: a model behind an HTTP server that clients of the OpenAI API can use."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.bundled_defaults import announce_bundled
from moesaic.cli.shared.engine_options import (
    batch_invariant_option,
    engine_settings,
    one_text_options,
    placement_option,
)
from moesaic.cli.shared.model_argument import model_argument
from moesaic.cli.shared.model_folder import model_folder
from moesaic.cli.shared.short_help import ShortHelpCommand
from moesaic.cli.shared.usual_options import SERVE
from moesaic.core.errors import BadFile, ImpossibleSetting, MissingExtra

if TYPE_CHECKING:
    from moesaic.engine.async_llm import AsyncLLM
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.serve.request_record import LogFormat
    from moesaic.serve.server_settings import ServerSettings

_PACKAGES = ("starlette", "uvicorn", "msgspec", "zmq")  # of the serve extra
_ON_TERMINAL: LogFormat = "text"
_ELSEWHERE: LogFormat = "json"


@click.command(cls=ShortHelpCommand, usual=SERVE)
@model_argument
@click.option(
    "--host",
    "address",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Where to listen; 0.0.0.0 lets other machines in.",
)
@click.option("--port", type=int, metavar="N", default=8000, show_default=True, help="0: any free.")
@click.option(
    "--api-key",
    "api_keys",
    multiple=True,
    metavar="KEY",
    help="Clients need this key; may be repeated. Other users of this machine can read it in the "
    "list of processes: prefer a file.  [none: open to all who can connect]",
)
@click.option("--api-key-file", metavar="FILE", help="Keys, one per line.")
@click.option(
    "--served-model-name",
    "model_names",
    multiple=True,
    metavar="NAME",
    help="The model's name in requests; may be repeated.  [as given, without its folder]",
)
@click.option(
    "--cors",
    multiple=True,
    metavar="ORIGIN",
    help="Pages of this origin may ask, as http://localhost:3000; may be repeated.  [none]",
)
@click.option(
    "--max-body-mb",
    type=float,
    metavar="MB",
    default=32.0,
    show_default=True,
    help="Largest body of a request, in 10^6 bytes.",
)
@click.option(
    "--max-prompt-tokens", type=int, metavar="N", help="Longest prompt.  [what the context allows]"
)
@click.option(
    "--max-queue",
    type=int,
    metavar="N",
    default=512,
    show_default=True,
    help="Answers that may wait while others are written; more are refused.",
)
@click.option(
    "--keep-alive-s",
    type=float,
    metavar="S",
    default=10.0,
    show_default=True,
    help="Seconds of silence in a stream before a comment is sent.",
)
@click.option(
    "--drain",
    type=float,
    metavar="S",
    default=30.0,
    show_default=True,
    help="Seconds that running requests have when the server is ended.",
)
@click.option(
    "--tool-format",
    metavar="NAME",
    help="How the model writes calls of tools: hermes, harmony, ... (docs/tool-formats.md).  [as "
    "its chat template says]",
)
@click.option(
    "--reasoning-format",
    metavar="NAME",
    help="How it marks its reasoning: none | think | mistral  [as its chat template says]",
)
@click.option(
    "--log",
    type=click.Choice([_ON_TERMINAL, _ELSEWHERE]),
    help="One line per request on standard error.  [text on a terminal, else json]",
)
@one_text_options
@placement_option
@click.option(
    "--max-sequences",
    "--max-num-seqs",
    type=int,
    metavar="N",
    help="Answers written at the same time; others wait.  [32, fewer where memory is short]",
)
@batch_invariant_option
def serve(model: str | None, **asked: Any) -> None:
    """Serve a model over HTTP.

    MODEL is a directory in Hugging Face layout, an id there or a GGUF file; without it, the bundled
    moesaic-20m answers. Clients of the OpenAI API use http://127.0.0.1:8000/v1. Ctrl-C or SIGTERM
    lets running requests finish."""
    if not all(find_spec(package) for package in _PACKAGES):
        raise MissingExtra("a server", "serve")
    settings = engine_settings(asked)
    folder = model_folder(model, settings)
    serving = _server_settings(asked, _name(model, folder))
    _check_tokenizer(folder)

    from moesaic.serve.server import address_of, bind, run
    from moesaic.serve.service import Service

    bound = bind(serving)
    announce_bundled(folder)
    llm = _load(folder, settings)
    service = Service(llm, serving)

    def ready() -> None:
        names, context = ", ".join(serving.model_names), service.processor.context
        click.echo(
            f"{names} at {address_of(bound)}/v1: up to {llm.sequences} answers at once, {context} "
            "tokens each",
            err=True,
        )

    run(service, bound, ready)


def _name(model: str | None, folder: Path) -> str:
    """An id keeps its owner; of a path, the last part is the name."""
    if model is None or Path(model).exists():
        return folder.resolve().name
    return model


def _check_tokenizer(folder: Path) -> None:
    from moesaic.models.text.tokenizer import has_tokenizer

    if not has_tokenizer(folder):
        raise ImpossibleSetting(
            f"the model in {str(folder)!r} has no tokenizer.json, so it can answer no text: add "
            "the file to its directory, or generate from token ids with `moesaic run --prompt-ids`"
        )


def _server_settings(asked: Mapping[str, Any], name: str) -> ServerSettings:
    from moesaic.serve.server_settings import ServerSettings

    same = ("port", "cors", "max_body_mb", "max_prompt_tokens", "max_queue", "keep_alive_s")
    formats = ("tool_format", "reasoning_format")
    return ServerSettings(
        host=asked["address"],
        api_keys=(*asked["api_keys"], *_keys(asked["api_key_file"])),
        model_names=asked["model_names"] or (name,),
        drain_s=asked["drain"],
        log=asked["log"] or (_ON_TERMINAL if sys.stderr.isatty() else _ELSEWHERE),
        **{name: asked[name] for name in (*same, *formats)},
    )


def _keys(file: str | None) -> list[str]:
    if file is None:
        return []
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise BadFile(f"--api-key-file {file!r} is not text: give keys, one per line") from None
    except OSError as error:
        raise BadFile(f"--api-key-file {file!r}: {error.strerror}") from None
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise ImpossibleSetting(
            f"--api-key-file {file!r} has no keys, and the server would be open: write one per "
            "line, or leave the option out"
        )
    return keys


def _load(folder: Path, settings: EngineSettings) -> AsyncLLM:
    from moesaic.cli.shared.output import progress
    from moesaic.engine.async_llm import AsyncLLM
    from moesaic.engine.process.process_options import ProcessOptions

    with progress("loading experts", None) as advance:
        return AsyncLLM(
            folder,
            settings,
            progress=lambda done, of: advance(),
            process=ProcessOptions(restarts=1),
        )
