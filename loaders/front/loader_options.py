"""Options of sources and backends, as the functions that accept `**options` take them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from penstock.loaders.data.cache.format import Encoding
from penstock.loaders.data.files.path_patterns import AnyPath
from penstock.loaders.data.views.subset_spec import SubsetSpec

WorkersAre = Literal["auto", "processes", "threads"]
ClassNames = Sequence[str | bytes] | Mapping[str, Sequence[str | bytes] | None] | None


class DataOptions(TypedDict, total=False):
    """Options that choose a part of the data, and describe where it stores images and labels.

    Attributes:
        subset: indices, a mask, a slice such as ":0.9", "10%:50%" or "::10", or a file of indices.
        max_per_class: the most samples of each class, counted within the subset.
        image: where the images are: a column of a table, Arrow or Parquet file; a suffix in tars, such as "seg.png". A
            list of these stacks the channels of several images per sample; see docs/guides/channels.md.
        label: where the labels are: a column, or a list or dict of columns; in tars "cls", "json:FIELD", "folder",
            "shard", a dict by key or a table of keys and labels. See docs/guides/labels.md.
        root: folder or URL of the relative paths in a list or table.
        missing_labels: "raise" for samples without a label, or "leave_out" to leave them out with a warning.
        text: where the texts are, such as captions, which are served as batch["text"]: a column of a table, Arrow or
            Parquet file; for tars and image files the suffix of the files with the texts, "txt", or "json:FIELD".
        missing_text: "raise" for samples without a text, or "leave_out" to leave them out with a warning.
        member_list: suffix of files next to tars that list their members: "idx" (DALI's wds2idx) or "json" (hfutils).
        split: name of a split of a Hugging Face data set.
        cache_bytes: limit of the decoded data that is kept for Parquet files, in bytes.
        rescan: whether to make the index of tars again, although their sizes and times are unchanged.
        index: for URLs, the folder or URL of an index that `penstock index DATA --out PLACE` wrote: the storage is then
            not listed or asked for versions. See docs/guides/remote.md.
        requests: for URLs, maximum number of concurrent requests per process. See docs/guides/remote.md.
        bytes_ahead: for URLs, number of bytes that may be fetched before they are needed, per process.
        local_cache: for URLs, folder for a copy of fetched data, shared by the processes of a machine.
        local_bytes: for URLs, approximate limit of the copy in bytes; by default the size of the data.
        retry_s: for URLs, seconds for which a request that fails temporarily is repeated, 300 by default.
        headers: for HTTP URLs, headers of all requests, such as {"Authorization": "Bearer ..."}. They are never
            printed or stored. A host to which a server redirects receives them too, except Authorization and Cookie.
    """

    subset: SubsetSpec
    max_per_class: int | None
    image: str | Sequence[str] | None
    label: str | os.PathLike[str] | Sequence[str] | Mapping[Any, Any] | None
    root: AnyPath | None
    missing_labels: Literal["raise", "leave_out"]
    text: str | None
    missing_text: Literal["raise", "leave_out"]
    member_list: str | None
    split: str | None
    cache_bytes: int
    rescan: bool
    index: AnyPath | None
    requests: int
    bytes_ahead: int
    local_cache: AnyPath | None
    local_bytes: int | None
    retry_s: float
    headers: Mapping[str, str]


class SourceOptions(DataOptions, total=False):
    """Options of create_loader that describe the data: those of DataOptions, and the classes.

    Attributes:
        classes: names of the classes, by class number; classes=train.classes gives validation data the numbers of the
            training data. For several labels, a dict of these.
    """

    classes: ClassNames


class ReadingOptions(TypedDict, total=False):
    """Options of open_source that create_loader does not pass on.

    Attributes:
        max_file_bytes: a larger sample is refused before it is read.
        follow_symlinks: for a folder of images, whether to enter folders behind symbolic links; True by default.
        allow_empty: for a folder of images, whether class folders without an image are accepted.
        any_owner: for HDF5 caches, whether files of other users are accepted.
    """

    max_file_bytes: int
    follow_symlinks: bool
    allow_empty: bool
    any_owner: bool


class OpenOptions(SourceOptions, ReadingOptions, total=False):
    """Options of open_source, split, concat and mix: those of DataOptions, SourceOptions and ReadingOptions."""


class RelabelOptions(DataOptions, ReadingOptions, total=False):
    """Options of with_labels: those of DataOptions and ReadingOptions."""


class FieldOptions(OpenOptions, total=False):
    """Options of with_fields, and the fields that are made from other values than Masks, Boxes, ImageTargets and so on.

    Attributes:
        mask: arguments of Masks, such as a folder.
        boxes: arguments of Boxes.
        keypoints: arguments of Keypoints.
        coco: path of a JSON file of COCO.
        yolo: folder of text files of YOLO.
    """

    mask: Any
    boxes: Any
    keypoints: Any
    coco: Any
    yolo: Any


class BackendOptions(TypedDict, total=False):
    """Options of the backends. Each backend refuses those that it does not have.

    Attributes:
        workers: number of workers, 0 to work in the consumer; by default one per processor, divided among the ranks on
            this machine. For dali, the CPU threads of DALI.
        prefetch: batches that are made ahead, per worker process, by all threads together, or in DALI.
        watchdog_s: seconds without any progress before waiting for a batch is given up, 300 by default; for data at
            URLs, at least retry_s + 60.
        workers_are: torch and hdf5: "processes", "threads" (which start at once and need less memory, but share one
            interpreter lock), or "auto" for threads if nearly all of the work is done without that lock.
        start_method: torch and hdf5: how processes are started, "forkserver" by default.
        cache: hdf5 and dali: path of the cache to read instead of the source. It is built on first use.
        encoding: hdf5 and dali: how a new cache stores images.
        readers: dali: threads that read and plan, by default one per four workers (at most 4).
        hw_decoder_load: dali: share of the images, 0 to 1, for a GPU's hardware decoder if there is one.
        preallocate: dali: (width, height) in pixels of the largest image, for the hardware decoder's memory.
        device_memory_padding: dali: bytes of device memory that each nvJPEG thread allocates at the start.
        host_memory_padding: dali: the same for host memory.
        decode: dali: how windows are decoded, see DaliOptions.
        verify: dali: samples per batch to compare with our own decoder; by default 1 on a GPU and 0 on a CPU.
    """

    workers: int | None
    prefetch: int
    watchdog_s: float
    workers_are: WorkersAre
    start_method: Literal["forkserver", "spawn", "fork"]
    cache: str | os.PathLike[str] | None
    encoding: Encoding | None
    readers: int | None
    hw_decoder_load: float
    preallocate: tuple[int, int] | None
    device_memory_padding: int | None
    host_memory_padding: int | None
    decode: Literal["auto", "regions", "whole", "ours"]
    verify: int | None


class LoaderOptions(SourceOptions, BackendOptions, total=False):
    """All options of create_loader besides its parameters: DataOptions, SourceOptions and BackendOptions.

    For functions of your own that pass options on:

        def train_loader(path: str, **options: Unpack[LoaderOptions]) -> Loader:
            return create_loader(path, pipeline=imagenet_train(), **options)
    """
