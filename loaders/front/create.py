"""create_loader: make a loader from a source, a pipeline and the name of a backend."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from typing_extensions import Unpack

from penstock.loaders.data.labels.labelled import warn_of_lost_labels, warn_of_no_labels
from penstock.loaders.data.sources.contract import Source, field_kinds_of, has_fields, is_cache
from penstock.loaders.front.backend_choice import Choice, choose_named, choose_saved
from penstock.loaders.front.backends import BACKENDS
from penstock.loaders.front.choose_order import choose_order
from penstock.loaders.front.loader import Loader
from penstock.loaders.front.loader_options import LoaderOptions
from penstock.loaders.front.open_source import SourceLike, open_source, split_options
from penstock.loaders.front.profile import DEFAULT_PROFILE
from penstock.loaders.front.shuffles import Shuffle, checked_shuffle
from penstock.loaders.front.stored_levels import refuse_other_levels
from penstock.loaders.front.view_stages import check_mixing, checked_transforms, make_stage, sized_views
from penstock.loaders.make.batch_planner import BatchPlanner
from penstock.loaders.make.class_numbering import note_classes
from penstock.loaders.make.engine_contract import Engine
from penstock.loaders.make.finishing import finishing_steps
from penstock.loaders.make.native_rows import suits_native_library
from penstock.loaders.make.normalising import note_normalising
from penstock.loaders.make.own.own_indices import OwnIndices
from penstock.loaders.make.own_transform import saved_functions
from penstock.loaders.make.served_text import serve_text, text_rule
from penstock.loaders.make.sizes.aspect_buckets import order_by_buckets
from penstock.loaders.make.sizes.size_schedule import DEFAULT_BATCH, ByUpdate, PatchBudget, checked_shapes
from penstock.loaders.order.agreement import name_line
from penstock.loaders.order.bad_samples import BadSamplePolicy
from penstock.loaders.order.ranks import distributed_place
from penstock.loaders.order.schedule import Schedule
from penstock.loaders.order.state import LoaderState, pipeline_settings
from penstock.loaders.run.engine.options import WorkerOptions
from penstock.loaders.run.engine.slots import consumer_bytes
from penstock.loaders.run.feed.batch_feed import DeviceFeed, Stage
from penstock.loaders.run.feed.copies import usable_device
from penstock.loaders.run.workers.worker_progress import outlast_retries
from penstock.pipelines.batch.stage import BatchStage, PatchStage, PlainStage
from penstock.pipelines.batch.target_stage import TargetStage, target_stages
from penstock.pipelines.messages.checked import checked_bool, checked_int
from penstock.pipelines.sample.decode import NATIVE
from penstock.pipelines.spec import ImagePipeline, checked_views

REPORT_REPAIRS = ("simplejpeg", "turbojpeg")  # decoders that report libjpeg's repairs at no cost


def create_loader(  # noqa: PLR0913  this function accepts all settings of a loader
    source: SourceLike,
    *,
    backend: str = "torch",
    pipeline: ImagePipeline | Sequence[ImagePipeline] | None = None,
    batch_size: int | Mapping[int, int] | ByUpdate = DEFAULT_BATCH,
    sizes: Mapping[int, Any] | ByUpdate | None = None,
    buckets: Sequence[Any] | None = None,
    patches: PatchBudget | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    shuffle: Shuffle = None,
    order: OwnIndices | None = None,
    weights: Any = None,
    epoch_samples: int | None = None,
    drop_last: bool | None = None,
    pad: bool | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    decoder: str | None = None,
    on_bad_sample: str = "raise",
    on_repaired: str | None = None,
    max_bad: int | float | None = None,
    with_index: bool = False,
    with_geometry: bool = False,
    memory_format: torch.memory_format = torch.channels_last,
    transform: Any = None,
    batch_transform: Callable[..., Any] | None = None,
    transform_moves: bool | None = None,
    tokenize: Callable[..., Any] | None = None,
    captions: str | int | None = None,
    profile: str | os.PathLike[str] = DEFAULT_PROFILE,
    **options: Unpack[LoaderOptions],
) -> Loader:
    """Return a loader that yields (images, labels).

    Images are [batch, channels, height, width], channels_last, on `device`; labels are int64 [batch], or soft targets
    float32 [batch, num_classes] if the pipeline mixes samples. For other labels, such as regression targets or several
    per image, see with_labels. Data with fields (masks, boxes, keypoints, text; see with_fields) is served as dicts,
    {"images": ..., "labels": ..., "mask": ...}. Raises ValueError for settings that cannot work, and LoaderError for
    problems with data, resources and missing packages.

    In an evaluation, count samples, not batches: with several ranks some rows are padding, with label -1 (NaN for
    floats).

        for images, labels in create_loader("imagenet/val", pipeline=imagenet_eval(224), device="cuda"):
            keep = labels >= 0
            correct += (model(images).argmax(1) == labels)[keep].sum()
            total += keep.sum()

    Args:
        source: a folder of images (class folders, or flat for one class); a list of (path, label); a table (.csv, .tsv,
            .jsonl, .parquet) or data frame of paths and labels; tar files of WebDataset; Arrow or Parquet files that
            contain images, or a Dataset of Hugging Face; an HDF5 cache; a pair (images uint8 [n, h, w, 3], labels); a
            pattern of paths such as "train-{0000..1023}.tar"; a list of these; the result of split, concat, mix,
            with_labels or with_fields; or your own Source. Everything except arrays can also be a URL (s3://, gs://,
            az://, https://): files, patterns, a folder "s3://bucket/train/", lists and tables of URLs.
        backend: "torch", "hdf5", "dali", or "auto" for the choice of `penstock bench --save` on this machine. The
            stream does not depend on it.
        pipeline: imagenet_train() by default. A list of pipelines makes several views of each image, which is read and
            decoded once; `images` is then a tuple of [batch, 3, height, width], one per view. Views can differ in crop,
            size and augmentations: [imagenet_train(224)] * 2 + [imagenet_train(96, scale=(0.05, 0.4))] * 6. The crops
            "five" and "ten" make 5 and 10 views. Published recipes are in penstock.pipelines.presets.
        batch_size: samples per batch on each rank. {0: 512, 6: 320} changes the number at epoch 6, for example.
        sizes: image sizes that change by epoch, such as {0: 128, 6: 160, 10: (224, 192)}, each a side or (height,
            width); by default the pipeline's size. ByUpdate({0: 128, 5000: 160}) changes the size at batch 5000 of the
            run, counted from 0 across all epochs. batch_size accepts ByUpdate too.
        buckets: image sizes with different aspect ratios, such as [(224, 224), (192, 256), (256, 192)]. Each batch has
            one of these sizes. An image goes to the bucket with the nearest aspect ratio (width / height). All ranks
            serve the same size at each step. Without drop_last the last batch of each bucket is short, or padded. Image
            sizes are read from the file headers once, and stored next to the index of a folder.
        patches: a PatchBudget, for images in their original aspect ratio, cut into padded sequences of patches. Batches
            are then dicts: {"patches": [batch, length, size * size * 3], "patch_coord", "patch_valid", "labels"}; see
            Batch.
        device: the device of the batches.
        dtype: uint8 serves raw pixels (uint16 for a pipeline with depth=16); float32, float16 and bfloat16 are
            normalised.
        seed: seed of order, crops, flips and augmentations. Two loaders with the same seed draw equal flips and related
            crops for the same index, even with different pipelines: use different seeds for independent views.
        shuffle: on by default, unless the pipeline is not random (imagenet_eval). "blocks" or Blocks(...) shuffles
            blocks of neighbouring samples (row groups of Parquet files), assigns each block to one rank, and mixes the
            samples within a group of blocks. Use it for remote data, with local_cache or enough bytes_ahead, and
            for storage that is slow at random reads. Repeated(3) serves 3 views of a sample, on different ranks
            (repeated augmentation); PerClass(4) serves 4 samples of each class in a batch (metric learning).
        order: your own order, instead of `shuffle`: a function that returns the indices of an epoch, such as `lambda
            epoch: np.random.default_rng(epoch).permutation(1000)`; a torch Sampler or another iterable of indices; or
            an array for all epochs. Indices are positions in `source` and may repeat, as many in each epoch. It is
            called once per epoch, when the epoch begins, by the thread that iterates, and shared out to ranks and
            workers. It must return the same indices for an epoch again: global random generators, and a sampler's
            `generator`, are seeded for each epoch. A state of other indices is refused.
        weights: draw samples with replacement: one weight per sample, a dict of each class's share of the draws, or
            "balanced" for equal shares of all classes.
        epoch_samples: samples per epoch, if they are shuffled or drawn; by default the size of the data. A shuffled
            epoch continues where the previous one stopped, and the data is shuffled again after each pass. With
            `order`, the first ones of each epoch.
        drop_last: whether to drop samples that do not fill a batch on every rank; by default the value of shuffle.
        pad: whether to fill short batches with padding rows (index and label -1), so that all batches are full and all
            ranks make the same number of steps. By default several ranks pad, and a single rank has a short last batch.
            True also pads on a single rank, for fixed shapes (torch.compile, CUDA graphs). False never pads: a rank
            without a sample for the last step ends one step earlier.
        rank: number of this process. By default it is read from torch.distributed or from a launcher's variables
            at the beginning of each iteration, so the process group may start later. The ranks must then agree: see
            E-STATE.
        world_size: number of processes, by default read in the same way.
        decoder: "auto" for the native library, if it was built, and the fastest installed decoder for other images;
            "native" to require the library; "simplejpeg", "turbojpeg" or "pillow" to decode every image with that one.
        on_bad_sample: "raise", or "replace" with the next sample in the order, at most `max_bad` times per epoch.
        on_repaired: what to do with JPEGs in which libjpeg fills in missing data, such as a truncated photo: "count"
            them in stats() and ledger(), "raise", "replace", or "ignore". By default they are counted if the decoder
            reports them. Pillow and DALI do not; with them every value but "ignore" needs a second check of each file.
        max_bad: count, or fraction as a float below 1.
        with_index: yield (images, labels, index), with index -1 for padding.
        with_geometry: add "geometry", a Geometry, to batches. It describes how each image was cropped, placed, rotated
            and flipped, and maps boxes and points back to the image. Refused with mixup and cutmix.
        memory_format: torch.channels_last, or torch.contiguous_format at the cost of a copy. `images.view(len(images),
            -1)` needs the latter; `images.flatten(1)` works with both.
        transform: your own function, called by the workers for each crop (after crop, resize and flip). It takes an
            image, uint8 [height, width, 3], and returns an array or a tensor with the same shape and dtype for all
            images. For randomness, it takes a second parameter, a numpy.random.Generator of this sample. For functions
            of the image alone, such as torchvision's transforms, the global random state is seeded; so are
            albumentations' transforms. The result does not depend on the workers. uint8 [h, w, 3] results are augmented
            and normalised; other results are served unchanged, floats in `dtype`. One function, or one per view.
        batch_transform: your own function of (images, labels), or (images, labels, generator) with a torch.Generator,
            that returns both. It is called on `device` when the batch is taken, never earlier, in the thread and on the
            stream that take the batch. So it may use a model that your training step changes.
        transform_moves: pass False if transform and batch_transform do not move pixels, such as colour changes.
            Without it they are refused with masks, boxes or keypoints, because the fields would not follow.
            Albumentations' transforms receive the fields with the image, and their results are served. A
            transform that changes the size of images cannot be combined with fields.
        tokenize: your own function, or a tokenizer of Hugging Face or open_clip, that the workers call with texts (the
            field `text`: see text= and with_fields). It takes a text, or a list of texts, and returns the same number
            of integers for each: int64 [batch, length] in batch["text"], zeros in padding rows. Hugging Face's pad
            and truncate to their model_max_length, and batch["text_mask"] is their attention mask.
        captions: for samples with a list of texts: "all" (the default) serves the lists, "draw" one of them in each
            epoch, "first" the first one, and a number that many first ones.
        profile: name or path of the profile that "auto" reads. The default profile may be missing.
        options: each is described in help(LoaderOptions). Of every source: subset, max_per_class and classes. Of the
            kind of the data: image, label, root, missing_labels, text, missing_text, member_list, split, cache_bytes
            and rescan; for URLs: index, requests, bytes_ahead, local_cache, local_bytes, retry_s and headers. Of every
            backend: workers, prefetch and watchdog_s; torch and hdf5: workers_are and start_method; hdf5 and dali:
            cache and encoding; dali: readers, hw_decoder_load, preallocate, device_memory_padding,
            host_memory_padding, decode and verify.
    """
    views = checked_views(pipeline)
    takes_whole = any(view.crop == "none" for view in views)
    is_random = any(view.random for view in views) or (takes_whole and order is not None)
    of_source, of_backend = split_options(options)
    choice = choose_named(backend, decoder, of_backend, profile)
    target, seed = usable_device(device), checked_int("seed", seed)
    with_index = checked_bool("with_index", with_index)
    with_geometry = checked_bool("with_geometry", with_geometry)
    if shuffle is None and order is None and takes_whole:
        raise ValueError("crop='none' does not say whether you train: pass shuffle=True or shuffle=False")
    shuffle = checked_shuffle(shuffle, is_random, order)
    shuffled = bool(shuffle)
    drop_last = shuffled if drop_last is None else checked_bool("drop_last", drop_last)
    shapes = checked_shapes(views, batch_size, sizes, buckets, patches, transform, shuffled=shuffled)
    policy = BadSamplePolicy(
        evaluation=not shuffle and not is_random,
        on_bad_sample=on_bad_sample,
        on_repaired="count" if on_repaired is None else on_repaired,
        max_bad=max_bad,
    )
    if rank is not None and world_size is not None:
        rank, world_size = checked_int("rank", rank), checked_int("world_size", world_size)
    named = open_source(source, **of_source)
    warn_of_lost_labels(named)
    is_unset = not isinstance(source, Source) and not of_source.keys() & {"label", "classes"}
    if is_unset and is_random and len(views) == 1 and tokenize is None and captions is None:
        warn_of_no_labels(named)  # training needs labels; several views of an image do not
    choice = choice or choose_saved(decoder, of_backend, profile, is_cache=is_cache(named))
    if on_repaired is None and (choice.backend.has_own_decoder or choice.jpeg_decoder.name not in REPORT_REPAIRS):
        policy = replace(policy, on_repaired="ignore")
    refuse_other_levels(named, views[0], choice.source_options.get("encoding"))
    refuses = policy.on_bad_sample == "raise"
    in_buckets = partial(order_by_buckets, named, views[0], shapes.buckets, seed, shuffled=shuffled, refuses=refuses)
    chosen = choose_order(
        named,
        shuffle,
        seed,
        weights,
        epoch_samples,
        in_buckets if shapes.buckets else None,
        batch_size=shapes.equal_batch,
        own=order,
    )
    place = distributed_place(rank, world_size, certain=False)
    schedule = Schedule(
        n=chosen.n,
        batch_size=shapes.batch_size,
        seed=seed,
        rank=place[0],
        world_size=place[1],
        shuffle=shuffled,
        drop_last=drop_last,
        pad=pad,
        order=chosen,
        phases=shapes.phases,
        rounds=shapes.rounds,
    )
    schedule.warn_of_left_out()
    if views[0].augment.mixes:
        check_mixing(schedule, named)
    transforms = checked_transforms(
        named, views, transform, batch_transform, moves=transform_moves, geometry=with_geometry
    )
    text = text_rule(named, tokenize, captions)
    kind = PatchStage if shapes.rounds else BatchStage
    stage_of = partial(make_stage, kind, dtype, target, len(named.classes), memory_format)
    views = sized_views(views, transforms)
    stages = list(map(stage_of, views, transforms or [None] * len(views)))
    # After all checks of the arguments, because building a cache may take hours.
    prepare = choice.backend.prepare_source
    data = named if prepare is None else prepare(named, **choice.source_options)
    if "watchdog_s" not in of_backend:
        watchdog_s = outlast_retries(choice.options.watchdog_s, data)
        choice = choice._replace(options=replace(choice.options, watchdog_s=watchdog_s))
    refuse_other_levels(data, views[0])
    planner = BatchPlanner(
        source=data,
        pipelines=views,
        transforms=transforms,
        text=text,
        schedule=schedule,
        decoder=choice.decoder,
        substitute=policy.substitutes,
        evaluation=policy.evaluation,
        on_repaired=policy.on_repaired,
        device=str(target),
    )
    planner = replace(planner, consumer_bytes=consumer_bytes(planner.largest_layout, dtype, str(target)))
    state = LoaderState(
        fingerprint=data.fingerprint,
        samples=len(data),
        seed=seed,
        shuffle=shuffled,
        sampler=chosen.name,
        pipeline={
            **pipeline_settings(views, dtype, policy),
            **schedule.saved_sizes(views[0].size),
            **saved_functions(transforms, batch_transform),
            **({} if text is None else text.saved),
        },
    )
    targets = target_stages(field_kinds_of(data), target, memory_format)
    loader = Loader(
        partial(_open, choice.backend.name, planner, choice.options, stages, targets, batch_transform, with_geometry),
        schedule,
        state,
        policy,
        source=data,
        named_source=named,
        with_index=with_index,
        as_dicts=with_geometry or has_fields(data) or shapes.rounds is not None,
        about=_describe(choice, planner, stages[0]),
        follows=name_line(sys._getframe(1)) if rank is None else None,
    )
    note_classes(loader, named, len(views), trains=shuffled or is_random)
    if dtype.is_floating_point and not isinstance(stages[0], PlainStage):
        note_normalising(loader, named, views, trains=shuffled or is_random)
    return loader


def _open(
    backend: str,
    planner: BatchPlanner,
    options: WorkerOptions,
    stages: Sequence[Stage],
    targets: Mapping[str, TargetStage],
    batch_transform: Callable[..., Any] | None,
    with_geometry: bool,
    schedule: Schedule,
    *,
    alone: bool = False,
) -> tuple[Engine, DeviceFeed]:
    """Return the engine that serves `schedule`, and the feed that copies its batches to the device; neither runs.

    alone: without workers, and without announcements to the source, for a look at a few batches.
    """
    options = replace(options, workers=0) if alone else options
    engine = BACKENDS[backend].open_engine(replace(planner, schedule=schedule, announces=not alone), options)
    is_upright = planner.pipeline.exif == "apply"
    own_channels = planner.pipeline.channels if planner.pipeline.size is None else None
    steps = finishing_steps(
        planner.source, schedule.patch, own_channels, is_upright=is_upright, with_geometry=with_geometry
    )
    if planner.text is not None:
        steps.append(partial(serve_text, planner.source, planner.text, schedule))
    more: Any = {"steps": steps, "seed": schedule.seed, "pad": schedule.pads, "batch_transform": batch_transform}
    return engine, DeviceFeed(engine.next, engine.ready, stages, targets=targets, **more)


def _describe(choice: Choice, planner: BatchPlanner, stage: Stage) -> dict[str, object]:
    """Return the decoder, its version and the augmentation kernels, for records and reports."""
    about: dict[str, object] = {
        "decoder": choice.jpeg_decoder.name,
        "decoder_version": choice.jpeg_decoder.version(),
        "decoder_reason": choice.reason,
        "on_repaired": planner.on_repaired,
    }
    if not choice.backend.has_own_decoder and suits_native_library(planner.source, planner.pipeline, planner.decoder):
        reason = f"the native library; {choice.jpeg_decoder.name} for images that it does not support"
        about |= {"decoder": NATIVE, "decoder_reason": reason}
    if planner.pipeline.augment.active:
        about["augmentations"] = stage.kernels
    return about
