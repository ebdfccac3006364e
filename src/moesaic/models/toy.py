"""A toy to try things with: a small Mixture-of-Experts model in Hugging Face layout, made on the
spot from a page of text, which it learns by heart. What it says means nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from safetensors.torch import save

from moesaic.core.config_reader import ConfigReader
from moesaic.core.errors import ImpossibleSetting, MoesaicError
from moesaic.core.folders import whole_folder
from moesaic.core.model import ModelSpec
from moesaic.core.model_config import model_spec
from moesaic.models.config import architecture_of
from moesaic.models.load import open_model
from moesaic.models.tokenizer import Tokenizer
from moesaic.models.toy_text import END, Page
from moesaic.models.toy_training import learn_by_heart

_CONFIG = "config.json"
_MARK = "moesaic_toy"  # the field of the config that says how it was made
_CONTEXT = 512
_SHAPE: dict[str, Any] = {
    "architectures": ["OlmoeForCausalLM"],
    "model_type": "olmoe",
    "num_hidden_layers": 6,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "intermediate_size": 128,  # of an expert
    "norm_topk_prob": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": _CONTEXT,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "clip_qkv": None,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "pad_token_id": None,
    "dtype": "float32",
}
_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": _CONTEXT,
    "eos_token": END,
    # It knows a text, no conversations: it goes on with what was said last.
    "chat_template": "{{ messages[-1].content }}",
}


class Toy:
    def __init__(self, text: str, steps: int) -> None:
        """Learns `text` in so many training steps; about a hundred are enough for a page."""
        if steps < 0:
            raise ImpossibleSetting(
                f"{steps} training steps were asked for; use 0, which teaches nothing, or more"
            )
        self.page, self.steps = Page(text), steps
        self._config = {
            **_SHAPE,
            "vocab_size": self.page.tokenizer.get_vocab_size(),
            "eos_token_id": self.page.end_id,
            _MARK: {"text_sha256": sha256(text.encode()).hexdigest(), "training_steps": steps},
        }
        self._reader = ConfigReader(self._config, f"toy/{_CONFIG}")

    @property
    def spec(self) -> ModelSpec:
        return model_spec(self._reader)

    def is_in(self, folder: Path) -> bool:
        """Whether this very toy lies there, complete."""
        if _fields(folder / _CONFIG) != self._config:
            return False
        try:
            open_model(folder)
            Tokenizer.open(folder, self.spec.vocab_size)
        except MoesaicError:
            return False
        return True

    def make(self, folder: Path, advance: Callable[[int], None] = lambda steps: None) -> None:
        """Train it and put it there, whole, in place of an older toy but of nothing else;
        `advance(1)` is called after every training step."""
        if folder.exists() and _MARK not in _fields(folder / _CONFIG):
            raise ImpossibleSetting(
                f"the toy model belongs into {str(folder)!r}, but something else is there: move "
                "that away, or choose another place"
            )
        architecture = architecture_of(self._reader, self.spec)
        weights = learn_by_heart(architecture, self.page.lesson(), self.steps, advance=advance)
        with whole_folder(folder) as fresh:
            packed = save(weights, metadata={"format": "pt"})
            (fresh / "model.safetensors").write_bytes(packed)
            self.page.tokenizer.save(str(fresh / "tokenizer.json"))
            _write(fresh / "tokenizer_config.json", _TOKENIZER_CONFIG)
            _write(fresh / "generation_config.json", {"eos_token_id": self.page.end_id})
            _write(fresh / _CONFIG, self._config)


def _fields(file: Path) -> dict[str, Any]:
    """None where there is no such file, or something else in it."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
