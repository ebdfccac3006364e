"""Are mistakes in starting a server refused before weights are read?"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from command import refused

from moesaic.cli.run import serve


def test_a_port_in_use_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(monkeypatch, capsys, "serve", "--port", port)
    assert said == (
        f"error: port {port} of 127.0.0.1 is in use by another program: end that one, or choose "
        "another port with --port (0: any free one)\n"
    )


@pytest.mark.parametrize(
    ("option", "value", "what"),
    [
        ("--port", 70000, "must lie between 0 and 65535"),
        ("--host", "256.0.0.1", "'256.0.0.1' is no address of this machine"),
        ("--host", "192.0.2.1", "192.0.2.1"),
        ("--keep-alive-s", 0, "must be above 0"),
        ("--max-body-mb", -1, "must be above 0"),
        ("--drain", -1, "number of seconds from 0"),
        ("--max-queue", -1, "must be at least 0"),
        ("--max-prompt-tokens", 0, "must be at least 1"),
        ("--max-sequences", 0, "must be at least 1"),
        ("--api-key", " ", "an API key is empty"),
        ("--api-key-file", "/nonexistent", "--api-key-file '/nonexistent'"),
        ("--log", "xml", "xml"),
    ],
)
def test_an_impossible_option_is_named(
    option: str,
    value: object,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert what in refused(monkeypatch, capsys, "serve", option, value)


def test_a_file_without_keys_does_not_open_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "keys").write_text("\n")
    words = ("serve", "--api-key-file", tmp_path / "keys")
    assert "has no keys, and the server would be open" in refused(monkeypatch, capsys, *words)


def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    assert "pip install 'moesaic[serve]'" in refused(monkeypatch, capsys, "serve")
