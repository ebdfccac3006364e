"""Whose a request of the Messages API is, from `metadata.user_id`.

Claude Code writes more than a user there, as JSON or as words between underscores: its device, an
account where the user has one, and the session. Sessions of one user are one client for the queue,
so that ten of them have no ten shares of it."""

from __future__ import annotations

import re

import msgspec

_WORDS = re.compile(r"user_(\w+?)_account_([\w-]*?)_session_[\w-]+", re.ASCII)
_FIELDS = ("account_uuid", "account_id", "user_id", "device_id")  # the first that says something


def account(user_id: str | None) -> str | None:
    """The account, or the user or device without one; any other text is what it is."""
    if user_id is None:
        return None
    if (words := _WORDS.fullmatch(user_id)) is not None:
        return words[2] or words[1]
    try:
        fields = msgspec.json.decode(user_id, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return user_id
    named = (fields.get(name) for name in _FIELDS)
    return next((each for each in named if isinstance(each, str) and each), user_id)
