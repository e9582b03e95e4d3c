"""Thousands of damaged images: no crash, no hang, no other exception, one verdict from all decoders."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import image_fuzz
from forked_child import ForkedChild

from penstock.pipelines.errors import ERROR_CODES

NUM_INPUTS = 5_000  # a tenth is neither JPEG nor PNG
NUM_CHILDREN = 2


def decode(numbers: range, progress: Path) -> dict[str, Any]:
    """Run in a fork, which may crash and has a memory limit."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "16-bit images")
        return image_fuzz.run(image_fuzz.make_inputs(numbers.start, numbers.stop), numbers.start, progress)


def test_damaged_images_are_accepted_or_refused_alike(tmp_path: Path) -> None:
    share, children = NUM_INPUTS // NUM_CHILDREN, []
    for first in range(0, NUM_INPUTS, share):
        numbers, progress = range(first, first + share), tmp_path / f"{first}"
        children.append((ForkedChild(lambda _, n=numbers, p=progress: decode(n, p)), progress))  # type: ignore[misc]
    verdicts = Counter[str]()
    for child, progress in children:
        try:
            report = child.result()
        except AssertionError as error:
            raise AssertionError(f"at input {progress.read_text('ascii')}") from error
        assert report["findings"] == []
        verdicts.update(report["verdicts"])
    assert verdicts.total() == NUM_INPUTS
    assert set(verdicts) - {"accepted"} <= set(ERROR_CODES)
    for verdict in ("accepted", "E-CORRUPT", "E-TRUNC", "E-UNSUPPORTED", "E-BOMB", "E-FORMAT"):
        assert verdicts[verdict] > 3, verdicts
    assert 0.2 < verdicts["accepted"] / NUM_INPUTS < 0.8
