"""Collects keys, image names and texts of the samples of a tar in packed arrays, without Python objects for each."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.samples.samples_writer import CHUNK, PackedNames


class ImageNames(Sequence[bytes]):
    """The names of samples, each of which can be replaced."""

    def __init__(self) -> None:
        self._text, self._starts, self._lengths = bytearray(), array("Q"), array("I")

    def append(self, name: bytes) -> None:
        """Add a name."""
        self._starts.append(len(self._text))
        self._lengths.append(len(name))
        self._text += name

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: int) -> bytes:  # type: ignore[override]
        start = self._starts[number]
        return bytes(self._text[start : start + self._lengths[number]])

    def __setitem__(self, number: int, name: bytes) -> None:
        start = self._starts[number]
        if start + self._lengths[number] == len(self._text):
            del self._text[start:]
        self._starts[number], self._lengths[number] = len(self._text), len(name)
        self._text += name

    def pack(self, kept: npt.NDArray[np.bool_]) -> PackedNames:
        """Return the names marked in `kept` (bool [n]), in their order."""
        packed, lengths = PackedNames(), np.asarray(self._lengths)
        if kept.all() and len(self._text) == int(lengths.sum()):
            packed.text = self._text
            packed.ends.frombytes(np.cumsum(lengths, dtype=np.uint64).tobytes())
            return packed
        numbers = np.flatnonzero(kept)
        for first in range(0, len(numbers), CHUNK):
            packed.extend([self[number] for number in numbers[first : first + CHUNK].tolist()])
        return packed


class KeyNumbers:
    """Numbers keys in the order of their first occurrence: a hash table of 16 to 20 bytes per key.

    Args:
        names: a name with each of the keys.
        key_of: function of a name that returns its key.
    """

    def __init__(self, names: ImageNames, key_of: Callable[[bytes], bytes]) -> None:
        self._names, self._key_of, self._mask = names, key_of, 1023
        self._heads = array("i", [-1]) * (self._mask + 1)  # the last key of each place in the table
        self._hashes, self._others = array("q"), array("i")  # of each key, and the key before it in its place

    def find(self, key: bytes) -> int:
        """Return the number of a key; for a new key, the number of keys before it."""
        code = hash(key)
        place = code & self._mask
        number, hashes = self._heads[place], self._hashes
        while number >= 0:
            if hashes[number] == code and self._key_of(self._names[number]) == key:
                return number
            number = self._others[number]
        number = len(hashes)
        hashes.append(code)
        self._others.append(self._heads[place])
        self._heads[place] = number
        if number == self._mask:
            self._grow()
        return number

    def _grow(self) -> None:
        self._mask = 2 * self._mask + 1
        places = np.frombuffer(self._hashes, np.int64) & self._mask
        order = np.argsort(places, kind="stable").astype(np.int32)
        heads, others = np.full(self._mask + 1, -1, np.int32), np.full(len(places), -1, np.int32)
        in_order = places[order]
        heads[in_order] = order  # the last of equal places stays
        is_same = in_order[1:] == in_order[:-1]
        others[order[1:][is_same]] = order[:-1][is_same]
        self._heads, self._others = array("i", heads.tobytes()), array("i", others.tobytes())


class PlacedTexts:
    """The labels or texts of samples at one place: a text, which may be empty, or None for a sample without one."""

    def __init__(self) -> None:
        self._text, self._starts, self._lengths = bytearray(), array("q"), array("I")

    def add(self, number: int, text: bytes) -> bool:
        """Add the text of sample `number`; return False if it has one already."""
        starts = self._starts
        missing = number + 1 - len(starts)
        if missing > 0:
            starts.extend([-1] * missing)
            self._lengths.extend([0] * missing)
        elif starts[number] >= 0:
            return False
        starts[number], self._lengths[number] = len(self._text), len(text)
        self._text += text
        return True

    def has(self, number: int) -> bool:
        """Return whether sample `number` has a text."""
        return number < len(self._starts) and self._starts[number] >= 0

    def find_missing(self, count: int) -> npt.NDArray[np.int64]:
        """Return the numbers of those of `count` samples that have no text, or an empty one."""
        return np.flatnonzero(np.asarray(self._lengths) == 0) if self._starts else np.arange(count)

    def keep(self, kept: npt.NDArray[np.bool_]) -> None:
        """Keep the samples marked in `kept` (bool [n]), if any sample has a text."""
        if not self._starts:
            return
        starts, lengths = np.full(len(kept), -1), np.zeros(len(kept), np.uint32)
        starts[: len(self._starts)], lengths[: len(self._starts)] = self._starts, self._lengths
        self._starts, self._lengths = array("q", starts[kept].tobytes()), array("I", lengths[kept].tobytes())

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[bytes | None]:
        text = bytes(self._text)
        for start, length in zip(self._starts, self._lengths, strict=True):
            yield None if start < 0 else text[start : start + length]
