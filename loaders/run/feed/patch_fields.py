"""Puts the coordinates of patches, and which of them are padding, into the batches of an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from penstock.loaders.make.engine_contract import HostBatch
from penstock.pipelines.batch.upload_parameters import to_device


def add_patches(next_batch: Callable[[], HostBatch], patch: int | None) -> Callable[[], HostBatch]:
    """Return what makes the same batches with the fields patch_coord and patch_valid; as they are without patches."""
    return next_batch if patch is None else partial(_with_patches, next_batch, patch)


def _with_patches(next_batch: Callable[[], HostBatch], patch: int) -> HostBatch:
    """Add patch_coord, int64 [batch, length, 2], row and column of each patch, and patch_valid, bool [batch, length].

    Both are 0 for padding.
    """
    batch = next_batch()
    columns, rows = (batch.places[:, 2:, None].astype(np.int64) // patch).swapaxes(0, 1)
    numbers = np.arange(batch.images.shape[1])
    valid = numbers < columns * rows
    places = np.divmod(numbers, np.maximum(columns, 1))
    coordinates = np.stack(places, 2) * valid[:, :, None]
    return replace(batch, fields={"patch_coord": coordinates, "patch_valid": valid, **batch.fields})


def clear_padding(patches: torch.Tensor, host: HostBatch) -> None:
    """Set the patches of `host` that are padding to 0, after they were normalised."""
    valid = host.fields.get("patch_valid")
    if valid is not None:
        padding = np.flatnonzero(~valid)
        patches.flatten(0, 1).index_fill_(0, to_device(padding, patches.device), 0)
