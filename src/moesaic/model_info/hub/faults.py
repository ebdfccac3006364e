"""What goes wrong between this machine and the hub, each in one line that says what to do."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from moesaic.core.errors import CannotFetch, MissingExtra, printable
from moesaic.model_info.hub.hub_id import HubId

_TRANSPORT = ("httpx", "httpcore", "requests", "urllib3")  # modules whose errors are the network's
_LOG_IN = "log in with `hf auth login` or set HF_TOKEN"


@contextmanager
def reported(hub_id: HubId) -> Iterator[None]:
    """Errors of `huggingface_hub`, whatever it calls them, become CannotFetch. Its warnings are
    not shown: they repeat the error for every attempt."""
    try:
        with _without_warnings():
            yield
    except ImportError:
        raise MissingExtra("fetching a model by its id", "engine") from None
    except Exception as error:
        said = _fault_text(hub_id, error)
        if said is None:
            raise
        raise CannotFetch(said) from None


@contextmanager
def _without_warnings() -> Iterator[None]:
    """A level that was lowered to see more, by HF_HUB_VERBOSITY for example, stays."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    if before in (logging.NOTSET, logging.WARNING):
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def _fault_text(hub_id: HubId, error: Exception) -> str | None:
    """None: an error of another kind."""
    from huggingface_hub import errors

    table: list[tuple[type[Exception], Callable[[HubId, Any], str | None]]] = [
        (errors.GatedRepoError, _gated),
        (errors.RepositoryNotFoundError, _unknown),  # of which the one before is a kind
        (errors.RevisionNotFoundError, _no_revision),
        (errors.OfflineModeIsEnabled, lambda hub_id, error: not_in_cache(hub_id)),
        (errors.LocalEntryNotFoundError, _not_here),
        (errors.EntryNotFoundError, _no_file),
        (errors.HfHubHTTPError, _answered),
        (errors.HFValidationError, _no_id),
    ]
    for kind, words in table:
        if isinstance(error, kind):
            return words(hub_id, error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of the cache {_cache()} is full: make room, or set HF_HOME"
    return _unreachable(hub_id, error)


def _gated(hub_id: HubId, error: Exception) -> str:
    whose = "with the account of your token" if _has_token() else f"then {_LOG_IN}"
    return f"{hub_id.repo} is gated: accept its terms at {endpoint()}/{hub_id.repo}, {whose}"


def _unknown(hub_id: HubId, error: Exception) -> str:
    private = "your token does not show it" if _has_token() else _LOG_IN
    return f"there is no model {hub_id.repo} at {endpoint()}; if it is private: {private}"


def _no_revision(hub_id: HubId, error: Exception) -> str:
    return (
        f"{hub_id.repo} has no revision {hub_id.revision!r}: give a branch, tag or commit listed "
        f"at {endpoint()}/{hub_id.repo}/commits/main"
    )


def _no_file(hub_id: HubId, error: Exception) -> str:
    return f"{hub_id.repo} has no config.json: is it a language model in Hugging Face layout?"


def _no_id(hub_id: HubId, error: Exception) -> str:
    return f"{hub_id.repo!r} is no id of a model: {_first_line(error)}"


def _not_here(hub_id: HubId, error: Exception) -> str | None:
    return not_in_cache(hub_id) if is_offline() else _unreachable(hub_id, error)


def _answered(hub_id: HubId, error: Exception) -> str:
    repo, hub = hub_id.repo, endpoint()
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return f"{hub} does not accept your token for {repo}: {_LOG_IN}"
    if status == 403:
        return f"{hub} refuses {repo} to your token (403): give it the right to read, or {_LOG_IN}"
    return f"{hub} answered with status {status} when asked for {repo}: try again later"


def _unreachable(hub_id: HubId, error: Exception) -> str | None:
    """The transport's errors, or what the library makes of them."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and len(causes) < 8:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    found = [each for each in causes if type(each).__module__.startswith(_TRANSPORT)]
    if not found and not isinstance(error, ConnectionError | TimeoutError):
        return None
    reason = _first_line(found[0] if found else error)
    return (
        f"cannot reach {endpoint()} to fetch {hub_id.repo} ({reason}): check the network, "
        "HF_ENDPOINT and proxy settings, or give a model directory"
    )


def _has_token() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None


def _first_line(error: BaseException) -> str:
    lines = printable(str(error)).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def not_in_cache(hub_id: HubId) -> str:
    return (
        f"{hub_id} is not, or not completely, in the cache {_cache()}, and "
        "HF_HUB_OFFLINE forbids fetching it: unset that, or copy the cache from a machine that has "
        "it"
    )


def _cache() -> str:
    from huggingface_hub import constants

    return str(constants.HF_HUB_CACHE)
