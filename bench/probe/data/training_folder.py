"""Finds the training images of a data set with a `train` and a `val` folder."""

from __future__ import annotations

import os


def training_folder(data: str) -> str:
    """Return `data`/train if `data` contains the folders `train` and `val`, which then are not classes; else `data`."""
    train, val = (os.path.join(data, name) for name in ("train", "val"))
    return train if os.path.isdir(train) and os.path.isdir(val) else data
