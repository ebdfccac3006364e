"""Is the model card the model's own, and the same wherever it is read?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from training.card import PICTURE, _continuations, _own_rows, card, draw_loads, facts, interval
from training.recipe import Recipe

from moesaic.models.bundled_model import default_model
from training import card as cards

DOCS = Path(__file__).parents[2] / "docs"
CARD = DOCS / "model-card.md"


def test_the_card_beside_the_weights_is_the_one_in_the_docs() -> None:
    model = default_model()
    assert (model / PICTURE).is_file()
    here = CARD.read_text(encoding="utf-8")
    seen_from_docs = f"../src/moesaic/models/data/{model.name}/{PICTURE}"
    assert (DOCS / seen_from_docs).is_file()
    assert here.count(seen_from_docs) == 1
    packaged = (model / "README.md").read_text(encoding="utf-8")
    assert packaged == here.replace(seen_from_docs, PICTURE)


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


def test_a_card_is_filled_from_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "read_tokens", lambda path: range(1_000_000))
    solved = {"full": 0.75, "half": 0.5, "by_kind": {"word": "3 of 4"}}
    splits = {"held_out_numbers": solved, "held_out_templates": solved | {"half": 0.4}}
    summary = {
        "recipe": Recipe().as_dict(),
        "parameters": Recipe().shape.parameters,
        "steps": 1234,
        "tokens": 5_000_000,
        "training_seconds": 90.0,
        "device": "some GPU",
    }
    check = {
        "problems": 4,
        "exact_match": {"chat": splits, "plain": splits},
        "losses": {"prose_perplexity": 12.5},
        "token_shares": [[0.25, 0.05]],
        "continuations": [{"prompt": "Once", "continuation": " upon a time"}],
    }
    score = {"kind": "", "right": 9, "asked": 20, "share": 0.45}
    kinds = [score | {"kind": "sums", "right": 1, "share": 0.1, "asked": 10}]
    kinds += [score | {"kind": "stories", "right": 8, "share": 0.8, "asked": 10}]
    fresh = {"command": "moesaic eval --task questions --json", "scores": [score, *kinds]}
    written = card(facts(summary, check, [], fresh, Path("prepared")), "loads.png")
    table = [line.split(" = ")[0] for line in written.splitlines() if " = " in line]
    assert table == ["| all | 9 of 20", "| stories | 8 of 10", "| sums | 1 of 10"]
    assert "`moesaic eval --task questions`, on" in written
    assert "1,234 steps of 128 rows" in written
    assert "1.5 minutes on one some GPU" in written
    assert "| unseen numbers, plain | 75.0% (30.1 to 95.4) | 50.0% | 25.0 |" in written
    assert "half of its experts costs this model 25.0 to 35.0 points" in written
    assert "5.0% to 25.0%, where 12.5% is even" in written
    assert "![expert load](loads.png)" in written
