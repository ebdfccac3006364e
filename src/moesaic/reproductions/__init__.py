"""The papers' tables and figures: claim, the paper's value, ours, and the command that made it."""
