"""The real machine and what its executors share: passes, experts in main memory, slots of an
accelerator, copies and who keeps account of them."""
