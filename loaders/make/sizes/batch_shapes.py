"""BatchShapes says how many samples batches have and of which shape, by the arguments of create_loader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.loaders.make.sizes.aspect_buckets import checked_buckets
from penstock.loaders.make.sizes.patch_budget import check_patches
from penstock.loaders.make.sizes.size_schedule import check_sizes, make_phases
from penstock.loaders.order.epoch_steps import Rounds, Size
from penstock.loaders.order.schedule import Phase
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
    check_sizes(views, phases, in_buckets, has_schedule=sizes is not None)
    others = {"buckets": buckets, "sizes": sizes, "batch_size by epoch": phases or None, "transform": transform}
    budget = check_patches(patches, views, batch_size, [name for name, given in others.items() if given is not None])
    if transform is not None and (phases or in_buckets):
        raise ValueError("transform needs one size for all batches: leave out sizes, buckets and a changing batch_size")
    rounds = None if budget is None else budget.rounds(most, shuffled=shuffled)
    return BatchShapes(most if rounds is None else max(rounds.batch_sizes), phases, rounds, in_buckets)
