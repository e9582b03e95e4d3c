"""Where the training images of a data set with a `train` and a `val` folder lie."""

from __future__ import annotations

from pathlib import Path


def training_folder(data: Path) -> Path:
    """Return `data`/train if `data` holds the folders `train` and `val`, which are then no classes; else `data`."""
    return data / "train" if (data / "train").is_dir() and (data / "val").is_dir() else data
