"""Cursor names a place in the stream of samples."""

from __future__ import annotations

from typing import NamedTuple


class Cursor(NamedTuple):
    """Name a place in the stream.

    Attributes:
        epoch: number of the epoch, from 0.
        position: samples of the epoch that all ranks together have been served.
    """

    epoch: int
    position: int


NOWHERE = Cursor(-1, 0)  # the place of an engine while Ctrl-C could lose a batch: the loader then sends it to a place
