"""The real machine: experts in main memory and an accelerator, computed where the plan says."""
