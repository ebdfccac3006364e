"""`--placement FILE`: what a run has learned of a model's routing, for the next to start from."""

from __future__ import annotations

import os

from moesaic.engine.recording import check_writable
from moesaic.model_info.model_spec import ModelSpec
from moesaic.policies.brain import Brain
from moesaic.policies.expert_profile import (
    ExpertProfile,
    ProfiledModel,
    add_to_file,
    read_if_there,
)
from moesaic.policies.shape import Shape


def profiled_model(spec: ModelSpec) -> ProfiledModel:
    return ProfiledModel(spec.name, Shape(spec.num_moe_layers, spec.num_experts, spec.top_k))


def starting_profile(path: str | os.PathLike[str] | None, spec: ModelSpec) -> ExpertProfile | None:
    """What the file has, None where there is none yet; refused where it could not be written."""
    if path is None:
        return None
    check_writable(path, "placement")
    return read_if_there(path, profiled_model(spec))


class LearnedPlacement:
    """`save` adds what the brain has seen since to the file, once."""

    def __init__(self, path: str | os.PathLike[str], spec: ModelSpec, brain: Brain) -> None:
        self._path, self._model, self._brain = path, profiled_model(spec), brain

    def save(self) -> None:
        """A run without a token leaves the file as it is."""
        tokens, counts = self._brain.routed
        if tokens:
            add_to_file(self._path, ExpertProfile(self._model, tokens, counts))
