"""How weights in safetensors are quantized, by the `quantization_config` of a config.json."""
