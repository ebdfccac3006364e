"""Requests that wait for a slot: who is next.

A higher priority comes first. Among equals the client that was served least does, and its requests
in order of arrival: so a client with a thousand requests does not hold up one with a single one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from moesaic.core.errors import Overloaded
from moesaic.engine.request import Request

_READ, _WRITTEN = 1, 2  # what a token of a prompt and a generated one count


class WaitingRequests:
    """`most_requests`, `most_tokens`: more are refused; None: any number may wait."""

    def __init__(self, most_requests: int | None = None, most_tokens: int | None = None) -> None:
        self._most_requests, self._most_tokens = most_requests, most_tokens
        # By priority and client; of each request how many tokens it brings.
        self._queues: dict[int, dict[str, dict[Request, int]]] = {}
        self._served: dict[str, int] = {}
        self._count = self.tokens = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        """In the order in which they would run if each were as long as the others."""
        for priority in sorted(self._queues, reverse=True):
            clients = self._queues[priority]
            queues = {client: iter([*queue]) for client, queue in clients.items()}
            order = sorted(queues, key=lambda client: self._served.get(client, 0))
            while order:
                for client in [*order]:
                    request = next(queues[client], None)
                    if request is None:
                        order.remove(client)
                    else:
                        yield request

    def __contains__(self, request: Request) -> bool:
        return request in self._queues.get(request.priority, {}).get(request.client, {})

    def check(self, request: Request) -> None:
        """Refuses a request for which the queue has no room."""
        tokens = self.tokens + request.pending_tokens
        if self._most_requests is not None and self._count >= self._most_requests:
            limit, name = f"{self._most_requests} requests", "max_queue"
        elif self._most_tokens is not None and self._count and tokens > self._most_tokens:
            limit, name = f"{self._most_tokens} tokens", "max_queue_tokens"
        else:
            return
        raise Overloaded(
            f"a request of {len(request.prompt)} tokens was refused: {self._count} requests with "
            f"{self.tokens} tokens wait, and {limit} may ({name}). Ask again later"
        )

    def add(self, request: Request, first: bool = False) -> None:
        """`first`: before the others of its client, since it was running."""
        queue = self._queues.setdefault(request.priority, {}).setdefault(request.client, {})
        if not queue:
            self._catch_up(request.client)
        others = {**queue} if first else {}
        if first:
            queue.clear()
        queue.update({request: request.pending_tokens, **others})
        self._count += 1
        self.tokens += request.pending_tokens

    def remove(self, request: Request) -> None:
        clients = self._queues[request.priority]
        self.tokens -= clients[request.client].pop(request)
        if not clients[request.client]:
            del clients[request.client]
        if not clients:
            del self._queues[request.priority]
        self._count -= 1

    def clear(self) -> list[Request]:
        """Returns those that waited."""
        ended = [*self]
        self._queues.clear()
        self._count = self.tokens = 0
        return ended

    def serve(self, client: str, read: int = 0, written: int = 0) -> None:
        """A step has computed so many tokens for it."""
        self._served[client] = self._served.get(client, 0) + _READ * read + _WRITTEN * written

    def forget_all_but(self, running: Collection[str]) -> None:
        """These clients have requests that run. What others were served does not matter any more,
        unless they wait."""
        known = {*running, *self._clients()}
        if len(self._served) > len(known):
            self._served = {name: count for name, count in self._served.items() if name in known}

    def _catch_up(self, client: str) -> None:
        """A client that begins to wait is not owed what it did not ask for."""
        least = min((self._served.get(each, 0) for each in self._clients()), default=0)
        self._served[client] = max(self._served.get(client, 0), least)

    def _clients(self) -> set[str]:
        return {
            client
            for clients in self._queues.values()
            for client, queue in clients.items()
            if queue
        }
