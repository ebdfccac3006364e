"""Is the page served whole, from this server alone, and without a key?"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx2", reason="comes with the clients that tests ask with")

from starlette.testclient import TestClient

from moesaic.hardware.machine_reader import load_machine
from moesaic.serve.app import make_app
from moesaic.serve.metrics import ServerMetrics
from moesaic.serve.page_files import page_files
from moesaic.serve.server_settings import ServerSettings

FOLDER = Path(str(files("moesaic.serve") / "page"))
SOURCES = {path.relative_to(FOLDER): path for path in FOLDER.rglob("*") if path.is_file()}


def client(**settings: Any) -> TestClient:
    """Before a server without an engine."""
    service = SimpleNamespace(settings=ServerSettings(**settings), metrics=ServerMetrics())
    app = make_app(cast(Any, service), lambda request: None)
    return TestClient(app, base_url="http://localhost")


def test_every_file_of_the_folder_is_served() -> None:
    assert set(page_files()) == {name.as_posix() for name in SOURCES}
    asking = client()
    kinds = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    for name, path in SOURCES.items():
        response = asking.get(f"/page/{name.as_posix()}")
        assert response.status_code == 200
        assert response.content == path.read_bytes()
        wanted = kinds.get(path.suffix, "text/html")
        assert response.headers["content-type"].split(";")[0] == wanted


def test_the_page_is_not_loaded_twice_and_allows_nothing_from_elsewhere() -> None:
    asking = client()
    first = asking.get("/")
    assert "<title>Moesaic</title>" in first.text
    assert "default-src 'self'" in first.headers["content-security-policy"]
    assert "unsafe" not in first.headers["content-security-policy"]
    assert first.headers["x-content-type-options"] == "nosniff"
    assert first.headers["cache-control"] == "no-cache"
    again = asking.get("/", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    other = asking.get("/page/main.js", headers={"if-none-match": first.headers["etag"]})
    assert other.status_code == 200
    assert asking.head("/").content == b""


def test_the_page_needs_no_key_and_its_data_does() -> None:
    asking = client(api_keys=("secret",))
    assert asking.get("/").status_code == 200
    assert asking.get("/page/main.js").status_code == 200
    for path in ("/props", "/v1/models", "/slots", "/pages", "/page"):
        assert asking.get(path).status_code == 401
    assert asking.post("/v1/chat/completions", json={}).status_code == 401


@pytest.mark.parametrize(
    "name", ["none.js", "../app.py", "%2e%2e/app.py", "", "base", "index.html/"]
)
def test_what_is_no_file_of_the_page_is_not_there(name: str) -> None:
    response = client().get(f"/page/{name}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


def test_without_the_page_there_is_none() -> None:
    assert client(page=False).get("/").status_code == 404
    assert client(page=False, api_keys=("secret",)).get("/").status_code == 401
    assert client(page=False).get("/page/main.js").status_code == 404


@pytest.mark.parametrize("name", sorted(SOURCES), ids=str)
def test_files_name_only_files_that_are_there(name: Path) -> None:
    """Imports, styles, scripts and pictures, all relative."""
    text = SOURCES[name].read_text()
    imports = re.findall(r"""^(?:import|export) .* from "([^"]+)";$""", text, re.M)
    for target in imports:
        assert (FOLDER / name.parent / target).resolve() in SOURCES.values(), target
    for target in (
        re.findall(r"""(?:href|src)="([^"#][^"]*)\"""", text) if name.suffix == ".html" else ()
    ):
        assert Path(target).relative_to("page") in SOURCES, target
    outside = set(re.findall(r"https?://[\w./-]+", text)) - {"http://www.w3.org/2000/svg"}
    assert not outside
    assert "url(" not in text, "a style loads nothing"
    for refused in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert refused not in text


@pytest.mark.parametrize("name", sorted(SOURCES), ids=str)
def test_files_of_the_page_are_small(name: Path) -> None:
    lines = SOURCES[name].read_text().splitlines()
    assert len(lines) <= 300
    if name.suffix == ".js":
        assert lines[0].startswith("// "), "a file says what it is"


def test_machines_that_the_page_names_are_known() -> None:
    text = (FOLDER / "insight" / "capture.js").read_text()
    block = text[text.index("const MACHINES") : text.index("];")]
    names = re.findall(r'^  \["([\w-]+)"', block, re.M)
    assert len(names) > 3
    for name in names:
        load_machine(name)
