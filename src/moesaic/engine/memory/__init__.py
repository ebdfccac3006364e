"""The memory plan: what will lie where, decided before anything is allocated."""
