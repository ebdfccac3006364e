"""How good a model's answers are: tasks, judging, and results that survive an interruption."""
