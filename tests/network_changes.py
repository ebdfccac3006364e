"""Small changes of a network for tests: every layer's attention, router or block at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from moesaic.model_info.network import LayerSpec, RoutedSpec
from moesaic.models.configs.architecture import Architecture


def each_layer(
    architecture: Architecture, change: Callable[[LayerSpec], LayerSpec]
) -> Architecture:
    layers = tuple(map(change, architecture.network.layers))
    return replace(architecture, network=replace(architecture.network, layers=layers))


def with_attention(architecture: Architecture, **changes: Any) -> Architecture:
    def change(layer: LayerSpec) -> LayerSpec:
        return replace(layer, attention=replace(layer.attention, **changes))

    return each_layer(architecture, change)


def with_rope(architecture: Architecture, **changes: Any) -> Architecture:
    (rope,) = architecture.network.ropes
    return with_attention(architecture, rope=replace(rope, **changes))


def with_router(architecture: Architecture, **changes: Any) -> Architecture:
    def change(layer: LayerSpec) -> LayerSpec:
        block = layer.feed_forward
        if not isinstance(block, RoutedSpec):
            return layer
        router = replace(block.router, **changes)
        return replace(layer, feed_forward=replace(block, router=router))

    return each_layer(architecture, change)
