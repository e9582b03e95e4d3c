"""A keyed permutation of the numbers below n that is computed, never stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.pipelines.plan.philox import STREAM_ORDER, random_words

_ROUNDS = 12
_MIN_BITS = 6  # smaller domains leave a measurable bias over the permutations of a handful of samples
_MIX1, _MIX2, _SHIFT = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53), np.uint64(32)

Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Permutation:
    """Map positions to sample indices by a keyed bijection on [0, n).

    It is an alternating Feistel network over ceil(log2 n) bits with cycle walking: Black and Rogaway, "Ciphers with
    arbitrary finite domains", CT-RSA 2002. It takes O(1) memory and, since the domain is below 2n (above 32 samples),
    fewer than two walks per position on average.

    Attributes:
        n: number of samples.
        keys: one 64-bit key for each round.
    """

    n: int
    keys: tuple[int, ...]

    @classmethod
    def of_epoch(cls, n: int, seed: int, epoch: int, number: int = 0) -> Permutation:
        """Return the permutation that shuffles `epoch` under `seed`; `number` tells apart several in an epoch.

        Raises ValueError unless 0 < n <= 2**62.
        """
        if not 0 < n <= 1 << 62:
            raise ValueError(f"n must lie in [1, 2**62], got {n}")
        words = random_words(seed, epoch, np.full(1, number, np.int64), STREAM_ORDER, 2 * _ROUNDS)[0].tolist()
        return cls(n, tuple(low | high << 32 for low, high in zip(words[::2], words[1::2], strict=True)))

    def __call__(self, positions: Index) -> Index:
        """Return the sample indices at `positions`, both int64 [k] within [0, n)."""
        left_bits = self._bits // 2
        right_bits = self._bits - left_bits
        values = np.asarray(positions, np.int64).astype(np.uint64)
        todo = np.arange(values.size)
        while todo.size:
            values[todo] = self._network(values[todo], left_bits, right_bits)
            todo = todo[values[todo] >= np.uint64(self.n)]
        return values.astype(np.int64)

    def inverse(self, indices: Index) -> Index:
        """Return the positions of sample `indices`, both int64 [k] within [0, n)."""
        left_bits = self._bits // 2
        right_bits = self._bits - left_bits
        values = np.asarray(indices, np.int64).astype(np.uint64)
        todo = np.arange(values.size)
        while todo.size:
            values[todo] = self._network(values[todo], left_bits, right_bits, backwards=True)
            todo = todo[values[todo] >= np.uint64(self.n)]
        return values.astype(np.int64)

    @property
    def _bits(self) -> int:
        return max(_MIN_BITS, (self.n - 1).bit_length())

    def _network(
        self, values: npt.NDArray[np.uint64], left_bits: int, right_bits: int, *, backwards: bool = False
    ) -> npt.NDArray[np.uint64]:
        shift, low = np.uint64(right_bits), np.uint64((1 << right_bits) - 1)
        left, right = values >> shift, values & low
        rounds = list(enumerate(self.keys))
        for number, key in reversed(rounds) if backwards else rounds:
            # The network alternates instead of swapping, which lets the halves differ by one bit.
            if number % 2 == 0:
                left = left ^ (_mix(right, key) >> np.uint64(64 - left_bits))
            else:
                right = right ^ (_mix(left, key) >> np.uint64(64 - right_bits))
        return (left << shift) | right


def _mix(values: npt.NDArray[np.uint64], key: int) -> npt.NDArray[np.uint64]:
    """Hash each value to 64 keyed pseudo-random bits (multiply, fold, multiply; the best bits are on top)."""
    mixed = (values + np.uint64(key)) * _MIX1
    mixed ^= mixed >> _SHIFT
    return mixed * _MIX2
