"""A hub on this machine: as much of its protocol as fetching a model needs, in threads of the test.

Files above `LARGE` bytes are stored as the hub stores weights: the address of the file leads to
another one, with size and checksum in the first answer's headers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

LARGE = 4096
TOKEN = "hf_test"
_API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^?]+))?")
_FILE = re.compile(r"/(?P<cdn>cdn/)?(?P<repo>[^/]+/[^/]+)/resolve/(?P<rev>[^/]+)/(?P<path>.+)")


@dataclass
class Repo:
    files: dict[str, bytes]
    gated: bool = False
    tags: dict[str, dict[str, bytes]] = field(default_factory=dict)  # further revisions

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """Commit and files of a branch, a tag or a commit."""
        for name, files in {"main": self.files, **self.tags}.items():
            commit = sha1(b"".join(p.encode() + files[p] for p in sorted(files))).hexdigest()
            if revision in (name, commit):
                return commit, files
        return None


@dataclass
class Hub:
    address: str
    cache: Path
    repos: dict[str, Repo] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)  # with the range
    cut_after: int | None = None  # bytes of a large file, once: the connection then ends
    status: int | None = None  # of every answer, where it is not to work

    def fetched(self) -> set[str]:
        """Paths of the files whose content was asked for."""
        found = (_FILE.fullmatch(path) for method, path, _ in self.requests if method == "GET")
        return {match["path"] for match in found if match is not None}


@contextmanager
def serving(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub without models, and `huggingface_hub` set to use it and an empty cache."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    hub = Hub(f"http://127.0.0.1:{server.server_port}", cache)
    server.hub = hub  # type: ignore[attr-defined]
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    _use(hub.address, cache, monkeypatch)
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _use(address: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    settings: dict[str, Any] = {
        "ENDPOINT": address,
        "HUGGINGFACE_CO_URL_TEMPLATE": template,
        "HF_URL_HOSTS": frozenset({"127.0.0.1"}),
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_OFFLINE": False,
        "HF_TOKEN_PATH": str(cache / "no-token"),
    }
    for name, value in settings.items():
        monkeypatch.setattr(constants, name, value, raising=False)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _hub(self) -> Hub:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        return hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, path = self._hub, unquote(urlsplit(self.path).path)
        hub.requests.append((self.command, path, self.headers.get("Range")))
        if hub.status is not None:
            self._send(hub.status, b"")
        elif (asked := _API.fullmatch(path)) is not None:
            self._api(*asked.groups())
        elif (file := _FILE.fullmatch(path)) is not None:
            self._file(file["repo"], file["rev"], file["path"], file["cdn"] is not None)
        else:
            self._send(404, b"")

    def _found(self, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """Answers where there is nothing to find."""
        repo = self._hub.repos.get(name)
        if repo is None:
            self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
            return None
        found = repo.at(revision)
        if found is None:
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        return found

    def _api(self, name: str, what: str | None, revision: str | None) -> None:
        found = self._found(name, revision or "main")
        if found is None:
            return
        commit, files = found
        entries = [_entry(path, content) for path, content in files.items()]
        if what == "tree":
            content: object = [{"type": "file", "path": e.pop("rfilename"), **e} for e in entries]
        else:
            content = {"id": name, "modelId": name, "sha": commit, "siblings": entries}
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _file(self, name: str, revision: str, path: str, cdn: bool) -> None:
        found = self._found(name, revision)
        if found is None:
            return
        commit, files = found
        if self._hub.repos[name].gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._send(403, b"", {"X-Error-Code": "GatedRepo"})
            return
        if path not in files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        content = files[path]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_oid(content)}"', "Accept-Ranges": "bytes"}
        if len(content) > LARGE and not cdn:
            headers |= {"X-Linked-Size": str(len(content)), "X-Linked-Etag": headers["ETag"]}
            headers["Location"] = f"{self._hub.address}/cdn{self.path}"
            self._send(302, b"", headers)
            return
        self._content(content, headers, cut=cdn)

    def _content(self, content: bytes, headers: dict[str, str], cut: bool) -> None:
        start = 0
        if (asked := self.headers.get("Range")) is not None:
            start = int(asked.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if cut and self._hub.cut_after is not None and self.command == "GET":
            limit, self._hub.cut_after = self._hub.cut_after, None
            self._send(206 if start else 200, content[start:], headers, limit)
            self.close_connection = True
        else:
            self._send(206 if start else 200, content[start:], headers)

    def _send(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        limit: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:limit])


def _oid(content: bytes) -> str:
    if len(content) > LARGE:
        return sha256(content).hexdigest()
    return sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _entry(path: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"rfilename": path, "size": len(content), "blobId": "0" * 40}
    entry["oid"] = sha1(content).hexdigest()
    if len(content) > LARGE:
        entry["lfs"] = {"size": len(content), "sha256": _oid(content), "pointerSize": 134}
        entry["lfs"]["oid"] = _oid(content)
    return entry
