"""A keyed permutation of the numbers below n that is computed instead of stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.pipelines.plan.philox import STREAM_ORDER, random_words

_ROUNDS = 12
_MIN_BITS = 6  # smaller domains leave a measurable bias over the permutations of a handful of samples
_MIX1, _MIX2, _SHIFT = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53), np.uint64(32)
_ONE, _WORD_BITS = np.uint64(1), np.uint64(64)

Index = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Bits = np.uint64 | Words  # one for all values, or one per value


@dataclass(frozen=True)
class Permutation:
    """A keyed bijection on [0, n) that maps positions to sample indices.

    It is an alternating Feistel network over ceil(log2 n) bits with cycle walking: Black and Rogaway, "Ciphers with
    arbitrary finite domains", CT-RSA 2002. It needs O(1) memory and, because the domain is below 2n (above 32 samples),
    fewer than two walks per position on average.

    Attributes:
        n: number of samples.
        keys: one 64-bit key for each round.
    """

    n: int
    keys: tuple[int, ...]

    @classmethod
    def of_epoch(cls, n: int, seed: int, epoch: int, number: int = 0) -> Permutation:
        """Return the permutation of `epoch` for `seed`; `number` distinguishes several permutations of an epoch.

        Raises ValueError unless 0 < n <= 2**62.
        """
        if not 0 < n <= 1 << 62:
            raise ValueError(f"n must be in [1, 2**62], got {n}")
        words = random_words(seed, epoch, np.full(1, number, np.int64), STREAM_ORDER, 2 * _ROUNDS)[0].tolist()
        return cls(n, tuple(low | high << 32 for low, high in zip(words[::2], words[1::2], strict=True)))

    def __call__(self, positions: Index) -> Index:
        """Return the sample indices at `positions`, both int64 [k] within [0, n)."""
        return self._walk(positions, backwards=False)

    def inverse(self, indices: Index) -> Index:
        """Return the positions of sample `indices`, both int64 [k] within [0, n)."""
        return self._walk(indices, backwards=True)

    def _walk(self, numbers: Index, *, backwards: bool) -> Index:
        bits = max(_MIN_BITS, (self.n - 1).bit_length())
        right_bits, keys = np.uint64(bits - bits // 2), list(map(np.uint64, self.keys))
        values = np.asarray(numbers, np.int64).astype(np.uint64)
        todo = np.arange(values.size)
        while todo.size:
            values[todo] = _network(values[todo], np.uint64(bits // 2), right_bits, keys, backwards)
            todo = todo[values[todo] >= np.uint64(self.n)]
        return values.astype(np.int64)


@dataclass(frozen=True)
class Permutations:
    """Permutations of k numbers, each with its own Permutation.

    Attributes:
        sizes: the size n of each permutation, int64 [k].
        keys: uint64 [rounds, k].
    """

    sizes: Index
    keys: Words

    @classmethod
    def of_epoch(cls, sizes: Index, seed: int, epoch: int, numbers: Index) -> Permutations:
        """Return the permutations with `numbers`, int64 [k], as Permutation.of_epoch does for one."""
        distinct, which = np.unique(numbers, return_inverse=True)
        words = random_words(seed, epoch, distinct, STREAM_ORDER, 2 * _ROUNDS)
        return cls(sizes, (words[:, ::2] | words[:, 1::2] << _SHIFT).T[:, which])

    def __call__(self, positions: Index) -> Index:
        """Return the numbers at `positions`, each below its size. Both int64 [k]."""
        exponents = np.frexp((self.sizes - 1).astype(np.float64))[1]  # exact: sizes are far below 2**53
        bits = np.maximum(_MIN_BITS, exponents).astype(np.uint64)
        left_bits, sizes = bits // np.uint64(2), self.sizes.astype(np.uint64)
        values = np.asarray(positions, np.int64).astype(np.uint64)
        todo = np.arange(values.size)
        while todo.size:
            left = left_bits[todo]
            values[todo] = _network(values[todo], left, bits[todo] - left, list(self.keys[:, todo]))
            todo = todo[values[todo] >= sizes[todo]]
        return values.astype(np.int64)


def _network(values: Words, left_bits: Bits, right_bits: Bits, keys: Sequence[Bits], backwards: bool = False) -> Words:
    """Return the network's output; bits and keys are uint64, one for all values or one per value."""
    low = (_ONE << right_bits) - _ONE
    left, right = values >> right_bits, values & low
    rounds = list(enumerate(keys))
    for number, key in reversed(rounds) if backwards else rounds:
        # The network alternates instead of swapping, which lets the halves differ by one bit.
        if number % 2 == 0:
            left = left ^ (_mix(right, key) >> (_WORD_BITS - left_bits))
        else:
            right = right ^ (_mix(left, key) >> (_WORD_BITS - right_bits))
    joined: Words = (left << right_bits) | right
    return joined


def _mix(values: Words, key: Bits) -> Words:
    """Hash each value to 64 keyed pseudo-random bits (multiply, fold, multiply; the best bits are on top)."""
    mixed: Words = (values + key) * _MIX1
    mixed ^= mixed >> _SHIFT
    return mixed * _MIX2
