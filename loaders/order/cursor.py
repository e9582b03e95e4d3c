"""Cursor: a place in the stream of samples."""

from __future__ import annotations

from typing import NamedTuple


class Cursor(NamedTuple):
    """A place in the stream.

    Attributes:
        epoch: number of the epoch, from 0.
        position: samples of the epoch that were served so far on all ranks together.
    """

    epoch: int
    position: int


NOWHERE = Cursor(-1, 0)  # an engine's place while Ctrl-C could lose a batch: the loader then seeks to a valid place
