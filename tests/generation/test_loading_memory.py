"""Does loading take little more memory than the model does in the end?

Asked of the system, in a process that does nothing else: VmRSS at the end, VmHWM in between.
Checkpoints of some hundred megabytes are written on the spot: all zeros, sharded, with separate or
stacked experts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from made_up import long
from moesaic.hardware.procfs import process_memory

HIDDEN, INNER, EXPERTS, LAYERS, VOCABULARY = 512, 512, 16, 8, 2048
CONFIG = {
    "model_type": "olmoe",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "norm_topk_prob": False,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "clip_qkv": None,
    "torch_dtype": "bfloat16",
}


def write_checkpoint(folder: Path, stacked: bool, dtype: torch.dtype) -> Path:
    """One file per layer, and one for the rest."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    places: dict[str, str] = {}
    for number, tensors in enumerate((_ends(dtype), *_layers(stacked, dtype))):
        name = f"model-{number:05}-of-{LAYERS + 1:05}.safetensors"
        save_file(tensors, folder / name)
        places |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def _ends(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {
        "model.embed_tokens.weight": torch.zeros(VOCABULARY, HIDDEN, dtype=dtype),
        "lm_head.weight": torch.zeros(VOCABULARY, HIDDEN, dtype=dtype),
        "model.norm.weight": torch.ones(HIDDEN, dtype=dtype),
    }


def _layers(stacked: bool, dtype: torch.dtype) -> Iterator[dict[str, torch.Tensor]]:
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        norms = ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm",
                 "self_attn.k_norm")  # fmt: skip
        tensors = {f"{prefix}.{name}.weight": torch.ones(HIDDEN, dtype=dtype) for name in norms}
        for name in "qkvo":
            weight = torch.zeros(HIDDEN, HIDDEN, dtype=dtype)
            tensors[f"{prefix}.self_attn.{name}_proj.weight"] = weight
        tensors[f"{prefix}.mlp.gate.weight"] = torch.zeros(EXPERTS, HIDDEN, dtype=dtype)
        experts = f"{prefix}.mlp.experts"
        if stacked:
            tensors[f"{experts}.gate_up_proj"] = torch.zeros(
                EXPERTS, 2 * INNER, HIDDEN, dtype=dtype
            )
            tensors[f"{experts}.down_proj"] = torch.zeros(EXPERTS, HIDDEN, INNER, dtype=dtype)
        else:
            for expert in range(EXPERTS):
                for name, shape in (("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN)),
                                    ("down", (HIDDEN, INNER))):  # fmt: skip
                    tensors[f"{experts}.{expert}.{name}_proj.weight"] = torch.zeros(
                        shape, dtype=dtype
                    )
        yield tensors


MOST = 1.15  # times what is taken in the end
SCRIPT = """
import json, sys
from moesaic import LLM
from moesaic.hardware.procfs import reset_peak, process_memory

reset_peak()
before = process_memory().now
llm = LLM(sys.argv[1], threads=1, max_model_len=64, max_sequences=1, expert_dtype=sys.argv[2])
now, peak = process_memory()
llm.close()
print(json.dumps({"before": before, "now": now, "peak": peak}))
"""
EXPERT_BYTES = 2 * 3 * HIDDEN * INNER * EXPERTS * LAYERS
OTHER_BYTES = 2 * HIDDEN * (2 * VOCABULARY + LAYERS * (4 * HIDDEN + EXPERTS))
SLACK_BYTES = 60_000_000  # what else is loaded meanwhile: compiled policies, parts of torch

pytestmark = pytest.mark.skipif(
    process_memory().peak is None, reason="this system does not say how much memory a process takes"
)


def load(folder: Path, expert_dtype: str = "auto") -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, folder, expert_dtype],
        capture_output=True,
        text=True,
        check=True,
    )
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


@pytest.mark.parametrize(
    ("stacked", "dtype"),
    [(False, torch.bfloat16), (True, torch.float32), long(True, torch.bfloat16)],
    ids=["separate", "stacked and converted", "stacked"],
)
def test_loading_takes_little_more_than_the_model(
    tmp_path: Path, stacked: bool, dtype: torch.dtype
) -> None:
    """Python and torch are left out, on both sides: with them the share would be smaller."""
    measured = load(write_checkpoint(tmp_path / "model", stacked, dtype))
    grown = measured["now"] - measured["before"]
    assert EXPERT_BYTES + OTHER_BYTES < grown < EXPERT_BYTES + OTHER_BYTES + SLACK_BYTES
    assert measured["peak"] - measured["before"] <= MOST * grown


def test_quantizing_on_load_does_not_hold_the_original(tmp_path: Path) -> None:
    measured = load(write_checkpoint(tmp_path / "model", False, torch.bfloat16), "int4")
    grown = measured["now"] - measured["before"]
    assert grown < EXPERT_BYTES * 4.5 / 16 + OTHER_BYTES + SLACK_BYTES
    assert measured["peak"] - measured["before"] <= MOST * grown
