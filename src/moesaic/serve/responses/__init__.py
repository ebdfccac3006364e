"""The Responses API, as OpenAI's newer clients use it."""
