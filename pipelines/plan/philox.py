"""A counter-based random number generator: Philox4x32-10 over numpy arrays.

Its words are a function of a counter and a key, so each can be computed without the previous ones.
Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.pipelines.native.library import native_library

_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_WEYL = np.array([[0x9E3779B9], [0xBB67AE85]], np.uint64)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_ROUNDS = 10

# Purposes of draws: order of samples; crops and flips; augmentations of the batch stage; samples drawn with
# replacement; samples kept of a class; the user's transforms; sequence lengths; one of several texts; the user's
# samplers. Each has its own counters, so draws for a new purpose never change the others.
STREAM_ORDER, STREAM_CROP, STREAM_BATCH, STREAM_DRAW, STREAM_CLASS_LIMIT, STREAM_TRANSFORM, STREAM_LENGTHS = range(7)
STREAM_TEXT, STREAM_SAMPLER = 7, 8


def view_stream(stream: int, view: int) -> int:
    """Return the stream for view number `view`, 0 to 255, of the purpose `stream`; view 0 uses `stream` itself."""
    return stream | view << 8


def philox4x32(counter: npt.NDArray[np.uint64], key: tuple[int, int]) -> npt.NDArray[np.uint64]:
    """Apply ten Philox rounds to n counters under one key.

    counter: uint64 [4, n], four words below 2**32 for each; key: two words of 32 bits. Returns four words for each
    counter, uint64 [4, n].
    """
    multiplied, mixed = counter[::2], counter[1::2]  # words 0 and 2, 1 and 3: two rows at a time
    keys = np.array(key, np.uint64).reshape(2, 1)
    for _ in range(_ROUNDS):
        products = (multiplied * _MULTIPLIERS)[::-1]
        multiplied, mixed = (products >> _SHIFT) ^ mixed ^ keys, products & _LOW
        keys = (keys + _WEYL) & _LOW
    return np.stack((multiplied[0], mixed[0], multiplied[1], mixed[1]))


def random_words(
    seed: int, epoch: int, index: npt.NDArray[np.int64], stream: int, count: int
) -> npt.NDArray[np.uint64]:
    """Draw `count` random 32-bit words for each sample: uint64 [len(index), count], each below 2**32.

    The words depend only on (seed, epoch, sample index, stream). The seed (64 bits) is the key; sample index (64 bits),
    epoch (32 bits), stream and block number (16 bits each) fill the counter, so no two draws share a counter.
    Raises ValueError for a seed, epoch or count out of these ranges.
    """
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed must be in [0, 2**64), got {seed}")
    if not 0 <= epoch < 1 << 32:
        raise ValueError(f"epoch must be in [0, 2**32), got {epoch}")
    if not 0 < -(-count // 4) < 1 << 16:
        raise ValueError(f"count must be in [1, 262140], got {count}")
    numbers = np.ascontiguousarray(index, np.int64)
    library = native_library()
    if library is None:
        return _draw_words(seed, epoch, numbers, stream, count)
    words = np.empty((len(numbers), count), np.uint64)
    place = words.ctypes.data
    library.pn_random_words(seed, epoch, stream, numbers.ctypes.data, len(numbers), count, place)
    return words


def _draw_words(seed: int, epoch: int, index: npt.NDArray[np.int64], stream: int, count: int) -> npt.NDArray[np.uint64]:
    """Draw the words of random_words without the native library."""
    blocks = -(-count // 4)
    samples = np.repeat(index.astype(np.uint64), blocks)
    counter = np.empty((4, samples.size), np.uint64)
    counter[0], counter[1] = samples & _LOW, samples >> _SHIFT
    counter[2] = epoch
    counter[3] = np.tile(np.arange(blocks, dtype=np.uint64), len(index)) | np.uint64(stream << 16)
    words = philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32))
    return words.T.reshape(len(index), 4 * blocks)[:, :count]


def uniforms(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Turn 32-bit words into float64 in [0, 1): exactly word / 2**32."""
    return words.astype(np.float64) * 2.0**-32
