"""The options that `--help` shows: those of the first hour, in the order in which they are needed.
All others are under `--help-all`."""

from __future__ import annotations

from moesaic.cli.shared.short_help import Groups

_DEVICES = ("--accelerator", "--gpu-memory", "--cache-ratio", "--threads")
_MODEL = ("--expert-dtype", "--max-model-len")
_ANSWER = ("--max-tokens", "--temperature", "--seed", "--stop", "--json-schema")

RUN: Groups = {
    "Prompt": ("--prompt", "--file", "--chat", "--system-prompt"),
    "Answer": (*_ANSWER, "--completions"),
    "Model and devices": (*_MODEL, "--accelerator", "--gpu-memory", "--threads"),
    "Output": ("--json",),
}
CHAT: Groups = {
    "Answer": ("--system-prompt", *_ANSWER),
    "Model and devices": (*_MODEL, *_DEVICES),
    "Output": ("--json",),
}
SERVE: Groups = {
    "Server": (
        "--host", "--port", "--api-key-file", "--served-model-name", "--cors",
        "--max-prompt-tokens", "--drain", "--replicas",
    ),
    "Model and devices": (*_MODEL, "--max-sequences", *_DEVICES),
}  # fmt: skip
BATCH: Groups = {
    "Answers": ("--out", "--restart", "--served-model-name", "--json"),
    "Model and devices": (*_MODEL, "--max-sequences", *_DEVICES),
}
BENCH: Groups = {
    "What is measured": (
        "--synthetic", "--layers", "--prompt-tokens", "--generate", "--batch", "--repetitions",
        "--compare", "--against", "--systems", "--cache-ratios",
    ),
    "Model and devices": ("--expert-dtype", *_DEVICES),
    "Output": ("--timeline", "--format", "--json"),
}  # fmt: skip
EVAL: Groups = {
    "What is asked": ("--task", "--file", "--limit", "--form", "--max-tokens"),
    "Model and devices": (*_MODEL, *_DEVICES, "--max-sequences", "--quality"),
    "Output": ("--out", "--restart", "--plot", "--json"),
}
PLAN: Groups = {
    "Machine": ("--machine", "--memory"),
    "Model and devices": ("--dtype", *_MODEL, "--max-sequences", *_DEVICES, "--policies"),
    "Output": ("--json",),
}
SIMULATE: Groups = {
    "What is run": (
        "--model", "--machine", "--set", "--trace", "--phase", "--tokens", "--batch",
        "--cache-ratio", "--expert-dtype",
    ),
    "Policies": ("--policies", "--schedule", "--cache", "--plugin"),
    "Output": ("--timeline", "--perfetto", "--json"),
}  # fmt: skip
COMPARE: Groups = {
    "What is run": (
        "--model", "--machines", "--sweep", "--trace", "--tokens", "--batch", "--cache-ratios",
        "--expert-dtype",
    ),
    "Policies": ("--systems", "--caches", "--plugin"),
    "Output": ("--plot", "--format", "--json"),
}  # fmt: skip
QUALITY: Groups = {
    "What is measured": (
        "--expert-dtypes", "--dense-dtypes", "--text", "--tokens", "--problems",
    ),
    "Model and devices": (*_MODEL, *_DEVICES),
    "Output": ("--json",),
}  # fmt: skip
CALIBRATE: Groups = {
    "What is bounded": ("--prompts", "--bound", "--max-kl", "--sure", "--limit", "--max-tokens"),
    "Model and devices": (*_MODEL, *_DEVICES),
    "Output": ("--out", "--json"),
}
