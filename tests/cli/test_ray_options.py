"""Are mistakes in what is asked of a cluster refused before one is started?"""

from __future__ import annotations

import pytest
from command import refused

from moesaic.cluster import ray_cluster


def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: None)
    for words in (
        ("serve", "--replicas", 2),
        ("compare", "--ray", "local", "--model", "olmoe-1b-7b", "--tokens", 8),
        ("reproduce", "hybrimoe", "--only", "fig9", "--ray", "local"),
    ):
        assert "pip install 'moesaic[ray]'" in refused(monkeypatch, capsys, *words)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("serve", "--ray", "local"), "--ray says where replicas run: add --replicas N"),
        (("serve", "--replicas", 0), "0"),
        (("reproduce", "hybrimoe", "--measured", "--ray", "local"), "measures this machine"),
    ],
)
def test_options_without_a_meaning_are_refused(
    words: tuple[object, ...],
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert what in refused(monkeypatch, capsys, *words)
