"""Moesaic: Mixture-of-Experts models larger than the GPU, on everything a machine has.

The public names are loaded when first asked for: those that generate need torch, and naming the
package must cost nothing. `__init__.pyi` tells type checkers what they are."""

import os

__version__ = "0.1.0"

# Threads that spin at a barrier while another program holds a core wait for the scheduler, again
# and again: one busy neighbour made a decode step on two cores ten times slower. Sleeping ones
# cost next to nothing. Read once, when torch is loaded; a user's own setting is kept.
# What is measured beside this engine does not inherit it (lab/user_environment.py): the mark tells
# that it is ours, or that the process is another's.
if "OMP_WAIT_POLICY" not in os.environ and os.environ.get("MOESAIC_WAIT_POLICY") != "user":
    os.environ.update(OMP_WAIT_POLICY="passive", MOESAIC_WAIT_POLICY="own")

_MODULES = {
    "LLM": "engine.llm",
    "AsyncLLM": "engine.async_llm",
    "ProcessOptions": "engine.process.process_options",
    "SamplingParams": "engine.sampling.sampling_params",
    "EngineSettings": "engine.engine_settings",
    "simulate": "lab.simulate.public",
    "compare": "lab.simulate.public",
    "load_model": "model_info.model_zoo",
    "load_machine": "hardware.machine_reader",
    "PolicySet": "policies.policy_set",
    "policy": "policies.policy_choice",
}
_EXTRA = ("torch", "tokenizers", "jinja2")  # packages of the engine extra

__all__ = [
    "LLM",
    "AsyncLLM",
    "EngineSettings",
    "PolicySet",
    "ProcessOptions",
    "SamplingParams",
    "compare",
    "load_machine",
    "load_model",
    "policy",
    "simulate",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Here and not above, as nothing else, `__future__` neither: before the command line has set
    # its signals, Ctrl-C is a traceback.
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        errors = import_module("moesaic.core.errors")
        raise errors.MissingExtra("generating text", "engine") from None


def __dir__() -> list[str]:
    """The public names, loaded or not; not what this file needs itself."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
