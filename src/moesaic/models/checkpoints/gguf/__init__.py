"""GGUF files as checkpoints: tensors under the names the decoder asks for."""
