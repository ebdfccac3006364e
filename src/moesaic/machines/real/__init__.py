"""The real machine: experts in main memory and in an accelerator; the plan says who computes."""
