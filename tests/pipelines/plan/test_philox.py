"""Philox words: the published vectors, an independent scalar version, and draws that never coincide."""

from __future__ import annotations

import native_tests
import numpy as np
import pytest

from penstock.pipelines.plan import philox
from penstock.pipelines.plan.philox import STREAM_BATCH, STREAM_CROP, philox4x32, random_words, uniforms

LOW = 0xFFFFFFFF
# Random123, tests/kat_vectors, philox4x32 10: counter, key, result.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([LOW] * 4, [LOW] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def scalar_philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 in Python integers, from the paper's figure."""
    c, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c[0], 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 1 << 32)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) & LOW, (k[1] + 0xBB67AE85) & LOW]
    return c


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    words = philox4x32(np.array(counter, np.uint64)[:, None], (key[0], key[1]))
    assert words[:, 0].tolist() == expected
    assert scalar_philox(counter, key) == expected


@pytest.mark.parametrize("library", ["native", "numpy"])
@pytest.mark.parametrize("count", [1, 3, 4, 5, 24, 41])
def test_words_come_from_seed_epoch_index_stream_and_block(
    count: int, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(philox, "native_library", lambda: native_tests.native() if library == "native" else None)
    seed, epoch, index = 0x0123456789ABCDEF, 77, np.array([0, 5, 2**33 + 1, 2**62])
    words = random_words(seed, epoch, index, STREAM_CROP, count)
    assert (words.shape, words.dtype) == ((4, count), np.uint64)
    for row, sample in zip(words.tolist(), index.tolist(), strict=True):
        expected: list[int] = []
        for block in range(-(-count // 4)):
            counter = [sample & LOW, sample >> 32, epoch, STREAM_CROP << 16 | block]
            expected += scalar_philox(counter, [seed & LOW, seed >> 32])
        assert row == expected[:count]


@pytest.mark.parametrize(
    ("seed", "epoch", "count"), [(-1, 0, 1), (2**64, 0, 1), (0, -1, 1), (0, 2**32, 1), (0, 0, 0), (0, 0, 2**18)]
)
def test_values_out_of_range_are_rejected(seed: int, epoch: int, count: int) -> None:
    with pytest.raises(ValueError, match="must be in"):
        random_words(seed, epoch, np.arange(2), STREAM_CROP, count)


def test_the_ends_of_the_ranges_work() -> None:
    index = np.array([0, 2**63 - 1, -1])  # -1 is padding: its draws are not used, but it must not raise
    words = random_words(2**64 - 1, 2**32 - 1, index, STREAM_BATCH, 4)
    assert len(np.unique(words)) == 12
    assert words.max() <= LOW


def test_uniforms_are_exact_and_below_one() -> None:
    values = uniforms(np.array([0, 1, 2**31, LOW], np.uint64))
    assert values.dtype == np.float64
    assert values.tolist() == [0.0, 2.0**-32, 0.5, 1 - 2.0**-32]
