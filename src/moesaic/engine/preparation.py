"""What is known of a model before its weights are read: everything that can be refused about it,
or about what it will be asked, is refused with this.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from moesaic.core.errors import BadTokenizer, ImpossibleSetting
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.fetching import local_model
from moesaic.engine.gpu_memory import usable_machine
from moesaic.engine.input_processor import InputProcessor
from moesaic.engine.learned_placement import starting_profile
from moesaic.engine.memory.memory_plan import MemoryPlan, plan_or_without_gpu
from moesaic.engine.packed_store import check_packed, packed_settings
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.hardware.host import memory
from moesaic.model_info.model_spec import ModelSpec
from moesaic.models.open_model import OpenModel, open_model, with_experts_per_token
from moesaic.models.text.generation_config import sampling_defaults
from moesaic.models.text.tokenizer import Tokenizer, has_tokenizer
from moesaic.models.text.tokenizer_files import GENERATION, read_eos_ids
from moesaic.policies.expert_profile import ExpertProfile

PathLike = str | os.PathLike[str]
_UNKNOWN_MEMORY = 1 << 62  # where the system does not say, nothing is refused


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model directory that was checked, and whose memory is planned."""

    opened: OpenModel
    settings: EngineSettings
    plan: MemoryPlan
    tokenizer: Tokenizer | None
    eos_ids: frozenset[int]
    input_processor: InputProcessor
    profile: ExpertProfile | None = None  # to start from

    @property
    def spec(self) -> ModelSpec:
        return self.opened.architecture.spec


def default_params(folder: Path) -> SamplingParams:
    """What a request means that says nothing of sampling."""
    try:
        return SamplingParams(**sampling_defaults(folder))
    except ImpossibleSetting as error:
        raise BadTokenizer(folder / GENERATION, "sampling", str(error)) from None


@dataclass(frozen=True, slots=True)
class ModelText:
    """What a model directory says of texts. Without a tokenizer, prompts are token ids."""

    tokenizer: Tokenizer | None
    eos_ids: frozenset[int]
    defaults: SamplingParams

    @classmethod
    def read(cls, folder: Path, spec: ModelSpec) -> ModelText:
        tokenizer = Tokenizer.open(folder, spec.vocab_size) if has_tokenizer(folder) else None
        eos_ids = read_eos_ids(folder, None) if tokenizer is None else tokenizer.eos_ids
        return cls(tokenizer, eos_ids, default_params(folder))

    def input_processor(self, spec: ModelSpec, context: int) -> InputProcessor:
        return InputProcessor(spec, self.tokenizer, self.eos_ids, context, self.defaults)


def prepare(
    model: PathLike | None, settings: EngineSettings, text: ModelText | None = None
) -> Prepared:
    """The bundled model without a `model`. `text`: of this model, where another process makes texts
    of tokens."""
    settings, free = usable_machine(settings)
    folder = local_model(model, settings)
    opened = open_model(folder)
    if settings.experts_per_token is not None:
        opened = with_experts_per_token(opened, settings.experts_per_token)
    settings = packed_settings(opened, settings)
    spec = opened.architecture.spec
    if settings.quality_of not in (None, spec.name):
        raise ImpossibleSetting(
            f"the quality file was measured with {settings.quality_of}, and this is {spec.name}: "
            "calibrate this model with `moesaic calibrate`, or use another --quality"
        )
    text = ModelText.read(folder, spec) if text is None else text
    _, available = memory()
    available = _UNKNOWN_MEMORY if available is None else available
    settings, plan = plan_or_without_gpu(spec, settings, available, free)
    check_packed(opened, settings, plan.dtype)
    profile = starting_profile(settings.placement, spec)
    return Prepared(
        opened=opened,
        settings=settings,
        plan=plan,
        tokenizer=text.tokenizer,
        eos_ids=text.eos_ids,
        input_processor=text.input_processor(spec, plan.capacity.length),
        profile=profile,
    )
