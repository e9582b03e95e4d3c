"""The last steps of a batch in the consumer: what goes with its images once all of its rows are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from penstock.loaders.data.sources.contract import Source, TargetSource, has_fields, has_targets
from penstock.loaders.data.sources.source_faults import naming_method
from penstock.loaders.make.engine_contract import HostBatch
from penstock.loaders.make.served_fields import ServedFields
from penstock.pipelines.targets import map_targets, parts_of

Step = Callable[[HostBatch], HostBatch]
_NO_LABEL = {"f": np.nan, "c": np.nan, "i": -1}


def finishing_steps(source: Source, patch: int | None, *, is_upright: bool, with_geometry: bool) -> list[Step]:
    """Return the steps that a batch of `source` takes, in their order.

    patch: side of the patches that images are cut into, None for whole images; others: as ServedFields takes them.
    """
    steps: list[Step] = []
    if has_targets(source):
        steps.append(partial(add_targets, source))
    if patch is not None:
        steps.append(partial(add_patches, patch))
    if has_fields(source) or with_geometry:
        steps.append(ServedFields(source, is_upright=is_upright, with_geometry=with_geometry))
    return steps


def add_targets(source: TargetSource, batch: HostBatch) -> HostBatch:
    """Return the batch with the labels of `source`; rows that hold no sample have no label.

    That is NaN for floats and -1 for integers, so that labels alone tell padding from samples. Types that have neither
    (bool, unsigned integers), which only sources of users return, have 0 there.
    """
    index = batch.index
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
    return replace(batch, labels=found)


def add_patches(patch: int, batch: HostBatch) -> HostBatch:
    """Return the batch with the fields of its patches; both are 0 for padding.

    patch_coord, int64 [batch, length, 2], holds row and column of each patch; patch_valid is bool [batch, length].
    """
    columns, rows = (batch.plan.places[:, 2:, None].astype(np.int64) // patch).swapaxes(0, 1)
    numbers = np.arange(batch.images.shape[1])
    valid = numbers < columns * rows
    places = np.divmod(numbers, np.maximum(columns, 1))
    coordinates = np.stack(places, 2) * valid[:, :, None]
    return replace(batch, fields={"patch_coord": coordinates, "patch_valid": valid, **batch.fields})
