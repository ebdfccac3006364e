"""Bodies: machines that execute plans, in virtual time (`sim`) or real time."""
