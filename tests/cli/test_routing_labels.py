"""Does every table and picture of a reproduction say whose routing it is about?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moesaic.cli.study import (
    reproduce,
    reproduce_trimoe,
    reproduce_trimoe_pictures,
    reproduction_rows,
)
from moesaic.cli.study.reproduction_rows import named, titled
from moesaic.reproductions.row import Row

MADE = "simulator on trimoe-paper, synthetic routing, batch 512"
RECORDED = "simulator on trimoe-paper, real routing, batch 512"


def row(name: str, conditions: str = MADE, paper: float | None = 2.0) -> Row:
    return Row(name, "a claim", paper, 1.5, "x", conditions, "moesaic ...")


def test_titles_name_what_the_rows_replay() -> None:
    both = [row("a/1"), row("b/1", RECORDED)]
    assert titled("T", both[:1]) == "T (synthetic routing)"
    assert titled("T", both[1:]) == "T (real routing)"
    assert titled("T", both) == "T (synthetic and real routing)"
    assert titled("T", [row("c", "one expert alone")]) == "T"
    assert named("T", both, "b/") == "T (real routing)"


def test_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    titles: list[str] = []

    def note(title: str, *rest: Any) -> None:
        titles.append(title)

    for module in (reproduce, reproduce_trimoe):
        monkeypatch.setattr(module, "print_table", note)
    reproduce.print_rows(
        [row("ttft@h200"), row("fig9/olmoe/0.25/lru"), row("fig7/olmoe/128/0.25/moesaic")]
    )
    assert len(titles) == 3
    systems = ("enhanced-ktransformers", "monde", "trimoe", "tri-balanced")
    reproduce_trimoe.print_rows(
        [
            *(row(f"fig6/qwen/chat/512/{system}@own-share") for system in systems),
            row("fig9/ndp/2/trimoe@full"),
            row("sensitivity/a/trimoe", paper=None),
            row("beyond/a/trimoe", paper=None),
            row("check/a/trimoe", paper=None),
        ]
    )
    assert len(titles) == 3 + 6
    assert all(title.endswith("(synthetic routing)") for title in titles)


def test_pictures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[str] = []

    def note(figure: Any, path: str) -> None:
        drawn.append(figure.get_suptitle() or figure.axes[0].get_title(loc="left"))

    monkeypatch.setattr(reproduce_trimoe_pictures, "save", note)
    model = next(iter(reproduce_trimoe_pictures.MODELS))
    rows = [
        *(row(f"fig3/{model}/chat/512/{kind}") for kind in ("hot", "warm", "cold")),
        row(f"fig6/{model}/chat/512/trimoe@own-share"),
        row(f"fig7/{model}/128@own-share"),
        row("fig8/chat/+cpu@own-share"),
        *(row(f"fig9/{what}/2/trimoe@{rule}") for what in ("ndp", "cpu")
          for rule in reproduction_rows.RULES),
        row("table3/trimoe/gpu/busy@own-share"),
        row("sensitivity/a/trimoe"),
    ]  # fmt: skip
    figures = reproduce_trimoe.draw(str(tmp_path), "png", rows)
    assert len(figures) == len(drawn) >= 6
    titles = [" ".join(title.split()) for title in drawn]  # long ones have several lines
    assert all(title.endswith("(synthetic routing)") for title in titles), drawn
