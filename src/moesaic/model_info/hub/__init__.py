"""Models by their id on the Hugging Face hub, through `huggingface_hub` and its cache."""
