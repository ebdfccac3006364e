"""Do the examples of a system service and of a container start the server that there is, and does
it end in order as the first process of a container?"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from servers import SOON_S, Server, children_of, engines_of

from moesaic.cli.run.serve import serve

EXAMPLES = Path(__file__).parents[2] / "examples" / "serving"
UNIT, CONTAINER = EXAMPLES / "moesaic.service", EXAMPLES / "Containerfile"


def unit_fields() -> dict[str, str]:
    lines = re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.M)
    assert len(dict(lines)) == len(lines), "each once"
    return dict(lines)


def instruction(name: str) -> str:
    """The last of this name in the file."""
    text = CONTAINER.read_text().replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", text, re.M)[-1]  # type: ignore[no-any-return]


def options_of(words: list[str]) -> dict[str, object]:
    """What the command line makes of them; an unknown option is an error."""
    program, command, *options = words
    assert (Path(program).name, command) == ("moesaic", "serve")
    return serve.make_context("serve", options).params


def test_the_service_starts_a_server_and_lets_it_drain() -> None:
    fields = unit_fields()
    asked = options_of(shlex.split(fields["ExecStart"]))
    assert asked["model"] == "/srv/models/model"
    assert asked["log"] == "json"
    assert isinstance(asked["drain"], float)
    assert asked["drain"] < float(fields["TimeoutStopSec"])
    assert fields["Type"] == "exec", "the server notifies nothing"
    assert asked["api_key_file"] == "${CREDENTIALS_DIRECTORY}/keys"
    assert fields["LoadCredential"].startswith("keys:")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_finds_no_mistake_in_the_service(tmp_path: Path) -> None:
    """The program of the example is not installed here; another one stands for it."""
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/moesaic/bin/moesaic", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert UNIT.name not in done.stderr, done.stderr


def test_the_container_starts_a_server_as_a_user() -> None:
    words = json.loads(instruction("ENTRYPOINT")) + json.loads(instruction("CMD"))
    asked = options_of(words)
    assert (asked["model"], asked["address"]) == ("/model", "0.0.0.0")
    assert instruction("EXPOSE") == str(asked["port"])
    assert instruction("STOPSIGNAL") == "SIGTERM"
    assert instruction("USER") == "moesaic"
    assert "useradd --system --create-home --uid 10001 moesaic" in instruction("RUN")


def test_the_health_check_of_the_container_asks_the_server(shared: Server) -> None:
    _, _, words = instruction("HEALTHCHECK").partition("CMD ")
    program, flag, code = json.loads(words)
    assert (Path(program).name, flag) == ("python", "-c")
    for port, status in ((shared.port, 0), (1, 1)):
        asked = code.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
        done = subprocess.run([sys.executable, "-c", asked], capture_output=True, check=False)
        assert done.returncode == status


UNSHARE = ("unshare", "--pid", "--fork", "--kill-child")


def can_unshare() -> bool:
    try:
        return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not can_unshare(), reason="no process namespace may be made here")
def test_the_first_process_of_a_namespace_ends_in_order() -> None:
    """The system ignores signals for it that it does not handle itself."""
    made = Server("--drain", 1, under=UNSHARE)
    try:
        (first,) = children_of(made.process.pid)
        with open(f"/proc/{first}/status") as status:
            (ids,) = re.findall(r"^NSpid:\s+(.*)$", status.read(), re.M)
        assert ids.split()[-1] == "1"
        assert len(engines_of(first)) == 1
        assert made.json("/v1/completions", {"prompt": "Once", "max_tokens": 2})["choices"]
        subprocess.run(["kill", f"-{signal.SIGTERM.value}", str(first)], check=True)
        assert made.process.wait(SOON_S) == 0, made.lines
    finally:
        made.kill()
