"""Snapshots of an engine that is not there, in the form of /insight: some experts are popular, the
popular ones are in GPU memory, and what is not goes to the CPU or over the link."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

KINDS = ("gpu", "cpu", "link")
WHY = {
    "gpu": "It is in GPU memory, and the GPU is free before the CPU would have ended.",
    "cpu": "It is in main memory; the CPU ends it 25 µs before a copy over the link would.",
    "link": "It is in main memory, the CPU is busy with others, and the link was free.",
}


@dataclass(frozen=True)
class Engine:
    name: str = "Qwen3-30B-A3B"
    layers: int = 48
    experts: int = 128
    top_k: int = 8
    sequences: int = 4
    cached: float = 0.35  # of the experts
    accelerated: bool = True
    explained: bool = True  # else reasons are asked for, one layer at a time

    def model(self) -> dict[str, Any]:
        gpu = {"kind": "cuda", "name": "NVIDIA RTX 4090"} if self.accelerated else None
        return {
            "name": self.name,
            "layers": self.layers,
            "experts": self.experts,
            "top_k": self.top_k,
            "shared_experts": False,
            "expert_bytes": 2_654_208,
            "executor": "captured" if self.accelerated else "cpu_step",
            "accelerator": gpu,
            "slots": int(self.layers * self.experts * self.cached) if gpu else 0,
            "policies": {"schedule": "balanced", "cache": "learned-speed"},
            "machine": "rtx4090-i9-13900k",
            "lanes": ["gpu", "cpu", "link"] if gpu else ["cpu"],
        }

    def snapshot(self, number: int) -> dict[str, Any]:
        draw = random.Random(number)
        resident = [self._resident(layer) for layer in range(self.layers)]
        layers = [self._layer(layer, set(resident[layer]), draw) for layer in range(self.layers)]
        hit = 0.62 + 0.1 * draw.random()
        return {
            "time_s": 100 + number / 2,
            "step": {
                "number": 1200 + 20 * number,
                "kind": "decode",
                "tokens": self.sequences,
                "sequences": self.sequences,
                "latency_us": sum(each["measured_us"] for each in layers),
            },
            "layers": layers,
            "resident": resident if self.accelerated else [],
            "lanes": self._lanes(number),
            "hits": {
                "window_steps": 64,
                "actual": hit if self.accelerated else None,
                "lru": hit - 0.09,
                "belady": hit + 0.14,
                **({} if self.accelerated else {"what_if_ratio": 0.25}),
            },
            "kv": self._kv(),
        }

    def layer(self, number: int, layer: int) -> dict[str, Any]:
        """One of them, with reasons."""
        found: dict[str, Any] = replace(self, explained=True).snapshot(number)["layers"][layer]
        return found

    def nothing_yet(self) -> dict[str, Any]:
        """A snapshot before the first step."""
        return {
            "time_s": 1.0,
            "step": None,
            "layers": [],
            "resident": [[] for _ in range(self.layers)] if self.accelerated else [],
            "lanes": [],
            "hits": {"window_steps": 0, "actual": None, "lru": None, "belady": None},
            "kv": {
                "blocks": 512,
                "used": 0,
                "kept": 0,
                "shared": 0,
                "block_tokens": 64,
                "conversations": [],
            },
        }

    def _popular(self, layer: int) -> list[int]:
        """All experts of a layer, the popular ones first."""
        order = list(range(self.experts))
        random.Random(layer).shuffle(order)
        return order

    def _resident(self, layer: int) -> list[int]:
        return sorted(self._popular(layer)[: int(self.experts * self.cached)])

    def _layer(self, layer: int, resident: set[int], draw: random.Random) -> dict[str, Any]:
        popular = self._popular(layer)
        chosen: dict[int, int] = {}
        for _ in range(self.sequences * self.top_k):
            place = min(self.experts - 1, int(draw.paretovariate(0.55)) - 1)
            expert = popular[place] if place < self.experts // 2 else draw.choice(popular)
            chosen[expert] = chosen.get(expert, 0) + 1
        experts = [
            self._expert(expert, tokens, expert in resident, draw)
            for expert, tokens in sorted(chosen.items())
        ]
        measured = 260 + 60 * draw.random() + 30 * (layer % 7 == 3)
        return {
            "layer": layer,
            "measured_us": measured,
            "predicted_us": measured * (0.9 + 0.15 * draw.random()),
            "active": len(experts),
            "hits": sum(each["resident"] for each in experts),
            "bytes_moved": 2_654_208 * sum(each["ran"] == "link" for each in experts),
            "cpu_us": 110.0,
            "experts": experts,
        }

    def _expert(
        self, expert: int, tokens: int, resident: bool, draw: random.Random
    ) -> dict[str, Any]:
        ran = "cpu"
        if self.accelerated:
            ran = "gpu" if resident else draw.choice(("cpu", "cpu", "link"))
        gpu = 9.2 + tokens if resident else None
        link = 96.4 + tokens if self.accelerated and not resident else None
        options = {
            "gpu_us": gpu if self.accelerated else None,
            "cpu_us": 71.3 + 4 * tokens,
            "link_us": link,
        }
        why = WHY[ran] if self.accelerated else "There is no accelerator."
        return {
            "expert": expert,
            "tokens": tokens,
            "ran": ran,
            "resident": resident and self.accelerated,
            "why": why if self.explained else None,
            "options": options if self.explained else None,
        }

    def _lanes(self, number: int) -> list[dict[str, Any]]:
        shares = {"gpu": 0.61, "cpu": 0.83, "link": 0.47}
        moved = {"link": 5.9e9 * number}
        return [
            {"lane": lane, "busy_s": shares[lane] * number / 2, "bytes": moved.get(lane)}
            for lane in self.model()["lanes"]
        ]  # fmt: skip

    def _kv(self) -> dict[str, Any]:
        conversations = [
            {
                "id": f"request-{place}",
                "client": client,
                "state": state,
                "request_id": f"{place:032x}",
                "blocks": blocks,
                "tokens": 64 * blocks - 17 if blocks else 751,
                "cached_tokens": cached,
            }
            for place, (client, state, blocks, cached) in enumerate(
                [
                    ("editor", "running", 190, 11_264),
                    ("agent", "running", 84, 4_096),
                    ("chat", "running", 21, 780),
                    ("batch", "waiting", 0, 0),
                ]
            )
        ]
        return {
            "blocks": 512,
            "used": 295,
            "kept": 96,
            "shared": 40,
            "block_tokens": 64,
            "conversations": conversations,
        }
