"""Calls for the type checker: `make typecheck` fails if it refuses a right one or accepts a wrong one.

A wrong call has a `type: ignore` comment, and mypy reports comments without an error.
"""

from __future__ import annotations

from typing_extensions import Unpack

from penstock.loaders import (
    Encoding,
    Loader,
    LoaderOptions,
    OpenOptions,
    Source,
    concat,
    create_loader,
    mix,
    open_source,
    split,
    with_fields,
    with_labels,
)
from penstock.pipelines import Augmentations, ImagePipeline, PipelineSettings, deit3, imagenet_train, simclr


def right(**options: Unpack[LoaderOptions]) -> Loader:
    source: Source = open_source("photos", subset=":0.9", classes=["cat", "dog"], max_file_bytes=1 << 20)
    source = with_labels(source, [0, 1], classes=["cat", "dog"], max_per_class=9)
    source = with_fields(source, mask="masks", caption=["a", "b"], subset=[0, 1])
    source = concat(split(mix({"a": (source, 0.5)}), 0.5, root="photos")[:1], any_owner=True)
    create_loader(source, backend="hdf5", cache="photos.h5", encoding=Encoding(), workers_are="threads", pad=True)
    create_loader("a.csv", batch_size=4, workers=0, prefetch=2, image="path", label=["price", "kind"], root=b"photos")
    create_loader("a.csv", backend="dali", readers=2, decode="whole", preallocate=(640, 480), label={"price": "cost"})
    create_loader("s3://bucket/train/", pipeline=imagenet_train(), requests=8, local_cache="copy")
    return create_loader(source, seed=1, **options)


def pipelines(**settings: Unpack[PipelineSettings]) -> ImagePipeline:
    simclr(96, strength=0.5, blur=0.0)
    deit3((192, 224), mixup=0.0, color_jitter=None)
    imagenet_train(160, mean=[0.5] * 3, std=0.2, crop="five", augment=Augmentations(erasing=0.25))
    return imagenet_train(160, **settings)


def wrong(options: OpenOptions) -> None:
    create_loader("photos", worker=4)  # type: ignore[call-arg]
    create_loader("photos", labl="y")  # type: ignore[call-arg]
    create_loader("photos", workers="4")  # type: ignore[arg-type]
    create_loader("photos", workers_are="thread")  # type: ignore[arg-type]
    create_loader("photos", missing_labels="drop")  # type: ignore[arg-type]
    create_loader("photos", max_file_bytes=9)  # type: ignore[call-arg]
    create_loader("photos", **options)  # type: ignore[misc]
    open_source("photos", workers=4)  # type: ignore[call-arg]
    open_source("photos", max_per_clas=4)  # type: ignore[call-arg]
    with_labels("photos", [0], labels_are="names")  # type: ignore[call-arg]
    split("photos", seeds=1)  # type: ignore[call-arg]
    concat(["photos"], clases=["cat"])  # type: ignore[call-arg]
    mix({"a": ("photos", 1)}, max_per_class="3")  # type: ignore[arg-type]
    imagenet_train(mix_up=0.2)  # type: ignore[call-arg]
    imagenet_train(crop="centre")  # type: ignore[arg-type]
    deit3(cutmix="1")  # type: ignore[arg-type]
    simclr(blurr=0.1)  # type: ignore[call-arg]
