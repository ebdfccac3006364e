"""What the paper says: its grid, and every number its text and tables state.

Figures 7 and 8 are bars without numbers; only their averages are stated."""

from __future__ import annotations

MODELS = {"mixtral-8x7b": "Mixtral", "qwen2-57b-a14b": "Qwen2", "deepseek-v2-lite": "DeepSeek"}
SYSTEMS = ("llama.cpp", "adapmoe", "ktransformers", "hybrimoe")
LENGTHS = (32, 128, 512, 1024)
CACHE_RATIOS = (0.25, 0.5, 0.75)
DTYPE = "int4"  # section V: 4-bit Marlin and llama.cpp kernels

AVERAGE_SPEEDUP = {"prefill": 1.33, "decode": 1.70}  # abstract, sections VI-B.1 and VI-B.2

# Table III: Qwen2 at 25 % cache. The prompt length is not stated.
ABLATION_MODEL = "qwen2-57b-a14b"
ABLATION_RATIO = 0.25
ABLATION_S = {
    "prefill": {"baseline": 1.47, "scheduling": 1.17, "prefetching": 1.39, "all": 1.13},
    "decode": {
        "baseline": 0.21,
        "scheduling": 0.14,
        "prefetching": 0.18,
        "caching": 0.15,
        "all": 0.11,
    },
}
# As printed; the latencies beside them are rounded.
ABLATION_SPEEDUP = {
    "prefill": {"scheduling": 1.26, "prefetching": 1.06, "all": 1.31},
    "decode": {"scheduling": 1.46, "prefetching": 1.15, "caching": 1.38, "all": 1.86},
}

# Figure 9, as far as section VI-D states numbers: share of hits.
HIT_RATES = {
    ("mixtral-8x7b", 0.25): {"lru": 0.302, "mrs": 0.362},
    ("qwen2-57b-a14b", 0.25): {"lru": 0.450, "mrs": 0.528},
    ("deepseek-v2-lite", 0.25): {"lru": 0.477, "mrs": 0.527},
    ("mixtral-8x7b", 0.75): {"lru": 0.806, "mrs": 0.833},
}
HIT_RATE_CAPACITIES = (0.25, 0.375, 0.5, 0.625, 0.75)
