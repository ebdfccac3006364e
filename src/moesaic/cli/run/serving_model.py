"""The model of commands that answer the published APIs: its name, its tokenizer, its engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from moesaic.core.errors import ImpossibleSetting

if TYPE_CHECKING:
    from moesaic.engine.async_llm import AsyncLLM
    from moesaic.engine.engine_settings import EngineSettings

SERVE_PACKAGES = ("starlette", "uvicorn", "msgspec", "zmq")  # of the serve extra

model_names_option = click.option(
    "--served-model-name",
    "model_names",
    multiple=True,
    metavar="NAME",
    help="The model's name in requests; may be repeated.  [as given, without its folder]",
)
tool_format_option = click.option(
    "--tool-format",
    metavar="NAME",
    help="How the model writes calls of tools: hermes, harmony, ... (docs/tool-formats.md).  [as "
    "its chat template says]",
)
reasoning_format_option = click.option(
    "--reasoning-format",
    metavar="NAME",
    help="How it marks its reasoning: none | think | mistral  [as its chat template says]",
)


def model_name(model: str | None, folder: Path) -> str:
    """An id keeps its owner; of a path, the last part is the name."""
    if model is None or Path(model).exists():
        return folder.resolve().name
    return model


def check_tokenizer(folder: Path) -> None:
    from moesaic.models.text.tokenizer import has_tokenizer

    if not has_tokenizer(folder):
        raise ImpossibleSetting(
            f"the model in {str(folder)!r} has no tokenizer.json, so it can answer no text: add "
            "the file to its directory, or generate from token ids with `moesaic run --prompt-ids`"
        )


def load_engine(folder: Path, settings: EngineSettings) -> AsyncLLM:
    """In a process of its own, which is started again once if it ends."""
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
