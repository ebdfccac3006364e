"""Is one user of Claude Code one client, however many sessions there are?"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from scripted import NAME, InstantEngine, ScriptedServer, scripted_server
from servers import QUESTION, posted, until

from moesaic.serve.anthropic.account import account

DEVICE, ACCOUNT = "5f" * 32, "2f1f8a60-9d4b-4c7e-8f52-0a1b2c3d4e5f"


def as_json(session: str, of: str = ACCOUNT) -> str:
    return json.dumps({"device_id": DEVICE, "account_uuid": of, "session_id": session})


@pytest.mark.parametrize(
    ("user_id", "client"),
    [
        (as_json("one"), ACCOUNT),
        (as_json("two"), ACCOUNT),
        (as_json("one", of=""), DEVICE),
        (f"user_{DEVICE}_account_{ACCOUNT}_session_{ACCOUNT}", ACCOUNT),
        (f"user_{DEVICE}_account__session_{ACCOUNT}", DEVICE),
        ("ann", "ann"),
        ("user_ann", "user_ann"),
        ("user_ann_account_manager", "user_ann_account_manager"),
        ('{"session_id": "s"}', '{"session_id": "s"}'),
        ('{"account_uuid": 3, "device_id": ["x"]}', '{"account_uuid": 3, "device_id": ["x"]}'),
        ("3", "3"),
        ("[" * 10_000, "[" * 10_000),
        ('{"account_uuid": "a"', '{"account_uuid": "a"'),
        ("", ""),
        (None, None),
    ],
)
def test_the_account_is_found(user_id: str | None, client: str | None) -> None:
    assert account(user_id) == client


@pytest.fixture(scope="module")
def scripted() -> Iterator[ScriptedServer]:
    with scripted_server("qwen3", kind=InstantEngine) as made:
        yield made


def test_the_queue_and_the_log_have_the_account(
    scripted: ScriptedServer, capfd: pytest.CaptureFixture[str]
) -> None:
    body = {"model": NAME, "max_tokens": 10, "messages": QUESTION}
    for session in ("one", "two"):
        posted(
            f"{scripted.address}/v1/messages", body | {"metadata": {"user_id": as_json(session)}}
        )
    assert [each.client for each in scripted.engine.exchanges] == [ACCOUNT, ACCOUNT]
    lines: list[str] = []

    def logged() -> bool:  # a line follows its response
        lines.extend(capfd.readouterr().err.splitlines())
        return len(lines) == 2

    until(logged)
    assert [json.loads(line)["client"] for line in lines] == [ACCOUNT, ACCOUNT]
