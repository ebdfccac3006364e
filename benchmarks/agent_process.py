"""Answers the requests of `benchmarks.agent_replay` on an engine of this process (see
`engine_process`): those of one line at the same time, each with its times."""

from __future__ import annotations

from dataclasses import dataclass
from time import process_time
from typing import Any

from benchmarks.engine_process import Measure, answer_standard_input, takes_boundaries
from moesaic import AsyncLLM, SamplingParams


@dataclass(frozen=True, slots=True)
class Requests:
    """On an open engine."""

    llm: AsyncLLM

    async def answer(self, values: dict[str, Any]) -> dict[str, Any]:
        """`boundaries` are for engines that take them."""
        requests = []
        for asked in values["requests"]:
            params = SamplingParams(max_tokens=asked["answer"], temperature=0.0, ignore_eos=True)
            more: dict[str, Any] = {}
            if asked.get("boundaries") and takes_boundaries():
                more["boundaries"] = tuple(asked["boundaries"])
            processor = self.llm.model.input_processor
            requests.append(processor.request(asked["prompt"], params, **more))
        cpu_before = process_time()
        completions = await self.llm._finish(requests)
        cpu_ms = 1e3 * (process_time() - cpu_before)
        answers = [
            {
                "ttft_ms": 1e3 * (each.timings.time_to_first_token_s or 0.0),
                "total_ms": 1e3 * each.timings.total_s,
                "cached": each.cached_tokens,
                "tokens": list(each.tokens),
            }
            for each in completions
        ]
        return {"answers": answers, "cpu_ms": cpu_ms}


def main() -> None:
    def begin(llm: AsyncLLM) -> Measure:
        return Requests(llm).answer

    answer_standard_input(begin)


if __name__ == "__main__":
    main()
