"""Fields of a config.json that no code reads: which are safe to leave unread, and why.

A field may be in a config that is run if
- it was read (`ConfigReader` keeps track, so there is no list of those to maintain);
- it is in HARMLESS (training, output format, tokenizer, bookkeeping, generation defaults), or
  follows from other fields (`RunnableFamily.derived`);
- it is off: null, false, 0 or empty, or its name begins with an underscore (private to a library);
- `RunnableFamily.stated` has it, at a value that says what the family computes anyway. Such a
  field is held to those values even where it was read.
Everything else is refused. The stock implementation would ignore a field it does not know; but
such a field may come from a later version of it, or from the author's own code, and then the
answers would be wrong without a word. A user who knows better can delete the field.
"""

from __future__ import annotations

from collections.abc import Collection

from moesaic.core.parsing import short
from moesaic.model_info.config_reader import ConfigReader
from moesaic.models.configs.families import RunnableFamily, Stated

_TRAINING = """
    attention_dropout aux_loss_alpha embd_pdrop ep_size hidden_dropout initializer_range
    output_router_logits pretraining_tp resid_pdrop router_aux_loss_coef router_jitter_noise
    router_z_loss_coef seq_aux
"""
_OUTPUT = """
    chunk_size_feed_forward id2label is_decoder label2id output_attentions output_hidden_states
    output_scores problem_type return_dict return_dict_in_generate use_cache
"""
_TOKENS = """
    begin_suppress_tokens bos_token_id decoder_start_token_id eos_token_id forced_bos_token_id
    forced_eos_token_id image_token_id pad_token_id sep_token_id tokenizer_class unk_token_id
"""
_BOOKKEEPING = """
    architectures auto_map dtype finetuning_task name_or_path torch_dtype transformers_version
    transformers.js_config unsloth_fixed unsloth_version
"""
# Older libraries saved these beside the model's own fields; `generation_config.json` has them now.
_GENERATION = """
    bad_words_ids diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
    exponential_decay_length_penalty length_penalty max_length min_length no_repeat_ngram_size
    num_beam_groups num_beams num_return_sequences remove_invalid_values repetition_penalty
    suppress_tokens task_specific_params temperature top_k top_p typical_p
"""
# Read where they matter: with dense layers, or with groups of experts.
_SOMETIMES = "intermediate_size n_group topk_group"
_WINDOW = "max_window_layers"  # read where a window is on

HARMLESS = frozenset(
    f"{_TRAINING} {_OUTPUT} {_TOKENS} {_BOOKKEEPING} {_GENERATION} {_SOMETIMES} {_WINDOW}".split()
)
# Of the table that describes rotary positions: read where the kind uses them, and where nothing
# else (`rope_type`, `attention_factor`) takes their place.
HARMLESS_IN_ROPE = {"type", "original_max_position_embeddings", "mscale", "mscale_all_dim"}
# Of models that also see images, whose positions have three numbers: in text they are equal.
HARMLESS_IN_ROPE |= {"mrope_section", "mrope_interleaved"}

STATED_IN_ROPE: Stated = {"partial_rotary_factor": (1,)}  # unless the family reads it


def refuse_not_understood(config: ConfigReader, family: RunnableFamily) -> None:
    """After everything was read: BadConfig for the first field that may change the arithmetic."""
    stated = family.stated
    _refuse(config, HARMLESS | family.derived, stated)
    for field, values in stated.items():
        if config.has(field) and config.value(field) not in values:
            expected = " or ".join(map(repr, values))
            config.fail(field, f"expected {expected}, not {short(config.value(field))}")


def refuse_rope_not_understood(rope: ConfigReader) -> None:
    _refuse(rope, HARMLESS_IN_ROPE, STATED_IN_ROPE)


def _refuse(config: ConfigReader, harmless: Collection[str], stated: Stated) -> None:
    for field, value in config.unread().items():
        known = field in harmless or field.startswith("_") or not value
        if not known and value not in stated.get(field, ()):
            config.fail(
                field,
                f"{short(value)} is not understood and may change what the model computes; if it "
                "does not, delete the field",
            )
