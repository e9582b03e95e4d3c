"""Public functions to split data into parts, join data sets, and add labels and fields."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np
from typing_extensions import Unpack

from penstock.loaders.data.cache.hdf5_cache import Hdf5Cache
from penstock.loaders.data.fields.field_specs import Boxes, Coco, Keypoints, Yolo, count_values, field_source
from penstock.loaders.data.labels.class_names import warn_of_joined_classes
from penstock.loaders.data.labels.collect_texts import LEAVE_OUT
from penstock.loaders.data.labels.labelled import count_labels, label_source
from penstock.loaders.data.remote.access import Access
from penstock.loaders.data.sources.contract import SampledSource, Source
from penstock.loaders.data.sources.data import Data, find_whole, join_sources
from penstock.loaders.data.sources.step import MixtureShares
from penstock.loaders.data.tables.field_columns import fill_columns, has_column, refuse_other_order
from penstock.loaders.data.views.split import split_source
from penstock.loaders.data.views.stacked import StackedSource
from penstock.loaders.data.views.subset import is_reordered, take_part
from penstock.loaders.front.loader_options import FieldOptions, OpenOptions, RelabelOptions
from penstock.loaders.front.open_source import SourceLike, open_source, split_options, take_options
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.messages.user_warnings import warn_user


def split(
    source: SourceLike,
    parts: float | Sequence[float] = 0.9,
    *,
    seed: int = 0,
    by_class: bool = True,
    save: str | os.PathLike[str] | None = None,
    **options: Unpack[OpenOptions],
) -> tuple[Data, ...]:
    """Split data into parts, such as training and validation, that never overlap.

        train, validation = split("photos", 0.9, seed=0, save="cut.json")
        loader = create_loader(train, backend="hdf5", cache="photos.h5")

    A hash of the sample's name decides its part, so the location and order of the data do not matter.
    An image file that is listed in several classes is in one part with all its rows.
    With `save`, samples never change parts when more data is added, unless their file gets a second class.

    Args:
        source: any source that open_source accepts, with its `options`.
        parts: the share of the first of two parts, or the shares of all parts, such as (0.8, 0.1, 0.1).
        seed: a different seed gives different parts.
        by_class: give exact shares of each class, with at least one sample in each part if the class has enough.
        save: a JSON file for the hash thresholds; an existing file is used.

    Raises ValueError for impossible shares, LoaderError E-STATE for the file of another split, E-NODATA for an empty
    part, and the errors of open_source.
    """
    return split_source(open_source(source, **options), parts, seed=seed, by_class=by_class, save=save)


def with_labels(
    source: SourceLike, labels: Any, *, classes: Any = None, **options: Unpack[RelabelOptions]
) -> SampledSource:
    """Return the data with your own labels of any kind, one per image in the order of the data.

        prices = with_labels("photos", np.array([1.5, 0.2, ...]))  # float32 [batch] in each batch
        tags = with_labels("photos", [["sea", "sky"], [], ["dog"]])  # float32 [batch, 3], 1 for each tag
        both = with_labels("photos", {"price": prices, "kind": ["boat", "dog", "dog"]})  # a dict of tensors
        ages = with_labels("photos", lambda name: age_of[name])

    These labels are not stored in caches, so one cache serves all of them. Rows without a sample have class number -1,
    or NaN.

    Args:
        source: any source that open_source accepts, with its `options`.
        labels: class numbers (integers [n]), served as int64 [batch]; class names (strings); floats [n] or numbers [n,
            k], served as float32 [batch] or [batch, k]; a set of class names per sample, served as float32 [batch,
            classes]; a dict of these by name, served as a dict; or a function that maps a sample's name to its label.
            With subset= or max_per_class=, pass labels for all samples of the data, or for those of the part only.
        classes: names of the class numbers, or of the elements of each label; for several labels, a dict of these.

    Raises ValueError for other labels, and the errors of open_source.
    """
    given: dict[str, Any] = {**options}
    part = take_options(given)
    whole = open_source(source, **given)
    later = part if count_labels(labels) == len(whole) else {}
    labelled = label_source(whole if later else take_part(whole, **part), labels, classes)
    return take_part(labelled, **later)


@overload
def with_fields(source: SourceLike, **fields: Unpack[FieldOptions]) -> SampledSource: ...
@overload
def with_fields(source: SourceLike, **fields: Any) -> SampledSource: ...  # fields of any name
def with_fields(source: SourceLike, **fields: Any) -> SampledSource:
    """Return the data with more fields per sample than image and label; batches have them by name.

        with_fields("images", mask="masks")  # {"images": ..., "labels": ..., "mask": uint8 [batch, height, width]}
        with_fields("images", boxes=Boxes(corners, classes, names=["cat", "dog"]), caption=captions)
        with_fields("images", coco="instances.json")
        with_fields("low", sharp=ImageTargets("high", scale=4))  # uint8 [batch, 3, 4 * height, 4 * width]
        with_fields("train.parquet", mask=Column("mask"), boxes=Boxes(Column("boxes"), Column("classes")))

    Masks, image targets, boxes and keypoints follow the crop, rotation and flip of their image, and the geometric
    operations of auto_augment. With several views each is a tuple with one element per view. They cannot be combined
    with mixup and cutmix.

    Boxes are served as lists of float32 [k, 4], one tensor per image, with `boxes_classes`, int64 [k]: detection models
    expect one dict of such tensors per image. Boxes(..., padded=True) serves [batch, most, 4], [batch, most] (-1 after
    the last box) and `boxes_lengths`.

    Args:
        source: any source that open_source accepts; its options may be passed together with the fields.
        fields: by name. For the name `mask`, the arguments of Masks; `boxes`, of Boxes; `keypoints`, of Keypoints;
            `coco`, the path of a JSON file; `yolo`, a folder of text files. For any name: Masks, ImageTargets, Boxes,
            Keypoints, Coco or Yolo; open_source(...) of images, served as ImageTargets(open_source(...)); a list of
            strings, bytes or JSON objects, one per sample in the order of the data; a function that maps a sample's
            name to such a value; or open_source("a.tar", image="txt") for the texts in tars. These are served as lists.
            Column("name") replaces a list: it names a column of the table, data frame, Parquet or Arrow files passed as
            `source`, or of another table. With subset= or max_per_class=, pass a list for all samples of the data, or
            for those of the part only; a Column always covers all samples.

    Raises ValueError for fields that do not fit the data, and the errors of open_source.
    """
    options, own = split_options(fields)
    if not isinstance(options.get("text", ""), str):  # texts, not their place in the data
        del options["text"]
        own = {name: value for name, value in fields.items() if name not in options}
    part = take_options(options)
    whole = open_source(source, **options)
    if any(map(has_column, own.values())) and is_reordered(whole):
        raise ValueError(
            "a Column has one value per row of a table, but this source serves the rows in another order: add the "
            "fields to the data first, or pass subset= to with_fields"
        )
    access = Access.among(options)
    filled = fill_columns(own, source, options.get("root"), access)
    if LEAVE_OUT in (options.get("missing_labels"), options.get("missing_text")):
        _refuse_left_out({name: filled[name] for name in own if has_column(own[name])}, len(whole))
    refuse_other_order(own, whole, access)
    own = filled
    _warn_of_smaller_images(whole, own)
    if not own and "text" in options:  # the data has a field already
        return take_part(whole, **part)
    if not part:
        return field_source(whole, own)
    of_whole = {name: value for name, value in own.items() if count_values(value) == len(whole)}
    others = {name: value for name, value in own.items() if name not in of_whole}
    served = take_part(field_source(whole, of_whole) if of_whole else whole, **part)
    return field_source(served, others) if others else served


def _refuse_left_out(columns: Mapping[str, object], num_samples: int) -> None:
    """Raise ValueError for a column of all table rows if rows without a label are left out."""
    for name, values in columns.items():
        more = (count_values(values) or 0) - num_samples
        if more > 0:
            raise ValueError(
                f"field {name!r}: a Column has one value per row, but missing_labels='leave_out' or missing_text="
                f"'leave_out' leaves out {more:,} of the rows: remove these rows from the table, and do not pass the "
                "option"
            )


def _warn_of_smaller_images(source: Source, fields: Mapping[str, object]) -> None:
    """Warn about pixel coordinates without image sizes that are used with a cache of downscaled images."""
    caches = [whole for whole in find_whole(source) if isinstance(whole, Hdf5Cache)]
    smaller = [cache.about[0].coded.describe() for cache in caches if cache.about[0].coded.resize is not None]
    names = [name for name, value in fields.items() if _is_in_pixels(name, value)]
    if smaller and names:
        warn_user(
            f"the cache contains downscaled images ({smaller[0]}), so {', '.join(names)} must be in pixels of these: "
            "pass Boxes(..., sizes=) to have sizes compared, or use a cache with an Encoding without resize"
        )


def _is_in_pixels(name: str, value: object) -> bool:
    if isinstance(value, Boxes):
        return value.sizes is None
    return isinstance(value, Keypoints) or (name in ("boxes", "keypoints") and not isinstance(value, (Coco, Yolo)))


def mix(parts: Mapping[str, tuple[SourceLike, Any]], **options: Unpack[OpenOptions]) -> SampledSource:
    """Return several data sets as one source. Each epoch takes a fixed share of its samples from each data set.

        source = mix({"photos": ("photos", 0.7), "drawings": ("drawings", [0.1, 0.2, 0.3])})
        loader = create_loader(source, epoch_samples=100_000)

    The counts are exact, and the samples of all sources are shuffled together. In each source, an epoch continues where
    the previous one stopped, so no sample repeats before all others of its source were served. Crops are drawn again
    each time a sample is served. The ledger counts the samples of each source. Without shuffle (evaluation) each
    sample is served once, as with concat. with_labels and with_fields keep the shares; subset, max_per_class, split,
    concat and another mix would lose them and are refused: apply them to each source, then mix.

    Args:
        parts: name -> (any source that open_source accepts, share). Shares need not add up to 1. A list gives a share
            per epoch; its last value applies to all later epochs.
        options: options of open_source for all sources.

    Raises ValueError for impossible shares, and the errors of open_source.
    """
    are_pairs = isinstance(parts, Mapping) and all(isinstance(p, (tuple, list)) and len(p) == 2 for p in parts.values())
    if not are_pairs or not parts:
        raise ValueError(f"mix takes a dict of name -> (source, share), got {shown(parts)}")
    named = {str(name): part for name, part in parts.items()}  # as in the JSON of a state
    if len(named) < len(parts):
        raise ValueError(f"the names of a mix must differ as text, got {shown(list(parts))}")
    shares = _checked_shares({name: share for name, (_, share) in named.items()})
    sources = [open_source(source, **options) for source, _ in named.values()]
    warn_of_joined_classes(sources)
    return Data(sources, joined=True, mixture=MixtureShares(tuple(named), tuple(map(len, sources)), shares))


def _checked_shares(shares: Mapping[str, object]) -> tuple[tuple[float, ...], ...]:
    """Return the shares of each epoch. shares: by name a number, or a sequence of numbers, one per epoch.

    Raises ValueError.
    """
    schedules = {name: _checked_schedule(name, share) for name, share in shares.items()}
    num_epochs = max(map(len, schedules.values()))
    epochs = [
        tuple(schedule[min(epoch, len(schedule) - 1)] for schedule in schedules.values()) for epoch in range(num_epochs)
    ]
    for epoch, of_epoch in enumerate(epochs):
        if not sum(of_epoch):
            raise ValueError(f"the shares of a mix must not all be 0, as for epoch {epoch}")
    return tuple(epochs)


def _checked_schedule(name: str, share: Any) -> list[float]:
    values = list(share) if isinstance(share, Sequence) and not isinstance(share, str) else [share]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
            raise ValueError(f"the share of {name!r} must be a number or a list of numbers, got {shown(share)}")
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"the share of {name!r} must be finite and at least 0, got {shown(share)}")
    if not values:
        raise ValueError(f"the share of {name!r} must be a number or a list of numbers, got {shown(share)}")
    return [float(value) for value in values]


def stack(
    sources: Sequence[SourceLike], *, by: Literal["name", "position"] = "name", **options: Unpack[OpenOptions]
) -> SampledSource:
    """Return samples whose channels are those of one image of each source, such as one file for each band.

        source = stack(["scenes/red", "scenes/green", "scenes/blue", "scenes/near_infrared"])
        loader = create_loader(source, pipeline=ImagePipeline(channels=4, depth=16, mean=..., std=...))

    The images of a sample must have one size and type. Names and labels are those of the first source. Members of tars
    with the same key, and columns of one table, need no stack(): create_loader("a.tar", image=("b02.tif", "b03.tif")).

    Args:
        sources: 2 to 64 sources that open_source accepts, each opened with `options`, in the order of the channels.
        by: "name" joins images with the same name without its last suffix, below the folder of each source; "position"
            joins the first images of all sources, then the second, and so on.

    Raises ValueError for a sample without an image in one of the sources, and the errors of open_source.
    """
    if isinstance(sources, (str, bytes, os.PathLike)):
        raise ValueError(f"stack takes a list of sources, got {shown(sources)}")
    return StackedSource([open_source(source, **options) for source in sources], by)


def concat(sources: Sequence[SourceLike], **options: Unpack[OpenOptions]) -> SampledSource:
    """Return several data sets as one source, one after the other. Classes of the same name become one class.

    sources: any sources that open_source accepts, each opened with `options`. Equal class tuples are kept. Other
    classes are sorted by name, or by value if all names are numbers. Raises ValueError for an empty list, and the
    errors of open_source.
    """
    if isinstance(sources, (str, bytes, os.PathLike)):
        raise ValueError(f"concat takes a list of sources, got {shown(sources)}")
    opened = [open_source(source, **options) for source in sources]
    warn_of_joined_classes(opened)
    return join_sources(opened)
