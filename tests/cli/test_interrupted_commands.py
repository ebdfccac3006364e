"""After Ctrl-C or a closed pipe: does the command end as promised, and leave nothing behind?"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from time import monotonic, sleep
from typing import Any

import pytest

import small_tokenizers
import stock
from chat_models import CHATML
from moesaic.cli.main import main
from moesaic.engine.sampling.sampler import Sampler
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.workloads.source import open_trace

LONG = 200_000  # tokens: minutes of writing, were it not interrupted
SOON_S = 60  # until a process must have ended, on a busy machine
COMPARE_ENDS_S = 1.0  # where the cores are not shared
# `nohup` starts a program with SIGHUP ignored, the tests as well, and their children inherit it.
CALL = (
    "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
    "from moesaic.cli.main import main; main()"
)
ENDLESS = ("--max-tokens", LONG, "--threads", 1, "--seed", 1)


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that talks, and does not stop by itself for a long time."""
    folder = small_tokenizers.save(
        tmp_path_factory.mktemp("endless"), "byte-level", chat_template=CHATML
    )
    small_tokenizers.write(folder / "tokenizer_config.json", {"chat_template": CHATML})
    model = stock.make("qwen3-moe", vocab_size=512, max_position_embeddings=LONG)
    return stock.save(model, folder)


@contextmanager
def started(folder: Path, *words: object, call: str = CALL) -> Iterator[subprocess.Popen[bytes]]:
    """The command in a process of its own, working in `folder`."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", call, *map(str, words)],
        cwd=folder,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def some_text(process: subprocess.Popen[bytes]) -> bytes:
    """Several tokens' worth: it is in the middle of writing."""
    assert process.stdout is not None
    read = b""
    while len(read) < 50:
        piece = os.read(process.stdout.fileno(), 1)
        assert piece, f"it ended after {read!r}"
        read += piece
    return read


def interrupt(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGINT) -> str:
    """Ends it; what it then said on standard error."""
    process.send_signal(how)
    _, said = process.communicate(timeout=SOON_S)
    assert b"Traceback" not in said
    return said.decode()


def test_ctrl_c_ends_a_run_with_its_summary_and_no_files(endless: Path, tmp_path: Path) -> None:
    with started(tmp_path, "run", endless, "-p", "The router", *ENDLESS) as process:
        some_text(process)
        err = interrupt(process)
    assert process.returncode == 130
    *_, prompt, answer, last = err.splitlines()
    assert prompt.startswith("prompt ")
    assert answer.endswith("; interrupted")
    assert last == "interrupted"
    assert list(tmp_path.iterdir()) == []


def test_what_was_recorded_before_ctrl_c_is_whole(endless: Path, tmp_path: Path) -> None:
    words = ("run", endless, "-p", "The router", *ENDLESS, "--record", "trace.moet")
    with started(tmp_path, *words, "--accelerator", "emulated") as process:
        some_text(process)
        interrupt(process)
    assert process.returncode == 130
    assert [path.name for path in tmp_path.iterdir()] == ["trace.moet"]
    assert open_trace(tmp_path / "trace.moet").header.num_experts == 12


@pytest.mark.parametrize(("command", "how"), [("run", signal.SIGTERM), ("chat", signal.SIGHUP)])
def test_other_signals_leave_what_ctrl_c_leaves(
    command: str, how: signal.Signals, endless: Path, tmp_path: Path
) -> None:
    asked: tuple[object, ...] = ("-p", "Hello") if command == "run" else ("--max-model-len", LONG)
    words = (command, endless, *asked, *ENDLESS, "--record", "trace.moet")
    with started(tmp_path, *words) as process:
        if command == "chat":
            assert process.stdin is not None
            process.stdin.write(b"Hello\n")
            process.stdin.flush()
        some_text(process)
        err = interrupt(process, how)
    assert process.returncode == 128 + how
    assert err.splitlines()[-1] == "interrupted"
    assert [path.name for path in tmp_path.iterdir()] == ["trace.moet"]
    assert open_trace(tmp_path / "trace.moet").header.num_experts == 12


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc")
def test_ctrl_c_ends_a_comparison_with_its_processes(tmp_path: Path) -> None:
    """Each run would take minutes. A terminal sends the signal to all processes of the command."""
    words = ("compare", "--model", "deepseek-v2-lite", "--tokens", 100_000, "--jobs", 2)
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", CALL, *map(str, words)]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=pipe, stderr=pipe, start_new_session=True
    )
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = monotonic() + 3 * SOON_S
        while len(found := children.read_text().split()) < 3:  # two, and one that tracks them
            assert process.poll() is None
            assert monotonic() < deadline
            sleep(0.05)
        sleep(1.0)
        slowed = slowdown()
        started_s = monotonic()
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=SOON_S)
        taken_s = monotonic() - started_s
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert process.returncode == 130
    assert said.decode().splitlines()[-1] == "interrupted"
    assert b"Traceback" not in said
    assert taken_s < COMPARE_ENDS_S * max(1.0, slowed, slowdown())
    deadline = monotonic() + SOON_S
    while any(map(at_work, found)):
        assert monotonic() < deadline, "processes are left behind"
        sleep(0.05)


def slowdown() -> float:
    """How many times as long as on cores of its own a process takes here and now."""
    work_s = 0.2
    busy = f"""
import time
wall, cpu = time.monotonic(), time.process_time()
while time.process_time() < cpu + {work_s}: pass
print((time.monotonic() - wall) / {work_s})
"""
    return float(subprocess.check_output([sys.executable, "-c", busy]))


def at_work(pid: str) -> bool:
    """Not gone, and not merely waiting for init to ask how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_process_that_ignores_hangups_goes_on(endless: Path, tmp_path: Path) -> None:
    """As under `nohup`, which leaves the signal ignored."""
    ignoring = CALL.replace("SIG_DFL", "SIG_IGN")
    with started(tmp_path, "run", endless, "-p", "x", *ENDLESS, call=ignoring) as process:
        some_text(process)
        process.send_signal(signal.SIGHUP)
        some_text(process)
        interrupt(process)
    assert process.returncode == 130


@pytest.mark.parametrize("place", ["while loading", "while writing"])
def test_ctrl_c_at_a_known_place(
    place: str, endless: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While writing, JSON says what there is; while loading, there is nothing to say."""
    where, name, calls = {
        "while loading": (ExpertStore, "put", 5),
        "while writing": (Sampler, "sample", 3),
    }[place]
    whole, left = getattr(where, name), iter(range(calls))

    def interrupted(*args: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return whole(*args)

    monkeypatch.setattr(where, name, interrupted)
    words = ["moesaic", "run", str(endless), "-p", "x", *map(str, ENDLESS), "--json"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as caught:
        main()
    streams = capsys.readouterr()
    assert caught.value.code == 130
    assert streams.err.splitlines()[-1] == "interrupted"
    if place == "while loading":
        assert streams.out == ""
    else:
        (output,) = json.loads(streams.out)["answers"]
        assert output["finish_reason"] == "cancelled"
        assert len(output["tokens"]) == calls


def test_a_closed_pipe_ends_a_run_quietly(endless: Path, tmp_path: Path) -> None:
    with started(tmp_path, "run", endless, "-p", "x", *ENDLESS) as process:
        some_text(process)
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read().decode()
        process.wait(SOON_S)
    assert process.returncode == 1
    assert said.count("\n") == 1
    assert said.startswith("no accelerator: ")


def test_ctrl_c_ends_an_answer_but_not_the_conversation(endless: Path, tmp_path: Path) -> None:
    words = ("chat", endless, *ENDLESS, "--max-model-len", LONG)
    with started(tmp_path, *words) as process:
        assert process.stdin is not None
        process.stdin.write(b"Hello\n")
        process.stdin.flush()
        shown = some_text(process)
        process.send_signal(signal.SIGINT)
        process.stdin.write(b"/save talk.json\n")
        out, err = process.communicate(timeout=SOON_S)
    assert process.returncode == 0, err
    assert b"(interrupted)" in err
    said = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert [message["role"] for message in said] == ["user", "assistant"]
    assert said[1]["content"].startswith((shown + out).decode()[:20])


def test_a_terminal_has_a_prompt_and_keys(endless: Path, tmp_path: Path) -> None:
    """Ctrl-C at the prompt and in an answer, then Ctrl-D, as a terminal sends them."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        words = [sys.executable, "-c", CALL, "chat", str(endless), *map(str, ENDLESS)]
        os.execv(sys.executable, words)
    guard = Timer(SOON_S, os.kill, (pid, signal.SIGKILL))
    guard.start()
    seen = b""

    def until(expected: bytes) -> None:
        nonlocal seen
        while expected not in seen:
            seen += os.read(terminal, 1)
        seen = b""

    try:
        until(b"> ")
        sleep(0.5)  # a prompt is shown a moment before keys are listened to
        os.write(terminal, b"\x03")
        until(b"/quit or Ctrl-D leaves")
        until(b"> ")
        os.write(terminal, b"Hello\n")
        until(b"Hello\r\n")
        while len(seen) < 50:
            seen += os.read(terminal, 1)
        os.write(terminal, b"\x03")
        until(b"(interrupted)\r\n")
        until(b"> ")
        os.write(terminal, b"\x04")
        _, status = os.waitpid(pid, 0)
    finally:
        guard.cancel()
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    assert list(tmp_path.iterdir()) == []
