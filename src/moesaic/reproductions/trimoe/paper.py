"""What the TriMoE paper states in numbers. Figures 6 to 9 are bars and curves without numbers; the
text gives averages of them."""

from __future__ import annotations

MACHINE = "trimoe-paper"
MODELS = {
    "deepseek-v2": "DeepSeek-V2",
    "qwen3-235b-a22b": "Qwen3-235B-A22B",
    "glm-4.5-air": "GLM-4.5-Air",
}
QWEN = "qwen3-235b-a22b"
BATCHES = (256, 512, 768)
SMALL_BATCHES = {128: 2.72, 64: 2.18, 32: 1.82}  # section 5.5: Qwen over the strongest baseline
RULES = ("own-share", "full", "none")  # T_contention of equation 6, which the paper leaves open

BASELINES = ("klotski", "enhanced-ktransformers", "monde")
LOCALIZED = "monde-localized"  # MoNDE without TriMoE's cut into striped and localized experts
OURS, BEYOND = "trimoe", "tri-balanced"

# Section 3.1 and Fig. 3
COLD_EXPERTS, COLD_TOKENS, WARM_TOKENS = 0.70, 0.08, 0.70
# Fig. 5 and section 3
GPU_TOKENS, GPU_SHARE = 256, 0.30  # share of the peak at that many tokens, at least
AMX_TFLOPS = (10.0, 40.0)  # tens to hundreds of tokens
WARM_ON_NDP = 7.0  # times the time of the units if they take the warm experts as well
# Fig. 6: averages over the best baseline, least and largest of the three models
DECODE_SPEEDUP = (2.12, 2.83)
# Fig. 7, in the order of the models
END_TO_END = {"deepseek-v2": 2.78, "qwen3-235b-a22b": 2.22, "glm-4.5-air": 2.09}
# Table 3; None: the system does not have the device
UTILISATION: dict[str, dict[str, float | None]] = {
    "klotski": {"gpu": 0.286, "cpu": None, "ndp": None},
    "enhanced-ktransformers": {"gpu": 0.576, "cpu": 0.42, "ndp": None},
    "monde": {"gpu": 0.339, "cpu": None, "ndp": 0.701},
    "trimoe": {"gpu": 0.660, "cpu": 0.749, "ndp": 0.878},
}
MEAN_UTILISATION = 0.762
# Fig. 8, batch 512: each step's gain over the one before
ABLATION = {"+cpu": 1.75, "+refinement": 1.28, "+relayout": 1.16}
# Fig. 9: "latency stabilizes after 16 units", "flattens once capacity reaches 0.5x"
NDP_COUNTS = (2, 4, 8, 16, 32)
CPU_FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0)
# Section 5.5
WINDOW_MS, FOUR_EXPERTS_MS, MIGRATION_OVERHEAD = 0.68, 0.63, 0.033
PREDICTOR_ACCURACY, PREDICTOR_KB = 0.78, 38.0
ALPHA = 0.3
