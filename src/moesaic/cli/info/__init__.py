"""Commands that list models, machines and policies, or inspect this machine."""
