"""The loop that joins a brain and a body, and what is built from it."""
