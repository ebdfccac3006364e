"""The executor that runs decode steps and pieces of prompts as CUDA graphs, which a native
conductor meets at every layer."""
