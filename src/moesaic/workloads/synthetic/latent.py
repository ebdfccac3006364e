"""The random process behind synthetic routing: router logits for every token, layer and expert.

Knows nothing of traces, ranks or probabilities. Documents are independent of each other given
the seed, so any of them can be made alone. Within a document the process is stationary: its first
tokens are like all others, which those of real answers are not (docs/trace-format.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.workloads.synthetic.calibration import Logits

PIECE_TOKENS = 256  # of a document made at once: bounds memory, is part of what a seed means
# Products that OpenBLAS computes on one core. These are too short to be worth dividing, and cores
# waiting for each other took twenty times as long where others were at work.
ONE_CORE = 65_536 * 4
_MODEL, _DOCUMENT = 0, 1  # streams of random numbers

Floats = NDArray[np.float32]


class LatentChunk(NamedTuple):
    latent: Floats  # [L, n, dimensions] what the layers see of the tokens
    logits: Floats  # [L, n, E] of variance about 1

    def behind(self, tokens: int) -> LatentChunk:
        """The chunk without the first `tokens`."""
        return LatentChunk(self.latent[:, tokens:], self.logits[:, tokens:])


class LatentModel:
    """One imaginary model: its popular experts and its routers' directions, drawn once."""

    def __init__(self, logits: Logits, layers: int, experts: int, seed: int) -> None:
        self._p = logits
        self._seed = seed
        self.shape = (layers, experts)
        rng = np.random.default_rng([seed, _MODEL])
        directions = rng.standard_normal((layers, logits.dimensions, experts), dtype=np.float32)
        self.directions = directions / np.linalg.norm(directions, axis=1, keepdims=True)
        even = rng.standard_normal((layers, 1, experts), dtype=np.float32)
        tail = rng.standard_exponential((layers, 1, experts), dtype=np.float32) - 1
        popularity = _root(1 - logits.skew**2) * even + np.float32(logits.skew) * tail
        self.popularity = _root(logits.popularity) * popularity
        # Multiplying by this makes white noise correlated between layers.
        apart = np.abs(np.subtract.outer(np.arange(layers), np.arange(layers)))
        self._depth = np.linalg.cholesky(min(logits.depth, 0.9999) ** apart).astype(np.float32)

    def document(self, number: int, tokens: int, end: int | None = None) -> Iterator[LatentChunk]:
        """A document of so many tokens, or the first `end` of them, in pieces of at most
        `PIECE_TOKENS`. A piece's numbers are drawn layer by layer, so that all are drawn even
        where the piece is cut."""
        end = tokens if end is None else end
        p = self._p
        rng = np.random.default_rng([self._seed, _DOCUMENT, number])
        fixed = _root(p.document) * self._latent(rng, 1)
        slow = _Autoregression(float(np.exp(-1.0 / p.memory_tokens)))
        token = _Autoregression(p.echo)
        for start in range(0, end, PIECE_TOKENS):
            n = min(PIECE_TOKENS, tokens - start)
            read = slice(0, min(n, end - start))
            latent = (
                fixed
                + _root(p.slow) * slow.through(self._latent(rng, n))
                + _root(p.token) * token.through(self._latent(rng, n))
            )
            logits = np.matmul(latent, self.directions)
            noise = rng.standard_normal(logits.shape, dtype=np.float32)
            logits, noise = logits[:, read], noise[:, read]
            logits += self.popularity
            logits += np.multiply(noise, _root(p.noise), out=noise)
            yield LatentChunk(latent[:, read], logits)

    def forecast(self, piece: LatentChunk, distance: int) -> Floats:
        """What each layer's latent says about the layer `distance` further, [L - distance, n, E]:
        the later router applied early, which knows neither the drift between nor the noise."""
        ahead: Floats = np.matmul(piece.latent[:-distance], self.directions[distance:])
        ahead += self.popularity[distance:]
        return ahead

    def _latent(self, rng: np.random.Generator, tokens: int) -> Floats:
        layers, dimensions = self.shape[0], self._p.dimensions
        white = rng.standard_normal((layers, tokens * dimensions), dtype=np.float32)
        mixed, some = np.empty_like(white), max(ONE_CORE // layers**2 // 8 * 8, 8)
        for start in range(0, white.shape[1], some):
            columns = slice(start, start + some)
            np.matmul(self._depth, white[:, columns], out=mixed[:, columns])
        return mixed.reshape(layers, tokens, dimensions)


class _Autoregression:
    """Turns white noise into autoregressive noise: x[t] = a x[t-1] + sqrt(1 - a^2) white[t]."""

    def __init__(self, coefficient: float) -> None:
        self._keep = np.float32(coefficient)
        self._renew = np.float32(np.sqrt(1.0 - coefficient**2))
        self._last: Floats | None = None

    def through(self, white: Floats) -> Floats:
        by_token = np.ascontiguousarray(white.swapaxes(0, 1))
        for token in range(len(by_token)):
            if self._last is not None:
                by_token[token] *= self._renew
                by_token[token] += self._keep * self._last
            self._last = by_token[token]
        return by_token.swapaxes(0, 1)


def _root(share: float) -> np.float32:
    return np.float32(np.sqrt(share))
