"""Reads a config.json into an `Architecture`, or says why the model cannot be run."""

from __future__ import annotations

import os
from collections.abc import Iterable

from moesaic.core.errors import BadCheckpoint
from moesaic.core.parsing import short
from moesaic.model_info.config_reader import ConfigReader
from moesaic.model_info.dense_models import refuse_dense
from moesaic.model_info.model_config import model_spec, open_config
from moesaic.model_info.model_families import FAMILIES
from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.quantization.read import read_quantization
from moesaic.models.configs.architecture import Architecture
from moesaic.models.configs.config_fields import refuse_not_understood
from moesaic.models.configs.families import NOT_IMPLEMENTED, RUNNABLE, RunnableFamily
from moesaic.models.configs.network_reader import read_network


def read_architecture(path: str | os.PathLike[str]) -> Architecture:
    """The decoder that `path` describes: a config.json, or a directory that contains one."""
    config = open_config(path)
    _refuse_unknown(config)
    architecture = architecture_of(config, model_spec(config))
    refuse_not_understood(config, RUNNABLE[architecture.spec.family])
    return architecture


def architecture_of(config: ConfigReader, spec: ModelSpec) -> Architecture:
    """The shapes of `spec`, the rules of `config`."""
    _refuse_what_cannot_run(config, spec)
    family = RUNNABLE[spec.family]
    return Architecture(
        spec=spec,
        network=read_network(config, spec),
        unused_layers=_unused_layers(config, family),
        centred_norms=family.centred_norms,
    )


def _refuse_unknown(config: ConfigReader) -> None:
    """Before the simulator's reader does, which may know architectures only it can use."""
    model_type = config.value("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        refuse_dense(config)
        what = f"unsupported architecture {short(model_type)}"
        if isinstance(model_type, str) and model_type in NOT_IMPLEMENTED:
            what = f"{what} ({NOT_IMPLEMENTED[model_type]} is not implemented)"
        config.fail("model_type", f"{what}; can be run: {_listed(RUNNABLE)}")


def _listed(families: Iterable[str]) -> str:
    return ", ".join(sorted(families))


def _refuse_what_cannot_run(config: ConfigReader, spec: ModelSpec) -> None:
    if spec.family not in RUNNABLE:
        known = _listed(RUNNABLE)
        what = f"architecture {spec.family!r} can be simulated but not run; can be run: {known}"
        raise BadCheckpoint(config.path, "model_type", what)
    read_quantization(config)


def _unused_layers(config: ConfigReader, family: RunnableFamily) -> int:
    if not family.predicts_further:
        return 0
    names = ("num_nextn_predict_layers", "num_mtp_layers")
    return max(config.count(name, minimum=0) if config.has(name) else 0 for name in names)
