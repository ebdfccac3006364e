"""What a token costs beside its step, `python -m benchmarks.between_tokens --accelerator cuda`.

A random model with the bundled one's tokenizer answers through `LLM.generate`: microseconds per
token as a caller sees them, of those the machine's step, and what is left. Steps are submitted
before the last one's tokens are delivered, where the machine can, or begun one by one."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from moesaic import LLM, SamplingParams
from moesaic.engine.runner import Runner
from moesaic.machines.real.forward_pass import ForwardPass
from moesaic.models.bundled_model import model_path

PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_k": 40, "top_p": 0.9},
}
PROMPT = "Once upon a time"


def save_model(folder: Path, layers: int) -> None:
    bundled = model_path(None)
    vocabulary = json.loads((bundled / "config.json").read_text())["vocab_size"]
    config = Qwen3MoeConfig(
        vocab_size=vocabulary, hidden_size=512, head_dim=64, num_attention_heads=8,
        num_key_value_heads=2, moe_intermediate_size=256, num_hidden_layers=layers, num_experts=32,
        num_experts_per_tok=4, norm_topk_prob=True, max_position_embeddings=2048,
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    for file in bundled.glob("*token*"):
        shutil.copy(file, folder)


class Switched:
    """A runner whose steps are submitted, or not."""

    def __init__(self, runner: Runner) -> None:
        self._refuses, self.on, self.submitted = runner.refuses, True, 0
        runner.refuses = self.refuses  # type: ignore[method-assign]

    def refuses(self, work: ForwardPass) -> str | None:
        why = self._refuses(work) if self.on else "it is switched off"
        self.submitted += why is None
        return why


def measured(llm: LLM, params: SamplingParams) -> tuple[float, float]:
    """Microseconds per token, and of its step."""
    before = llm.stats()
    (answer,) = llm.generate([PROMPT], params)
    after, rate = llm.stats(), answer.timings.decode_tokens_per_s
    assert rate is not None, "more than one token"
    steps = after.steps - before.steps
    return 1e6 / rate, 1e6 * (after.step_s - before.step_s) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accelerator", default="none")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    settings: dict[str, Any] = {"accelerator": options.accelerator}
    if options.accelerator != "none":
        settings["cache_ratio"] = 0.5
    with TemporaryDirectory(prefix="moesaic-between-") as folder:
        save_model(Path(folder), options.layers)
        with LLM(folder, dtype="bf16", **settings) as llm:
            switch = Switched(llm.model.runner)
            found: dict[tuple[str, bool], list[tuple[float, float]]] = {}
            for _ in range(1 + options.rounds):
                for name, each in PARAMS.items():
                    for switch.on in (True, False):
                        asked = SamplingParams(
                            max_tokens=options.tokens, ignore_eos=True, seed=1, **each
                        )
                        found.setdefault((name, switch.on), []).append(measured(llm, asked))
            for (name, on), rounds in found.items():
                token, step = (median(column) for column in zip(*rounds[1:], strict=True))
                row = {"sampling": name, "submitted": on, "token_us": token, "step_us": step}
                print(json.dumps({k: round(v, 1) if k[-2:] == "us" else v for k, v in row.items()}))
            print(json.dumps({"steps_submitted": switch.submitted}), flush=True)


if __name__ == "__main__":
    main()
