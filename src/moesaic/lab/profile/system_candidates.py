"""Which systems are compared on a machine, and in which cases. Light: looking advice up needs no
simulator."""

from __future__ import annotations

OWN = "moesaic"
CANDIDATES = (OWN, "moesaic-lru", "hybrimoe", "ktransformers", "fiddler", "adapmoe")
MODELS = ("qwen3-30b-a3b", "olmoe-1b-7b", "moesaic-20m")  # the first that the machine can hold
LAYERS = 12  # its first: every layer costs the same
RATIOS = (0.25, 0.5, 0.75)
DTYPES = ("bf16", "int4")
TOKENS, WARMUP = 24, 16
# Replayed with the sizes of gpt-oss-20b, whose layers have as many experts as the bundled model's.
RECORDED: str | None = "gpt-oss-20b"
RECORDED_DTYPES = ("int4",)  # as it is published
RECORDED_TOKENS = 64
# Times as fast as Moesaic's own, or its own is advised: a placement that never changes is simulated
# with a profile of the very text that is decoded then, which no other text is as kind to.
CLEARLY = 1.05


def conditions() -> tuple[object, ...]:
    """What an advice depends on beside the machine and the policies."""
    synthetic = MODELS, LAYERS, RATIOS, DTYPES, TOKENS, WARMUP
    return synthetic, (RECORDED, RECORDED_DTYPES, RECORDED_TOKENS), CLEARLY
