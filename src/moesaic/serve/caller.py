"""Who asks for an answer, and the record of what it costs."""

from __future__ import annotations

from typing import NamedTuple

from starlette.requests import Request

from moesaic.engine.request import Sender
from moesaic.serve.client_name import client_name
from moesaic.serve.request_record import RequestRecord, record_of


class Caller(NamedTuple):
    sender: Sender  # as the engine's queue knows it
    record: RequestRecord


def caller_of(request: Request, user: str | None) -> Caller:
    """The client of an HTTP request; `user` is that field of its body."""
    sender, record = Sender(client_name(request, user)), record_of(request)
    record.client = sender.client
    return Caller(sender, record)
