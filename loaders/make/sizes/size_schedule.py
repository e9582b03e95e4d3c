"""Checks of the user's settings for batch sizes, image sizes, buckets and patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from penstock.loaders.make.sizes.aspect_buckets import checked_buckets, checked_size
from penstock.loaders.order.epoch_steps import Rounds, Size
from penstock.loaders.order.schedule import Phase
from penstock.loaders.order.state import NUM_EPOCHS
from penstock.pipelines.messages.checked import checked_int, checked_number, set_checked, shown
from penstock.pipelines.plan.patch_grids import PATCH_CROPS
from penstock.pipelines.spec import ImagePipeline

DEFAULT_BATCH = 256
_MAX_UPDATES = 1 << 62
_MAX_PATCH, _MAX_LENGTH, _MAX_LENGTHS = 256, 1 << 16, 64


@dataclass(frozen=True, kw_only=True)
class PatchBudget:
    """Settings for images that keep their aspect ratio and are cut into patches, as for timm's NaFlex models.

    Every batch has one of `sequence_lengths`. An image is scaled to the largest size that fits the length in patches;
    the rest of its row is padding, which patch_valid marks. All lengths are used equally often, in random order; a
    length that is listed twice is used twice as often. Raises ValueError for settings that cannot work.

    Attributes:
        size: side of a patch, in pixels.
        sequence_lengths: maximum number of patches per image, one number or several.
        tokens: patches per batch on each rank, with padding: a batch of length L has tokens // L images. The default
            is batch_size images of the longest sequence.
        max_ratio: largest factor by which an image is enlarged, such as 1 for never; None for no limit.
    """

    size: int = 16
    sequence_lengths: int | Sequence[int] = (128, 256, 576)
    tokens: int | None = None
    max_ratio: float | None = None

    def __post_init__(self) -> None:
        lengths: object = self.sequence_lengths
        lengths = tuple(lengths) if isinstance(lengths, (tuple, list)) else (lengths,)
        if not 1 <= len(lengths) <= _MAX_LENGTHS:
            raise ValueError(
                f"sequence_lengths of PatchBudget must be 1 to {_MAX_LENGTHS} numbers, got {shown(lengths)}"
            )
        lengths = tuple(checked_int("sequence_lengths of PatchBudget", length, 1, _MAX_LENGTH) for length in lengths)
        set_checked(self, size=checked_int("size of PatchBudget", self.size, 1, _MAX_PATCH), sequence_lengths=lengths)
        if self.tokens is not None:
            set_checked(self, tokens=checked_int("tokens of PatchBudget", self.tokens))
            if self.tokens < max(lengths):
                raise ValueError(
                    f"tokens of PatchBudget must be at least the longest sequence, {max(lengths)}, got {self.tokens}"
                )
        if self.max_ratio is not None:
            set_checked(self, max_ratio=float(checked_number("max_ratio of PatchBudget", self.max_ratio, above=0)))

    def rounds(self, batch_size: int, *, shuffled: bool) -> Rounds:
        """Return the lengths and sizes of batches; `batch_size` is used if `tokens` is None."""
        assert isinstance(self.sequence_lengths, tuple)
        tokens = batch_size * max(self.sequence_lengths) if self.tokens is None else self.tokens
        return Rounds(
            patch=self.size,
            lengths=self.sequence_lengths,
            batch_sizes=tuple(tokens // length for length in self.sequence_lengths),
            max_ratio=self.max_ratio,
            shuffled=shuffled,
        )


@dataclass(frozen=True)
class ByUpdate:
    """Sizes that change at batches of the run, such as ByUpdate({0: 128, 5000: 160}).

    Batches are counted from 0 across all epochs. A change within an epoch does not change the order of the
    samples: each is still served once. Raises ValueError for anything but a dict.

    Attributes:
        values: number of the batch at which a size changes -> size from that batch on.
    """

    values: Mapping[int, object]

    def __post_init__(self) -> None:
        if not isinstance(self.values, Mapping):
            raise ValueError(f"ByUpdate needs a dict, such as {{0: 128, 5000: 160}}, got {shown(self.values)}")


def make_phases(batch_size: object, sizes: object, size: Size) -> tuple[int, tuple[Phase, ...]]:
    """Return the largest batch size, and batch and image size by epoch or update: () if neither changes.

    batch_size: one number, or a dict of first epoch -> number. sizes: the same for image sizes, each a side or (height,
    width); None for a constant `size`. Either may be a ByUpdate. Raises ValueError.
    """
    given = [each for each in (batch_size, sizes) if isinstance(each, (Mapping, ByUpdate))]
    if sizes is None and not given:
        return checked_int("batch_size", batch_size, 1), ()
    if sizes is not None and not isinstance(sizes, (Mapping, ByUpdate)):
        raise ValueError(f"sizes must be a dict of first epoch -> size, such as {{0: 128, 6: 224}}, got {shown(sizes)}")
    by_update = isinstance(given[0], ByUpdate)
    if any(isinstance(each, ByUpdate) != by_update for each in given):
        raise ValueError("sizes and batch_size must both change by epoch, or both by update: make both ByUpdate(...)")
    number_changes = isinstance(batch_size, (Mapping, ByUpdate))
    numbers = _by_first("batch_size", batch_size if number_changes else {0: batch_size})
    shapes = _by_first("sizes", {0: size} if sizes is None else sizes)
    phases = []
    for place in sorted({*numbers, *shapes}):
        number, shape = (named[max(first for first in named if first <= place)] for named in (numbers, shapes))
        number, shape = checked_int("batch_size", number, 1), checked_size("sizes", shape)
        phases.append(Phase(place, number, shape, by_update))
    return max(phase.batch_size for phase in phases), tuple(phases)


def _by_first(name: str, values: Any) -> dict[int, Any]:
    unit, most = ("batch", _MAX_UPDATES) if isinstance(values, ByUpdate) else ("epoch", NUM_EPOCHS - 1)
    values = values.values if isinstance(values, ByUpdate) else values
    named = {checked_int(f"{name} ({unit})", first, 0, most): value for first, value in values.items()}
    if 0 not in named:
        raise ValueError(f"{name} needs a value for {unit} 0, got {shown(values)}")
    return named


class BatchShapes(NamedTuple):
    """The maximum number of samples per batch on each rank, and the changes of batch and image size; see Schedule."""

    batch_size: int
    phases: tuple[Phase, ...]
    rounds: Rounds | None
    buckets: tuple[Size, ...]

    @property
    def equal_batch(self) -> int | None:
        """The number of samples of every batch on each rank; None if it changes."""
        sizes = {phase.batch_size for phase in self.phases} | set(self.rounds.batch_sizes if self.rounds else ())
        return self.batch_size if len(sizes) < 2 else None


def checked_shapes(
    views: Sequence[ImagePipeline],
    batch_size: Any,
    sizes: Any,
    buckets: object,
    patches: Any,
    transform: object,
    *,
    shuffled: bool,
) -> BatchShapes:
    """Return the shapes of batches. Raises ValueError for settings that cannot be combined."""
    if any(view.size is None for view in views):
        others = {"sizes": sizes, "buckets": buckets, "patches": patches, "transform": transform}
        refused = [name for name, given in others.items() if given is not None]
        refused += ["a changing batch_size"] * isinstance(batch_size, (Mapping, ByUpdate)) + ["views"] * (
            len(views) > 1
        )
        if refused:
            raise ValueError(f"size=None, images of own sizes, cannot be combined with {' and '.join(refused)}")
        return BatchShapes(checked_int("batch_size", batch_size, 1), (), None, ())
    most, phases = make_phases(batch_size, sizes, views[0].output_size)
    in_buckets = () if buckets is None else checked_buckets(buckets)
    if in_buckets and any(phase.by_update for phase in phases):
        raise ValueError("buckets need a batch_size by epoch: pass a dict, not ByUpdate(...)")
    if in_buckets and sizes is not None:
        raise ValueError("sizes and buckets cannot be combined: buckets already set the sizes of every epoch")
    if len(views) > 1 and (in_buckets or sizes is not None):
        raise ValueError("several views cannot be combined with sizes or buckets: each view has its own size")
    for size in (*in_buckets, *(phase.size for phase in phases if sizes is not None)):
        replace(views[0], size=size)  # raises an error if the pipeline needs square images
    if patches is not None:
        others = {"buckets": buckets, "sizes": sizes, "batch_size by epoch": phases or None, "transform": transform}
        _check_patches(patches, views, batch_size, [name for name, given in others.items() if given is not None])
        rounds = patches.rounds(most, shuffled=shuffled)
        return BatchShapes(max(rounds.batch_sizes), (), rounds, ())
    if transform is not None and (phases or in_buckets):
        raise ValueError(
            "transform needs one size for all batches: do not pass sizes, buckets or a changing batch_size"
        )
    return BatchShapes(most, phases, None, in_buckets)


def _check_patches(patches: object, views: Sequence[ImagePipeline], batch_size: object, others: Sequence[str]) -> None:
    """Raise ValueError for invalid `patches`, and if they are combined with any of the settings `others`."""
    view = views[0]
    if not isinstance(patches, PatchBudget):
        raise ValueError(f"patches must be a PatchBudget(...), got {shown(patches)}")
    if others:
        raise ValueError(f"patches cannot be combined with {' and '.join(others)}: patches set the size of each batch")
    if patches.tokens is not None and batch_size != DEFAULT_BATCH:
        raise ValueError(f"batch_size follows from tokens={patches.tokens}: pass only one of them")
    if len(views) > 1:
        raise ValueError(f"patches need a single view, got {len(views)}")
    if view.crop not in PATCH_CROPS or view.shorter_side is not None or view.resize_first:
        crops = ", ".join(map(repr, PATCH_CROPS))
        raise ValueError(f"patches need crop={crops} without shorter_side and resize_first, got {view.crop!r}")
    if view.augment.active or view.rotate90:
        raise ValueError("patches support crops and flips only: do not use augmentations and rotate90")
