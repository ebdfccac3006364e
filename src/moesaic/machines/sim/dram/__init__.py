"""DRAM at command level: one sub-channel's banks, its controller, and requests in a closed loop.

Times are clock cycles (nCK). Knows nothing of experts, machines or the event queue; the machine
model reads tables made from it (`bandwidth.py`). docs/dram.md states every rule and choice.
"""
