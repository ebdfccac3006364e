"""Do agents that are installed work with the server, unchanged, from the question over their own
tools to the answer?

They are looked for in the folder that MOESAIC_AGENTS names, where npm has installed them:
    npm install --prefix FOLDER @openai/codex @anthropic-ai/claude-code opencode-ai
They run in a directory and with a home of their own, and reach nothing but the server."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from family_templates import answer
from scripted import NAME, InstantEngine, ScriptedServer, scripted_server

FOLDER = os.environ.get("MOESAIC_AGENTS")
QUESTION = "Which word is in note.txt?"
WORD = "zanzibar-7261"
AGAIN = "Is that a place?"
LIMIT_S = 120
CONTEXT = 131_072
# Where the packages have the programs, also where npm has run no script of theirs.
PROGRAMS = {
    "codex": "**/@openai/codex-*/vendor/*/bin/codex",
    "claude": "**/@anthropic-ai/claude-code-*/claude",
    "opencode": "**/opencode-*/bin/opencode",
}


def program(name: str) -> Path:
    if FOLDER is None:
        pytest.skip("MOESAIC_AGENTS names no folder in which npm has installed agents")
    found = sorted(Path(FOLDER).glob(PROGRAMS[name]))
    for each in found:
        if subprocess.run([each, "--version"], capture_output=True, check=False).returncode == 0:
            return each
    pytest.skip(f"there is no {name} in {FOLDER} that runs here")


class Home:
    """A directory to work in, and a home."""

    def __init__(self, folder: Path, address: str) -> None:
        self.work, self.home, self.address = folder / "work", folder / "home", address
        for each in (self.work, self.home):
            each.mkdir()
        (self.work / "note.txt").write_text(f"The word is {WORD}.\n")

    def run(self, *command: object, **variables: str) -> str:
        nowhere = "http://127.0.0.1:9"
        local = "127.0.0.1,localhost"
        done = subprocess.run(
            [*map(str, command)],
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.home),
                "http_proxy": nowhere,
                "https_proxy": nowhere,
                "no_proxy": local,
                "NO_PROXY": local,
                **variables,
            },
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module", params=["qwen3", "qwen3.5", "harmony", "deepseek", "mistral"])
def family(request: pytest.FixtureRequest) -> str:
    if FOLDER is None:
        pytest.skip("MOESAIC_AGENTS names no folder in which npm has installed agents")
    return str(request.param)


@pytest.fixture(scope="module")
def scripted(family: str) -> Iterator[ScriptedServer]:
    with scripted_server(family, CONTEXT, kind=InstantEngine) as made:
        yield made


@pytest.fixture
def home(tmp_path: Path, scripted: ScriptedServer) -> Home:
    scripted.forget()
    return Home(tmp_path, scripted.address)


def script(scripted: ScriptedServer, family: str, tool: str, arguments: dict[str, Any]) -> None:
    """The model looks at the file, says the word, and answers another question. All else that
    agents ask (a title) it answers with a word."""
    answers = {
        QUESTION: answer(family, "I read the file.", "I look.", (tool, arguments)),
        WORD: answer(family, "There it is.", "The word is zanzibar."),
        AGAIN: answer(family, "I know it.", "It is an island."),
    }
    scripted.answer_to(answers, answer(family, "Hm.", "Words"))


def check(scripted: ScriptedServer, path: str) -> None:
    """Nothing was refused, and each turn goes on where the turn before has ended."""
    assert {each.path for each in scripted.received if each.method == "POST"} == {path}
    assert all(each.status == 200 for each in scripted.received if each.method == "POST")
    texts = [
        scripted.tokenizer.decode(each.prompt, skip_special=False)
        for each in scripted.engine.exchanges
    ]
    first = max((text for text in texts if WORD not in text), key=len)
    second = next(text for text in texts if WORD in text)
    # A template may end a prompt otherwise than it writes an answer.
    head = first.rstrip().removesuffix("<think>").rstrip().removesuffix("<｜Assistant｜>")
    assert second.startswith(head)


def test_codex(scripted: ScriptedServer, family: str, home: Home) -> None:
    codex = program("codex")
    settings = home.home / "codex"
    settings.mkdir()
    (settings / "config.toml").write_text(f"""\
model = "{NAME}"
model_provider = "moesaic"
model_context_window = {CONTEXT}
check_for_update_on_startup = false

[model_providers.moesaic]
name = "Moesaic"
base_url = "{scripted.address}/v1"
wire_api = "responses"

[analytics]
enabled = false
""")
    script(scripted, family, "exec_command", {"cmd": "cat note.txt"})
    ask = (codex, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    said = home.run(*ask, QUESTION, CODEX_HOME=str(settings))
    assert "The word is zanzibar." in said
    check(scripted, "/v1/responses")
    assert "It is an island." in home.run(*ask, "resume", "--last", AGAIN, CODEX_HOME=str(settings))


def test_claude_code(scripted: ScriptedServer, family: str, home: Home) -> None:
    claude = program("claude")
    variables = {
        "ANTHROPIC_BASE_URL": scripted.address,
        "ANTHROPIC_AUTH_TOKEN": "unused",
        "ANTHROPIC_MODEL": NAME,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": NAME,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    script(scripted, family, "Read", {"file_path": str(home.work / "note.txt")})
    assert "The word is zanzibar." in home.run(claude, "-p", QUESTION, **variables)
    check(scripted, "/v1/messages")
    assert "It is an island." in home.run(claude, "-c", "-p", AGAIN, **variables)


def test_opencode(scripted: ScriptedServer, family: str, home: Home) -> None:
    opencode = program("opencode")
    options = {"baseURL": f"{scripted.address}/v1", "apiKey": "unused"}
    limit = {"context": CONTEXT, "output": 8192}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": options,
        "models": {NAME: {"limit": limit}},
    }
    (home.work / "opencode.json").write_text(
        json.dumps(
            {
                "model": f"moesaic/{NAME}",
                "small_model": f"moesaic/{NAME}",
                "provider": {"moesaic": provider},
                "autoupdate": False,
                "share": "disabled",
            }
        )
    )
    script(scripted, family, "read", {"filePath": str(home.work / "note.txt")})
    variables = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"}
    assert "The word is zanzibar." in home.run(opencode, "run", QUESTION, **variables)
    check(scripted, "/v1/chat/completions")
    assert "It is an island." in home.run(opencode, "run", "-c", AGAIN, **variables)
