"""The Messages API, as Anthropic's clients use it."""
