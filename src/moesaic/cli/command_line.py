"""Runs a subcommand, turns a user's mistake into one clear message."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType

import click

from moesaic import __version__
from moesaic.cli.shared import standard_output
from moesaic.cli.shared.exit_status import INTERRUPTED, REQUEST, exit_status
from moesaic.core.errors import REPORT, EngineFailed, MoesaicError, UnknownName
from moesaic.core.files import FULL
from moesaic.core.folders import cache_folder

# command -> (module with a click command of the same name, one line for --help)
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("moesaic.cli.run.run", "Let a model answer or go on with a text."),
    "chat": ("moesaic.cli.run.chat", "Talk with a model."),
    "serve": ("moesaic.cli.run.serve", "Serve a model over HTTP."),
    "batch": ("moesaic.cli.run.batch", "Answer a file of requests."),
    "bench": ("moesaic.cli.study.bench", "How fast a model reads and writes on this machine."),
    "eval": ("moesaic.cli.study.eval", "How good a model's answers are."),
    "calibrate": (
        "moesaic.cli.study.calibrate",
        "Choose a gate for a quality bound on your own prompts.",
    ),
    "quality": ("moesaic.cli.study.quality", "What storing experts in fewer bits costs."),
    "pack": ("moesaic.cli.study.pack", "Save a model in a form that opens in seconds."),
    "plan": (
        "moesaic.cli.study.plan",
        "What a model would need and how fast it would be.",
    ),
    "simulate": ("moesaic.cli.study.simulate", "Run one model on one simulated machine."),
    "compare": ("moesaic.cli.study.compare", "Compare policies, cache ratios and machines."),
    "dram": ("moesaic.cli.study.dram", "Serve requests from one simulated DRAM sub-channel."),
    "trace": (
        "moesaic.cli.trace.trace",
        "Inspect, compare, fit, synthesize, convert and import traces.",
    ),
    "models": ("moesaic.cli.info.models", "List the known models, or show one."),
    "machines": ("moesaic.cli.info.machines", "List the known machines, or show one."),
    "policies": ("moesaic.cli.info.policies", "List the policies and the systems made of them."),
    "reproduce": ("moesaic.cli.study.reproduce", "Reproduce a paper's tables and figures."),
    "profile": ("moesaic.cli.study.profile", "Measure this machine and write its description."),
    "fidelity": ("moesaic.cli.study.fidelity", "Compare the simulator with this machine."),
    "doctor": ("moesaic.cli.info.doctor", "What this machine has, what is used, what is missing."),
    "demo": (
        "moesaic.cli.run.demo",
        "The bundled model answers, and policies are compared on it.",
    ),
}


class LazyGroup(click.Group):
    """Lists commands from a table, imports a command's module only when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            raise UnknownName("command", cmd_name, COMMANDS)
        command = getattr(import_module(COMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command), f"{cmd_name} is not a command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="moesaic")
def app() -> None:
    """Mixture-of-Experts models larger than the GPU: run them, or study how."""


class _Ended(SystemExit):
    """The process was ended by a signal. Unlike Ctrl-C it ends a conversation too, not only an
    answer."""


def run(imported: Callable[[], object]) -> None:
    """The command that the process was called with. `imported` is called first, where an
    interrupt is reported: Ctrl-C may be Python's again."""
    if "multiprocessing" in sys.modules:
        _refuse_in_a_new_worker()
    try:
        imported()
        standard_output.name_errors()
        with _orderly_end():
            app.main(prog_name="moesaic", standalone_mode=False)
            if sys.stdout is not None:
                sys.stdout.flush()
    except _Ended:
        with suppress(OSError):  # the terminal may be what went away
            click.echo("interrupted", err=True)
        raise
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(REQUEST)
    except (MoesaicError, OSError, click.ClickException) as error:
        click.echo(f"error: {_error_text(error)}", err=True)
        if isinstance(error, EngineFailed):
            click.echo(REPORT, err=True)
        sys.exit(exit_status(error))


def _refuse_in_a_new_worker() -> None:
    """A script that calls the command line without a guard does so in every worker, too. The
    process that has started the worker reports it."""
    from moesaic.core.worker_pool import STARTED_AGAIN, imports_its_script

    if imports_its_script():
        sys.exit(STARTED_AGAIN)


@contextmanager
def _orderly_end() -> Iterator[None]:
    """SIGTERM and SIGHUP clean up as Ctrl-C does: temporary files go, a recording is written."""
    here = threading.current_thread() is threading.main_thread()
    names = [name for name in ("SIGTERM", "SIGHUP") if here and hasattr(signal, name)]
    caught = [getattr(signal, name) for name in names]
    # What is ignored stays ignored, as `nohup` requires.
    caught = [number for number in caught if signal.getsignal(number) is signal.SIG_DFL]

    def end(number: int, frame: FrameType | None) -> None:
        for each in caught:  # shells may signal twice: cleanup continues
            signal.signal(each, signal.SIG_IGN)
        raise _Ended(128 + number)

    for number in caught:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)


def _error_text(error: Exception) -> str:
    """One line, also for click's own errors."""
    if isinstance(error, OSError) and error.filename == standard_output.NAME:
        standard_output.discard_output()
        return f"{standard_output.NAME} could not be written: {error.strerror}"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.errno in FULL:  # compiled code is saved by its compiler
        return f"{error.strerror}: make room on the disk of the cache, {cache_folder()}"
    if isinstance(error, click.ClickException):
        context = error.ctx if isinstance(error, click.UsageError) else None
        words = " ".join(error.format_message().split()).rstrip(".")
        return words + ("" if context is None else _advice(words, context))
    return str(error)


def _advice(words: str, context: click.Context) -> str:
    """What to do next; some commands take the model as an argument, others as an option."""
    named = any("--model" in each.opts for each in context.command.params)
    named &= not any(isinstance(each, click.Argument) for each in context.command.params)
    option = ": a model is named with --model" if named and "extra argument" in words else ""
    return f"{option}; see {context.command_path} --help"
