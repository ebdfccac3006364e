from moesaic.engine.async_llm import AsyncLLM as AsyncLLM
from moesaic.engine.engine_settings import EngineSettings as EngineSettings
from moesaic.engine.llm import LLM as LLM
from moesaic.engine.sampling.sampling_params import SamplingParams as SamplingParams

__all__ = ["LLM", "AsyncLLM", "EngineSettings", "SamplingParams"]
__version__: str
