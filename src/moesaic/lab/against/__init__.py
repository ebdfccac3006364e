"""The same model measured by other programs that a user might run instead, in turns with ours."""
