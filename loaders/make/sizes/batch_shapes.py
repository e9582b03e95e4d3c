"""BatchShapes says how many samples batches have and of which shape, by the arguments of create_loader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from penstock.loaders.make.sizes.aspect_buckets import checked_buckets
from penstock.loaders.make.sizes.patch_budget import PatchBudget
from penstock.loaders.make.sizes.size_schedule import DEFAULT_BATCH, make_phases
from penstock.loaders.order.epoch_steps import Rounds, Size
from penstock.loaders.order.schedule import Phase
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.plan.patch_grids import PATCH_CROPS
from penstock.pipelines.spec import ImagePipeline


class BatchShapes(NamedTuple):
    """Hold the most samples of a batch on each rank, and what changes it or the shape of images; see Schedule."""

    batch_size: int
    phases: tuple[Phase, ...]
    rounds: Rounds | None
    buckets: tuple[Size, ...]


def checked_shapes(
    views: Sequence[ImagePipeline],
    batch_size: Any,
    sizes: Any,
    buckets: Any,
    patches: Any,
    transform: Any,
    *,
    shuffled: bool,
) -> BatchShapes:
    """Return which shapes batches have. Raises ValueError for settings that do not go together."""
    most, phases = make_phases(batch_size, sizes, views[0].size)
    in_buckets = () if buckets is None else checked_buckets(buckets)
    if in_buckets and any(phase.by_update for phase in phases):
        raise ValueError("buckets need a batch_size by epoch: pass a dict, not ByUpdate(...)")
    if in_buckets and sizes is not None:
        raise ValueError("buckets are sizes for all epochs: leave out sizes")
    if len(views) > 1 and (in_buckets or sizes is not None):
        raise ValueError("several views have a size each: leave out sizes and buckets")
    for size in (*in_buckets, *(phase.size for phase in phases if sizes is not None)):
        replace(views[0], size=size)  # a pipeline that needs square images says so
    if patches is not None:
        others = {"buckets": buckets, "sizes": sizes, "batch_size by epoch": phases or None, "transform": transform}
        _check_patches(patches, views, batch_size, [name for name, given in others.items() if given is not None])
        rounds = patches.rounds(most, shuffled=shuffled)
        return BatchShapes(max(rounds.batch_sizes), (), rounds, ())
    if transform is not None and (phases or in_buckets):
        raise ValueError("transform needs one size for all batches: leave out sizes, buckets and a changing batch_size")
    return BatchShapes(most, phases, None, in_buckets)


def _check_patches(patches: Any, views: Sequence[ImagePipeline], batch_size: Any, others: Sequence[str]) -> None:
    """Raise ValueError for what cannot be patches; these go with none of the settings `others`."""
    view = views[0]
    if not isinstance(patches, PatchBudget):
        raise ValueError(f"patches must be a PatchBudget(...), got {shown(patches)}")
    if others:
        raise ValueError(f"patches have a size for each batch: leave out {' and '.join(others)}")
    if patches.tokens is not None and batch_size != DEFAULT_BATCH:
        raise ValueError(f"batch_size follows from tokens={patches.tokens}: leave one of them out")
    if len(views) > 1:
        raise ValueError(f"patches need a single view, got {len(views)}")
    if view.crop not in PATCH_CROPS or view.shorter_side is not None:
        raise ValueError(
            f"patches need crop={', '.join(map(repr, PATCH_CROPS))} without shorter_side, got {view.crop!r}"
        )
    if view.augment.active or view.rotate90:
        raise ValueError("patches cannot be augmented beyond crop and flips: leave out augmentations and rotate90")
