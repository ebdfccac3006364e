"""What the engine knows of its last steps: which expert ran where, and what the brain knew when it
decided so."""
