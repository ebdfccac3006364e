"""The KV cache's unit: tokens of a sequence that lie side by side, wherever the block is."""

KV_BLOCK = 64  # of attention's kernels, too: the positions that are multiplied at once


def blocks_of(tokens: int) -> int:
    return -(-tokens // KV_BLOCK)
