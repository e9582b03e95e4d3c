"""create_loader makes a loader of a source, a pipeline and the name of a backend."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import torch

from penstock.loaders.engine.native_rows import goes_natively
from penstock.loaders.engine.producer import ProducerSettings
from penstock.loaders.engine.slot_needs import consumer_bytes
from penstock.loaders.feed.copies import checked_device, numbered
from penstock.loaders.loader import Loader
from penstock.loaders.open_source import open_source
from penstock.loaders.profile import DEFAULT_PROFILE, Profile, load_profile, profile_error, profile_path
from penstock.loaders.sources.contract import Source, WindowSource
from penstock.loaders.stream.agreement import line_of
from penstock.loaders.stream.bad_samples import BadSamplePolicy
from penstock.loaders.stream.engine_contract import Engine
from penstock.loaders.stream.order import Schedule
from penstock.loaders.stream.ranks import distributed_place
from penstock.loaders.stream.state import LoaderState, pipeline_settings
from penstock.loaders.system.needs import Needs
from penstock.pipelines.batch.stage import BatchStage
from penstock.pipelines.checked import checked_bool, checked_choice, checked_int, shown
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.sample.decode import NATIVE, choose_jpeg_decoder
from penstock.pipelines.spec import ImagePipeline, imagenet_train

# name -> (module, engine, options); a new backend is one line here, one file, one line in its tests
_BACKENDS: dict[str, tuple[str, str, str]] = {
    "torch": ("penstock.loaders.backends.torch_backend", "TorchEngine", "TorchOptions"),
    "hdf5": ("penstock.loaders.backends.hdf5_backend", "Hdf5Engine", "Hdf5Options"),
    "dali": ("penstock.loaders.backends.dali_backend", "open_engine", "DaliOptions"),
}
BACKEND_NAMES = ("auto", *_BACKENDS)
TELL_REPAIRS = ("simplejpeg", "turbojpeg")  # decoders that tell what libjpeg repairs, at no cost


def create_loader(
    source: str | os.PathLike[str] | tuple[Any, Any] | Source,
    *,
    backend: str = "torch",
    pipeline: ImagePipeline | None = None,
    batch_size: int = 256,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    shuffle: bool | None = None,
    drop_last: bool | None = None,
    pad: bool | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    decoder: str | None = None,
    on_bad_sample: str = "raise",
    on_repaired: str | None = None,
    max_bad: int | float | None = None,
    with_index: bool = False,
    memory_format: torch.memory_format = torch.channels_last,
    profile: str | os.PathLike[str] = DEFAULT_PROFILE,
    **options: Any,
) -> Loader:
    """Make a loader of (images, labels).

    Images are [batch, 3, height, width], channels_last, on `device`; labels are int64 [batch], or soft targets float32
    [batch, num_classes] where the pipeline mixes samples. Raises ValueError for settings that cannot work, LoaderError
    for data, resources and missing packages.

    An evaluation on any number of ranks counts samples, not batches: several ranks have padding, with label -1.

        for images, labels in create_loader("imagenet/val", pipeline=imagenet_eval(224), device="cuda"):
            keep = labels >= 0
            correct += (model(images).argmax(1) == labels)[keep].sum()
            total += keep.sum()

    Args:
        source: a folder of images (class folders, or flat for one class), an HDF5 cache, a pair (images uint8 [n, h, w,
            3], labels), or a Source.
        backend: "torch", "hdf5", "dali", or "auto" for what `penstock bench --save` chose on this machine. The stream
            does not depend on it.
        pipeline: imagenet_train() unless given.
        batch_size: samples a batch on each rank.
        device: where the batches go.
        dtype: uint8 hands out raw pixels; float32, float16 and bfloat16 are normalised.
        seed: seed of order, crops, flips and augmentations.
        shuffle: on unless the pipeline draws nothing (imagenet_eval).
        drop_last: as shuffle unless given; whether samples that do not fill a batch on every rank are left out.
        pad: whether rows that no sample is left for are padding, with index and label -1, so that all batches are full
            and all ranks make as many steps. Unless given several ranks pad, and one rank has a short last batch. True
            pads on one rank too, for fixed shapes (torch.compile, CUDA graphs). False leaves padding out on several
            ranks too: a rank that no sample is left for ends one step earlier.
        rank: number of this process; unless given that of torch.distributed or of its environment variables at the
            begin of each iteration, so that a launcher may start it later. The ranks must then agree: see E-STATE.
        world_size: number of processes; unless given likewise.
        decoder: "auto", for the native library where it was built and the fastest decoder beside it; "native" to demand
            it; or "simplejpeg", "turbojpeg" or "pillow", which then decode every image.
        on_bad_sample: "raise", or "replace" with at most `max_bad` an epoch.
        on_repaired: what to do about JPEGs of which libjpeg makes up a part, such as the lower half of a cut photo:
            "count" them in stats() and ledger(), "raise", "replace", or "ignore". Unless given they are counted where
            the decoder tells; pillow and DALI do not, and anything but "ignore" costs a further look at each file.
        max_bad: count, or fraction as a float below 1.
        with_index: yield (images, labels, index), with -1 in padding.
        memory_format: torch.channels_last, or torch.contiguous_format at the cost of a copy: `images.view(len(images),
            -1)` needs that, `images.flatten(1)` takes both.
        profile: name or path of the profile that "auto" reads. Unless given it may be missing.
        options: options of the backend. torch: workers, prefetch, watchdog_s, workers_are ("threads", "processes", or
            "auto" for threads where the native library does the work), start_method. hdf5: these, and for a source that
            is no cache yet `cache`, where it lies or is built on first use, and `encoding`, an Encoding. dali: workers,
            prefetch, watchdog_s, readers, cache, encoding, and the others of DaliOptions.
    """
    pipeline = _checked_pipeline(pipeline)
    policies: dict[str, Any] = {
        "on_bad_sample": on_bad_sample,
        "on_repaired": "count" if on_repaired is None else on_repaired,
        "max_bad": max_bad,
    }
    check_arguments(backend=backend, decoder=decoder, profile=profile, **policies, **options)
    target = usable_device(device)
    seed, batch_size = checked_int("seed", seed), checked_int("batch_size", batch_size, 1)
    with_index = checked_bool("with_index", with_index)
    shuffle = pipeline.random if shuffle is None else checked_bool("shuffle", shuffle)
    drop_last = shuffle if drop_last is None else checked_bool("drop_last", drop_last)
    if rank is not None and world_size is not None:
        rank, world_size = checked_int("rank", rank), checked_int("world_size", world_size)
    named = open_source(source)
    backend, decoder, options = _choose(backend, decoder, options, profile, is_cache=isinstance(named, WindowSource))
    module = import_module(_BACKENDS[backend][0])
    for_source = {name: options.pop(name) for name in getattr(module, "SOURCE_OPTIONS", ()) if name in options}
    parsed = _parse(backend, options)
    place = distributed_place(rank, world_size, certain=False)
    schedule = Schedule(
        n=len(named),
        batch_size=batch_size,
        seed=seed,
        rank=place[0],
        world_size=place[1],
        shuffle=shuffle,
        drop_last=drop_last,
        pad=pad,
    )
    evaluation = not shuffle and not pipeline.random
    if pipeline.augment.mixes:
        _check_mixing(batch_size, len(named.classes))
    stage = BatchStage(pipeline, dtype, target, num_classes=len(named.classes), memory_format=memory_format)
    jpeg_decoder, why = choose_jpeg_decoder(decoder)  # a missing decoder is reported here, not by a worker later
    if on_repaired is None and (backend == "dali" or jpeg_decoder.name not in TELL_REPAIRS):
        policies["on_repaired"] = "ignore"
    policy = BadSamplePolicy(evaluation=evaluation, **policies)
    # After all checks of the arguments, because it may build a cache, for hours.
    data = module.prepare_source(named, **for_source) if hasattr(module, "prepare_source") else named
    settings = ProducerSettings(
        source=data,
        pipeline=pipeline,
        schedule=schedule,
        decoder=decoder,
        substitute=policy.substitutes,
        evaluation=evaluation,
        on_repaired=policy.on_repaired,
        device=str(stage.device),
    )
    about: dict[str, object] = {
        "decoder": jpeg_decoder.name,
        "decoder_version": jpeg_decoder.version(),
        "decoder_reason": why,
        "on_repaired": policy.on_repaired,
    }
    if backend != "dali" and goes_natively(data, pipeline, decoder):
        about |= {"decoder": NATIVE, "decoder_reason": f"the native library; {jpeg_decoder.name} for what it leaves"}
    if pipeline.augment.active:
        about["augmentations"] = "fused kernels" if stage.fused else "torch"
    state = LoaderState(
        fingerprint=data.fingerprint,
        samples=len(data),
        seed=seed,
        shuffle=shuffle,
        pipeline=pipeline_settings(pipeline, dtype, policy),
    )
    consumer = consumer_bytes(batch_size, pipeline.size, dtype, str(stage.device))
    return Loader(
        partial(_open_engine, backend, settings, parsed, consumer),
        schedule,
        stage,
        state,
        policy,
        with_index=with_index,
        about=about,
        follows=line_of(sys._getframe(1)) if rank is None else None,
        source=data,
    )


def _open_engine(backend: str, settings: ProducerSettings, options: Any, consumer: int, schedule: Schedule) -> Engine:
    module, engine_name, _ = _BACKENDS[backend]
    engine: Engine = getattr(import_module(module), engine_name)(replace(settings, schedule=schedule), options)
    engine.consumer_bytes = consumer
    return engine


def _checked_pipeline(pipeline: Any) -> ImagePipeline:
    if pipeline is None:
        return imagenet_train()
    if isinstance(pipeline, ImagePipeline):
        return pipeline
    name = getattr(pipeline, "__name__", None)
    fix = f": call it, pipeline={name}()" if name and callable(pipeline) else ""
    raise ValueError(f"pipeline must be an ImagePipeline, got {shown(pipeline)}{fix}")


def check_arguments(
    *,
    backend: str = "torch",
    decoder: str | None = None,
    on_bad_sample: str = "raise",
    on_repaired: str | None = None,
    max_bad: int | float | None = None,
    profile: str | os.PathLike[str] = DEFAULT_PROFILE,
    **options: Any,
) -> None:
    """Raise ValueError for arguments of create_loader that no data makes right: a scan of it may take minutes.

    Raises LoaderError E-DEPENDENCY for a decoder that is not installed, E-MISUSE for a named profile that is not there.
    """
    checked_choice("backend", backend, BACKEND_NAMES)
    if profile != DEFAULT_PROFILE:
        _check_profile(profile, backend)
    choose_jpeg_decoder("auto" if decoder is None else decoder)
    repairs = "count" if on_repaired is None else on_repaired
    BadSamplePolicy(on_bad_sample=on_bad_sample, on_repaired=repairs, max_bad=max_bad)
    if backend != "auto":
        for_source = getattr(import_module(_BACKENDS[backend][0]), "SOURCE_OPTIONS", ())
        _parse(backend, {name: value for name, value in options.items() if name not in for_source})


def _check_profile(name: Any, backend: str) -> None:
    """Refuse a profile that was asked for by name and would not be read."""
    if not isinstance(name, (str, os.PathLike)):
        raise ValueError(f"profile must be a name or a path, got {shown(name)}")
    if backend != "auto":
        raise ValueError(f"profile must be left out unless backend is 'auto', which reads it; got {shown(name)}")
    if not profile_path(name).exists():
        fix = "correct its name, or save it: penstock bench DATA --save NAME"
        raise LoaderError("E-MISUSE", "there is no such profile", fix=fix, path=str(profile_path(name)))


def loader_needs(
    backend: str,
    *,
    batch_size: int,
    size: tuple[int, int],
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    **options: Any,
) -> Needs:
    """Return what a loader with these settings takes of the machine; `size` is (height, width). Raises ValueError."""
    module = import_module(_BACKENDS[backend][0])
    needs: Needs = module.needs_of(_parse(backend, options), batch_size, size)
    return needs._replace(own_bytes=needs.own_bytes + consumer_bytes(batch_size, size, dtype, device))


def _check_mixing(batch_size: int, num_classes: int) -> None:
    if batch_size % 2:
        raise ValueError(f"mixup and cutmix take pairs: batch_size must be even, not {batch_size}")
    if num_classes < 2:
        raise ValueError("mixup and cutmix mix classes, and this data set has only one")


def usable_device(device: str | torch.device) -> torch.device:
    """Return `device`, a GPU with its number. Raises ValueError, LoaderError E-DEPENDENCY for one that is not there."""
    return numbered(checked_device(device))


def _parse(backend: str, options: dict[str, Any]) -> Any:
    """Return the options of the backend, checked. Raises ValueError."""
    module, _, options_name = _BACKENDS[backend]
    kind = getattr(import_module(module), options_name)
    try:
        return kind(**options)
    except TypeError as error:
        known = [*kind.__dataclass_fields__, *getattr(import_module(module), "SOURCE_OPTIONS", ())]
        others = ", ".join(name for name in options if name not in known)
        if not others:
            given = ", ".join(f"{name}={value!r}" for name, value in options.items())
            raise ValueError(f"backend {backend!r} takes its options in other types than {given}: {error}") from None
        raise ValueError(f"backend {backend!r} takes {', '.join(known)}, not {others}") from None


def _choose(
    backend: str, decoder: str | None, options: dict[str, Any], name: str | os.PathLike[str], *, is_cache: bool
) -> tuple[str, str, dict[str, Any]]:
    """Return backend, decoder and options: for "auto" from the saved profile, under what the arguments say.

    A profile of the hdf5 backend is used only where there is a cache, as source or by the option `cache`. Raises
    LoaderError E-MISUSE for a profile with options that its backend does not take.
    """
    options = dict(options)
    if backend != "auto":
        return backend, decoder or "auto", options
    saved = load_profile(name)
    if saved is None or (saved.backend == "hdf5" and not is_cache and "cache" not in options):
        return "hdf5" if "cache" in options else "torch", decoder or "auto", options
    defaults = _saved_options(saved, name)
    if "cache" in options and saved.backend == "torch":
        return "hdf5", decoder or saved.decoder, options
    return saved.backend, decoder or saved.decoder, {**defaults, **options}


def _saved_options(saved: Profile, name: str | os.PathLike[str]) -> dict[str, Any]:
    named = {k: v for k, v in (("workers", saved.workers), ("prefetch", saved.prefetch)) if v is not None}
    options: dict[str, Any] = {**named, **saved.options}
    if saved.backend not in _BACKENDS:
        raise profile_error(f"there is no backend {saved.backend!r}", name)
    try:
        _parse(saved.backend, options)
    except (TypeError, ValueError) as error:
        raise profile_error(f"its options do not suit its backend ({error})", name) from None
    return options
