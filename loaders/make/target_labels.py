"""Puts labels that are no class numbers into the batches of an engine, which serve class numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.files.contract import Source, TargetSource, has_targets
from penstock.loaders.data.files.source_faults import naming_method
from penstock.loaders.make.engine_contract import HostBatch
from penstock.pipelines.targets import Targets, map_targets, parts_of

_NO_LABEL = {"f": np.nan, "c": np.nan, "i": -1}


def add_targets(next_batch: Callable[[], HostBatch], source: Source) -> Callable[[], HostBatch]:
    """Return what makes the same batches with the labels of `source`; rows that hold no sample have no label.

    That is NaN for floats and -1 for integers, so that labels alone tell padding from samples. Types that have neither
    (bool, unsigned integers), which only sources of users return, have 0 there.
    """
    if not has_targets(source):
        return next_batch

    def next_with_targets() -> HostBatch:
        batch = next_batch()
        return replace(batch, labels=_look_up(source, batch.index))

    return next_with_targets


def _look_up(source: TargetSource, index: npt.NDArray[np.int64]) -> Targets:
    with naming_method("targets()"):
        found = source.targets(np.maximum(index, 0))
        wrong = [part.shape for part in parts_of(found).values() if len(part) != len(index)]
        if wrong:
            raise ValueError(f"{len(index)} samples were asked for, the labels have shape {list(wrong[0])}")
    absent = index < 0
    if absent.any():
        found = map_targets(np.array, found)  # the source may keep what it returned
        for part in parts_of(found).values():
            part[absent] = _NO_LABEL.get(part.dtype.kind, 0)
    return found
