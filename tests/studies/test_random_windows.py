"""The study of random windows compares windows of all its sources, and sees a pixel that differs."""

from __future__ import annotations

import random
from pathlib import Path

import native_tests
import numpy as np
import pytest
import random_windows

from penstock.pipelines.native.rows import NativeStage, Rows


def test_a_few_windows_of_each_source_are_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, draw = native_tests.native(), random.Random(1)
    listed = [source for source, _ in random_windows.sources(None, tmp_path)]
    for source in listed:
        assert random_windows.compare(library, source, 12, draw) > 4
    fill = NativeStage.fill

    def one_off(stage: NativeStage, rows: Rows, images: np.ndarray) -> bool:
        filled = fill(stage, rows, images)
        images[0, -1, -1, 2] ^= 1
        return filled

    monkeypatch.setattr(NativeStage, "fill", one_off)
    with pytest.raises(AssertionError):
        random_windows.compare(library, listed[0], 12, draw)
