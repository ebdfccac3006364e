"""The metrics of several replicas as one text: each sample has the label `replica`."""

from __future__ import annotations

from collections.abc import Mapping

_RESPONSES = "moesaic_http_responses_total"  # the front counts those that clients got


def merged(texts: Mapping[str, str]) -> str:
    """`texts`: by replica, what its /metrics says."""
    heads: dict[str, list[str]] = {}  # by metric, in the order of the first replica
    samples: dict[str, list[str]] = {}
    for replica, text in texts.items():
        metric = ""
        for line in text.splitlines():
            if line.startswith("# "):
                _, word, metric, _ = line.split(" ", 3)
                kept = heads.setdefault(metric, [])
                if len(kept) < 2 and not any(each.split(" ")[1] == word for each in kept):
                    kept.append(line)
            elif line:
                samples.setdefault(metric, []).append(_labelled(line, replica))
    return "".join(
        f"{line}\n"
        for metric, head in heads.items()
        if metric != _RESPONSES
        for line in (*head, *samples.get(metric, ()))
    )


def _labelled(sample: str, replica: str) -> str:
    name, value = sample.rsplit(" ", 1)
    label = f'replica="{replica}"'
    if name.endswith("}"):
        return f"{name[:-1]},{label}}} {value}"
    return f"{name}{{{label}}} {value}"
