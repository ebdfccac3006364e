from moesaic.engine.async_llm import AsyncLLM as AsyncLLM
from moesaic.engine.engine_settings import EngineSettings as EngineSettings
from moesaic.engine.llm import LLM as LLM
from moesaic.engine.process.process_options import ProcessOptions as ProcessOptions
from moesaic.engine.sampling.sampling_params import SamplingParams as SamplingParams
from moesaic.hardware.machine_reader import load_machine as load_machine
from moesaic.lab.simulate.public import compare as compare
from moesaic.lab.simulate.public import simulate as simulate
from moesaic.model_info.model_zoo import load_model as load_model
from moesaic.policies.policy_choice import policy as policy
from moesaic.policies.policy_set import PolicySet as PolicySet

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
__version__: str
