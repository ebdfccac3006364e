"""A model that can be run: its shapes, its network, and how its files differ from it."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.model_info.expert_shape import ExpertShape
from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.network import NetworkSpec, RouterRule


@dataclass(frozen=True, slots=True)
class Architecture:
    spec: ModelSpec  # as policies and the simulator count it
    network: NetworkSpec
    unused_layers: int = 0  # in the files after the last layer: they predict further tokens (GLM)
    centred_norms: bool = False  # files have what norms' weights differ from 1 by (Qwen3-Next)

    @property
    def expert_shape(self) -> ExpertShape:
        """The shape of the routed experts, which all layers share."""
        return self.network.routed[0].expert

    @property
    def router(self) -> RouterRule:
        """The rule of all routed layers."""
        return self.network.routed[0].router
