"""The real machine: experts in main memory and in an accelerator, computed by whom the plan says."""
