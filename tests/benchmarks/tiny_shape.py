"""A config.json of a model that loads in no time, for benchmarks on random weights."""

TINY = {
    "model_type": "qwen3_moe", "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 64, "intermediate_size": 64,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "norm_topk_prob": True, "hidden_act": "silu", "tie_word_embeddings": False,
    "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
