"""Reads batch and image sizes that change by epoch, as users give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.loaders.sizes.aspect_buckets import checked_size
from penstock.loaders.stream.bucket_order import Size
from penstock.loaders.stream.schedule import Phase
from penstock.loaders.stream.state import NUM_EPOCHS
from penstock.pipelines.checked import checked_int, shown
from penstock.pipelines.spec import ImagePipeline


def make_phases(batch_size: Any, sizes: Any, size: Size) -> tuple[int, tuple[Phase, ...]]:
    """Return the largest batch size, and batch and image size by epoch: () if neither changes.

    batch_size: one number, or of each first epoch that of the epochs from it on. sizes: the same for image sizes, each
    a side or (height, width); None for `size` throughout. Raises ValueError.
    """
    if sizes is None and not isinstance(batch_size, Mapping):
        return checked_int("batch_size", batch_size, 1), ()
    if sizes is not None and not isinstance(sizes, Mapping):
        raise ValueError(f"sizes must be a dict of first epoch -> size, such as {{0: 128, 6: 224}}, got {shown(sizes)}")
    numbers = _by_epoch("batch_size", batch_size if isinstance(batch_size, Mapping) else {0: batch_size})
    shapes = _by_epoch("sizes", {0: size} if sizes is None else sizes)
    phases = []
    for epoch in sorted({*numbers, *shapes}):
        number, shape = (named[max(first for first in named if first <= epoch)] for named in (numbers, shapes))
        phases.append(Phase(epoch, checked_int("batch_size", number, 1), checked_size("sizes", shape)))
    return max(phase.batch_size for phase in phases), tuple(phases)


def check_sizes(
    views: Sequence[ImagePipeline], phases: Sequence[Phase], buckets: Sequence[Size], *, has_schedule: bool
) -> None:
    """Raise ValueError where image sizes cannot change, or not to these."""
    if buckets and has_schedule:
        raise ValueError("buckets are sizes for all epochs: leave out sizes")
    if len(views) > 1 and (buckets or has_schedule):
        raise ValueError("several views have a size each: leave out sizes and buckets")
    for size in (*buckets, *(phase.size for phase in phases if has_schedule)):
        replace(views[0], size=size)  # a pipeline that needs square images says so


def _by_epoch(name: str, values: Mapping[Any, Any]) -> dict[int, Any]:
    named = {checked_int(f"{name} (epoch)", epoch, 0, NUM_EPOCHS - 1): value for epoch, value in values.items()}
    if 0 not in named:
        raise ValueError(f"{name} must say what holds from epoch 0 on, got {shown(values)}")
    return named
