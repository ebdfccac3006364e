"""The tokenizer in a GGUF file's metadata."""
