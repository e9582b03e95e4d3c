"""Small folders of synthesised JPEGs for tests of loaders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import simplejpeg


def photo(number: int, *, large: bool = False) -> bytes:
    """A smooth coloured JPEG. `number` sets its content and size: 40 to 119 pixels per side; `large`: tenfold."""
    rng = np.random.default_rng(number)
    height, width = (int(side) * (10 if large else 1) for side in rng.integers(40, 120, 2))
    rows, columns = np.linspace(0, 6, height)[:, None, None], np.linspace(0, 6, width)[None, :, None]
    phase = rng.uniform(0, 6, 3)
    waves = np.sin(rows * rng.uniform(0.5, 3) + phase) + np.cos(columns * rng.uniform(0.5, 3) - phase)
    pixels = np.ascontiguousarray((waves * 60 + 128).clip(0, 255).astype(np.uint8))
    data: bytes = simplejpeg.encode_jpeg(pixels, 90, "RGB", ("444", "420", "422")[number % 3])
    return data


def write_folder(root: Path, count: int, classes: int = 3) -> Path:
    """Write `count` photos to `classes` class folders under `root`; return `root`."""
    for number in range(count):
        folder = root / f"class{number % classes}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:04d}.jpg").write_bytes(photo(number))
    return root
