"""`moesaic serve`: a model behind an HTTP server that clients of the OpenAI API can use."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.run.serve_replicas import check_replicas, serve_replicas
from moesaic.cli.run.serving_model import (
    SERVE_PACKAGES,
    check_tokenizer,
    load_engine,
    model_name,
    model_names_option,
    reasoning_format_option,
    tool_format_option,
)
from moesaic.cli.shared.bundled_defaults import announce_bundled
from moesaic.cli.shared.engine_options import (
    batch_invariant_option,
    engine_settings,
    one_text_options,
    placement_option,
)
from moesaic.cli.shared.model_argument import model_argument
from moesaic.cli.shared.model_folder import model_folder
from moesaic.cli.shared.ray_option import ray_option
from moesaic.cli.shared.short_help import ShortHelpCommand
from moesaic.cli.shared.usual_options import SERVE
from moesaic.core.errors import BadFile, ImpossibleSetting, MissingExtra

if TYPE_CHECKING:
    from moesaic.serve.request_record import LogFormat
    from moesaic.serve.server_settings import ServerSettings

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
@model_names_option
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
    "--timeout",
    type=float,
    metavar="S",
    help="Seconds that an answer may take, waiting included; then it ends with an error.  [any]",
)
@click.option(
    "--receive-timeout",
    type=float,
    metavar="S",
    default=60.0,
    show_default=True,
    help="Seconds for the headers of a request, and then for its body, to arrive.",
)
@click.option(
    "--max-connections",
    type=int,
    metavar="N",
    default=1024,
    show_default=True,
    help="Connections at once; requests of more are refused.",
)
@click.option(
    "--idle-unload",
    type=float,
    metavar="S",
    help="Seconds without requests after which the model's memory is freed, until the next one.  "
    "[never]",
)
@tool_format_option
@reasoning_format_option
@click.option(
    "--log",
    type=click.Choice([_ON_TERMINAL, _ELSEWHERE]),
    help="One line per request on standard error.  [text on a terminal, else json]",
)
@click.option(
    "--no-page",
    is_flag=True,
    help="Leave out the page at / for browsers: a chat, and what the engine does.",
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
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    metavar="N",
    help="Engines that share the requests, each with the whole model (needs the ray extra).",
)
@ray_option("With --replicas: the cluster that they run on")
def serve(model: str | None, **asked: Any) -> None:
    """Serve a model over HTTP.

    MODEL is a directory in Hugging Face layout, an id there or a GGUF file; without it, the bundled
    moesaic-20m answers. Clients of the OpenAI API use http://127.0.0.1:8000/v1. Ctrl-C or SIGTERM
    lets running requests finish."""
    if not all(find_spec(package) for package in SERVE_PACKAGES):
        raise MissingExtra("a server", "serve")
    settings = engine_settings(asked)
    folder = model_folder(model, settings)
    serving = _server_settings(asked, model_name(model, folder))
    check_tokenizer(folder)

    check_replicas(asked)

    from moesaic.serve.server import address_of, bind, run

    bound = bind(serving)
    announce_bundled(folder)
    if asked["replicas"] is not None:
        serve_replicas(model, settings, serving, bound, asked)
        return
    from moesaic.serve.app import make_app
    from moesaic.serve.service import Service

    llm = load_engine(folder, settings)
    service = Service(llm, serving)

    def ready() -> None:
        names, context = ", ".join(serving.model_names), service.processor.context
        click.echo(
            f"{names} at {address_of(bound)}/v1: up to {llm.sequences} answers at once, {context} "
            "tokens each",
            err=True,
        )

    run(service, partial(make_app, service), bound, ready)


def _server_settings(asked: Mapping[str, Any], name: str) -> ServerSettings:
    from moesaic.serve.server_settings import ServerSettings

    same = (
        "port",
        "cors",
        "max_body_mb",
        "max_prompt_tokens",
        "max_queue",
        "keep_alive_s",
        "max_connections",
    )
    formats = ("tool_format", "reasoning_format")
    return ServerSettings(
        host=asked["address"],
        api_keys=(*asked["api_keys"], *_keys(asked["api_key_file"])),
        model_names=asked["model_names"] or (name,),
        drain_s=asked["drain"],
        timeout_s=asked["timeout"],
        receive_s=asked["receive_timeout"],
        idle_unload_s=asked["idle_unload"],
        page=not asked["no_page"],
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
