"""The model card, written from what was measured: text in card.md, figures from a run's files.

python -m training.card MODEL --run FOLDER --check FILE --prepared FOLDER --eval FILE ...
    --questions FILE

MODEL gets README.md and expert-load.png; --docs gets the same text, with the picture's place as
seen from there.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from moesaic.cli.shared.pictures import INK, new_figure, save
from moesaic.core.files import whole_file
from moesaic.lab.evaluation.scores import wilson
from training.command import run_command
from training.problems.catalog import templates
from training.prose_rows import HELD_OUT_PROSE, TRAINING_PROSE
from training.token_file import read_tokens

TEXT, PICTURE = Path(__file__).with_name("card.md"), "expert-load.png"
_SPLITS = {"held_out_numbers": "unseen numbers", "held_out_templates": "unseen templates"}


def card(facts: Mapping[str, str], picture: str) -> str:
    return TEXT.read_text(encoding="utf-8").format(**facts, picture=picture)


def facts(
    summary: Mapping[str, Any],
    check: Mapping[str, Any],
    own: Sequence[Mapping[str, Any]],
    fresh: Mapping[str, Any],
    prepared: Path,
) -> dict[str, str]:
    """`own` is what some `moesaic eval --json` said, and `fresh` what it said of its questions:
    what a reader can run again."""
    recipe = summary["recipe"]
    shape, data, learning = recipe["shape"], recipe["data"], recipe["learning"]
    prose = len(read_tokens(prepared / TRAINING_PROSE))
    shares = [share for layer in check["token_shares"] for share in layer]
    return {
        **{name: str(value) for part in (shape, data, learning) for name, value in part.items()},
        "weights": f"{summary['parameters'] / 1e6:.1f}",
        "active": f"{_active(summary['parameters'], shape) / 1e6:.1f}",
        "prose_tokens": f"{prose / 1e6:.1f}",
        "held_out_tokens": f"{len(read_tokens(prepared / HELD_OUT_PROSE)) / 1e6:.2f}",
        "readings": f"{_prose_read(summary, data) / prose:.1f}",
        "problem_tokens": f"{(summary['tokens'] - _prose_read(summary, data)) / 1e6:,.0f}",
        "templates": str(sum(not template.held_out for template in templates())),
        "steps": f"{summary['steps']:,}",
        "tokens": f"{summary['tokens'] / 1e6:,.0f}",
        "minutes": f"{summary['training_seconds'] / 60:.1f}",
        "device": summary["device"],
        "problems": str(check["problems"]),
        "scores": "\n".join(_score_rows(check)),
        "least_lost": f"{min(_points_lost(check)):.1f}",
        "most_lost": f"{max(_points_lost(check)):.1f}",
        "kinds": "\n".join(_kind_rows(check)),
        "own_scores": "\n".join(_own_rows(own)),
        "questions": "\n".join(_question_rows(fresh)),
        "questions_command": _command(fresh),
        "perplexity": str(check["losses"]["prose_perplexity"]),
        "least_share": f"{min(shares):.1%}",
        "largest_share": f"{max(shares):.1%}",
        "even_share": f"{shape['top_k'] / shape['experts']:.1%}",
        "continuations": "\n\n".join(_continuations(check["continuations"])),
    }


def _active(parameters: int, shape: Mapping[str, Any]) -> int:
    """Weights that compute a token: all but the experts at rest. The embedding counts whole, for it
    is the output layer, too."""
    resting = shape["experts"] - shape["top_k"]
    expert = 3 * shape["hidden"] * shape["expert_width"]
    return int(parameters - shape["layers"] * resting * expert)


def _prose_read(summary: Mapping[str, Any], data: Mapping[str, Any]) -> int:
    """Tokens of prose that training saw, every reading counted."""
    return int(summary["tokens"] * round(data["rows"] * data["prose_share"]) / data["rows"])


def _points_lost(check: Mapping[str, Any]) -> list[float]:
    """By half of the experts, of every form and split."""
    every = [each for splits in check["exact_match"].values() for each in splits.values()]
    return [100 * (each["full"] - each["half"]) for each in every]


def _score_rows(check: Mapping[str, Any]) -> Iterator[str]:
    for form, splits in check["exact_match"].items():
        for split, words in _SPLITS.items():
            full, half = splits[split]["full"], splits[split]["half"]
            spread = interval(full, check["problems"])
            lost = f"{100 * (full - half):.1f}"
            yield f"| {words}, {form} | {full:.1%} ({spread}) | {half:.1%} | {lost} |"


def interval(share: float, count: int) -> str:
    low, high = wilson(round(share * count), count)
    return f"{100 * low:.1f} to {100 * high:.1f}"


def _kind_rows(check: Mapping[str, Any]) -> Iterator[str]:
    chat = check["exact_match"]["chat"]
    for kind in chat["held_out_numbers"]["by_kind"]:
        cells = [chat[split]["by_kind"].get(kind, "none asked") for split in _SPLITS]
        yield f"| {kind} | {' | '.join(cells)} |"


def _own_rows(own: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for one in own:
        whole = {score["group"]: score for score in one["scores"] if not score["kind"]}
        cells = [_cell(whole[split]) for split in _SPLITS]
        yield f"| `{_command(one)}` | {' | '.join(cells)} |"


def _question_rows(fresh: Mapping[str, Any]) -> Iterator[str]:
    """All of them first, then kind by kind, the best first."""
    whole, *kinds = fresh["scores"]
    for score in (whole, *sorted(kinds, key=lambda score: -float(score["share"]))):
        name, spread = score["kind"] or "all", interval(score["share"], score["asked"])
        share = f"{score['right']} of {score['asked']} = {score['share']:.1%}"
        yield f"| {name} | {share} | {spread} |"


def _command(one: Mapping[str, Any]) -> str:
    return str(one["command"]).replace(" --json", "")


def _cell(score: Mapping[str, Any]) -> str:
    spread = interval(score["share"], score["asked"])
    return f"{score['right']} of {score['asked']} = {score['share']:.1%} ({spread})"


def _continuations(found: Sequence[Mapping[str, str]]) -> Iterator[str]:
    for number, one in enumerate(found, 1):
        prompt, text = (" ".join(one[part].split()) for part in ("prompt", "continuation"))
        apart = "" if one["continuation"][:1].strip() else " "  # a beginning may end inside a word
        yield f"{number}. **{prompt}**{apart}{text}"


def write_cards(model: Path, docs: Path, known: Mapping[str, str]) -> None:
    relative = os.path.relpath(model / PICTURE, docs.parent)
    for path, picture in ((model / "README.md", PICTURE), (docs, Path(relative).as_posix())):
        with whole_file(path) as stream:
            stream.write(card(known, picture).encode())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.card", description=__doc__)
    parser.add_argument("model", type=Path, help="folder that training.export made")
    parser.add_argument("--run", type=Path, required=True, help="folder of summary.json")
    parser.add_argument("--check", type=Path, required=True, help="what training.check --json gave")
    parser.add_argument(
        "--eval", type=Path, required=True, nargs="+", help="what moesaic eval --json gave"
    )
    parser.add_argument(
        "--questions", type=Path, required=True, help="what moesaic eval --task questions gave"
    )
    parser.add_argument("--prepared", type=Path, required=True, help="folder of the prose")
    parser.add_argument("--docs", type=Path, default=Path("docs/model-card.md"))
    options = parser.parse_args()
    summary, check, fresh, *own = (
        json.loads(path.read_text(encoding="utf-8"))
        for path in (options.run / "summary.json", options.check, options.questions, *options.eval)
    )
    draw_loads(check["token_shares"], summary["recipe"]["shape"]["top_k"], options.model / PICTURE)
    write_cards(options.model, options.docs, facts(summary, check, own, fresh, options.prepared))


if __name__ == "__main__":
    run_command(main)


# Every expert's share of the tokens, layer by layer, as a picture.


def draw_loads(shares: Sequence[Sequence[float]], top_k: int, path: Path) -> None:
    """Experts of a layer stand from the busiest to the idlest: their numbers mean nothing."""
    ordered = [sorted((100 * share for share in layer), reverse=True) for layer in shares]
    figure = new_figure(9, 3.4)
    axes = figure.add_subplot()
    picture = axes.imshow(ordered, cmap="viridis", vmin=0, aspect="auto")
    axes.set_xlabel("experts of a layer, from the busiest to the idlest", color=INK)
    axes.set_ylabel("layer", color=INK)
    axes.set_yticks(range(len(ordered)))
    even = 100 * top_k / len(ordered[0])
    axes.set_title(
        f"Share of the tokens that an expert computes (even: {even:.1f} %)", color=INK, loc="left"
    )
    for layer, values in enumerate(ordered):
        for place in (0, len(values) - 1):
            dark = values[place] < 0.6 * max(max(row) for row in ordered)
            axes.text(
                place,
                layer,
                f"{values[place]:.0f}",
                ha="center",
                va="center",
                fontsize=7,
                color="white" if dark else INK,
            )
    figure.colorbar(picture, ax=axes, label="% of tokens")
    save(figure, str(path))
