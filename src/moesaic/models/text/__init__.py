"""Text to tokens and back, and conversations to prompts."""
