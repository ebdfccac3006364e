"""Is the model card the model's own, and the same wherever it is read?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from training.card import PICTURE, _continuations, _own_rows, interval
from training.load_picture import draw_loads

from moesaic.models.bundled import default_model

DOCS = Path(__file__).parents[2] / "docs"
CARD = DOCS / "model-card.md"


def test_the_card_beside_the_weights_is_the_one_in_the_docs() -> None:
    model = default_model()
    assert (model / PICTURE).is_file()
    here = CARD.read_text(encoding="utf-8")
    seen_from_docs = f"../src/moesaic/models/data/{model.name}/{PICTURE}"
    assert (DOCS / seen_from_docs).is_file()
    assert here.count(seen_from_docs) == 1
    beside = (model / "README.md").read_text(encoding="utf-8")
    assert beside == here.replace(seen_from_docs, PICTURE)


def test_the_card_describes_the_model_that_is_there() -> None:
    config = json.loads((default_model() / "config.json").read_text(encoding="utf-8"))
    card = CARD.read_text(encoding="utf-8")
    experts, top_k = config["num_experts"], config["num_experts_per_tok"]
    assert (
        f"| {experts} per layer, {top_k} per token, inner width {config['intermediate_size']}"
        in card
    )
    assert f"| {config['num_hidden_layers']}, {config['hidden_size']};" in card


@pytest.mark.parametrize(
    ("share", "count", "said"),
    [(1.0, 250, "98.5 to 100.0"), (0.5, 100, "40.4 to 59.6"), (0.0, 10, "0.0 to 27.8")],
)
def test_intervals_are_in_percent(share: float, count: int, said: str) -> None:
    assert interval(share, count) == said


def test_a_word_cut_in_two_goes_on_without_a_space() -> None:
    cut = {"prompt": "It was unfort", "continuation": "unately\nlate."}
    whole = {"prompt": "It was", "continuation": " late."}
    assert list(_continuations([cut, whole])) == [
        "1. **It was unfort**unately late.",
        "2. **It was** late.",
    ]


def test_scores_stand_beside_the_command_that_gave_them() -> None:
    scores = [
        {"group": group, "kind": kind, "right": right, "asked": 10, "share": right / 10}
        for group, kind, right in (
            ("held_out_numbers", "", 8),
            ("held_out_numbers", "word", 3),
            ("held_out_templates", "", 5),
        )
    ]
    (row,) = _own_rows([{"command": "moesaic eval --limit 10 --json", "scores": scores}])
    assert row.startswith("| `moesaic eval --limit 10` | 8 of 10 = 80.0% (")
    assert "| 5 of 10 = 50.0% (" in row


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "loads.png"
    draw_loads([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2]], 1, path)
    assert path.read_bytes().startswith(b"\x89PNG")
