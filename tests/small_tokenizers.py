"""Small tokenizers of the two kinds language models use, trained on the spot, and the directories
they are published in."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
import transformers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers

transformers.logging.set_verbosity_error()

SPECIAL = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
ENGLISH = (
    "The router of a mixture of experts sends every token to a few experts, and most experts rest.",
    "Weights that are not on the accelerator wait in main memory until a plan asks for them.",
    "def plan(view): return [expert for expert in view if expert.wanted]  # 12 of 64, 3.5 GB/s",
    "naïve café, déjà vu: a few accents belong to the alphabet.",
)
OTHERS = (
    "路由器把每个词元送到几个专家那里，其余的专家休息。",
    "😀👍🏽👩‍👩‍👧 emoji, and more: 🇩🇪🏴‍☠️",
    "e\u0301 a\u0308\u0304 combining, здравствуй мир, नमस्ते, ﷽",
)


def byte_level() -> tokenizers.Tokenizer:
    """Tokens are strings of bytes: GPT-2, Qwen, OLMoE, DeepSeek, GLM."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    made.train_from_iterator([*ENGLISH, *OTHERS[:2]], trainer)
    return made


def metaspace() -> tokenizers.Tokenizer:
    """Tokens are characters, spaces are marks, what is not in the alphabet is spelled in bytes, and
    a text begins with a space that is not shown: Llama, Mixtral."""
    learned = tokenizers.Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    learned.train_from_iterator(ENGLISH, trainers.BpeTrainer(vocab_size=200, show_progress=False))
    fields = json.loads(learned.to_str())["model"]
    vocabulary = {token: place for place, token in enumerate((*SPECIAL, *BYTES, *fields["vocab"]))}
    merges = [tuple(pair) for pair in fields["merges"]]
    made = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    made.pre_tokenizer = learned.pre_tokenizer
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    return made


def other_metaspace() -> tokenizers.Tokenizer:
    """The same with a decoder that drops the first token's space, whatever follows."""
    made = metaspace()
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return made


KINDS = {"byte-level": byte_level, "metaspace": metaspace, "other metaspace": other_metaspace}


@cache
def trained(kind: str) -> str:
    """A tokenizer.json's content."""
    return KINDS[kind]().to_str()


def save(folder: Path, kind: str, **config: Any) -> Path:
    """A model directory without weights. `config` goes into tokenizer_config.json."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(trained(kind))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    write(folder / "tokenizer_config.json", named | config)
    write(folder / "config.json", {"model_type": "mixtral"})
    return folder


def write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content))


def stock(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)
