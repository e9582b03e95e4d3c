"""Checks an installation: parity of all its engines on a few generated images, then one training step."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import simplejpeg
import torch
from torch.utils.data import TensorDataset

from penstock.bench.checks.doctor import ensure_loader_fits
from penstock.bench.checks.finding import DoctorSettings, Finding
from penstock.bench.checks.parity import ParityEngine, ParitySettings, cache_of, compare, engines_for
from penstock.bench.checks.selftest_device import SelftestFailure, check_device
from penstock.bench.probe.ceilings.decode import usable_decoders
from penstock.bench.probe.data.demo_photo import plain_photo
from penstock.bench.train.step.models import build_model
from penstock.bench.train.step.settings import TrainSettings
from penstock.bench.train.step.train_step import TrainStep
from penstock.loaders.dali.dali_probe import describe_verdict, working_way
from penstock.loaders.dali.dali_versions import versions
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.drop_in.data_loader import DataLoader
from penstock.loaders.front.create import create_loader
from penstock.loaders.front.open_source import open_source
from penstock.loaders.run.feed.copies import usable_device
from penstock.loaders.run.workers.needs import ensure_temporary_folder
from penstock.pipelines.errors import CANNOT_ALLOCATE, LoaderError
from penstock.pipelines.sample.dali_graph import import_dali
from penstock.pipelines.spec import imagenet_train

CLASSES, IMAGES, SIZE, BATCH = 2, 24, 96, 8
_WORKERS = 2
_OWN_BYTES = 150 << 20  # for the engines that work in this process, and the model

Value = TypeVar("Value")


def selftest(device: str = "cpu") -> Iterator[Finding]:
    """Yield one finding for each part that works or is not installed ("warn").

    device: on a GPU, DALI's decoder is tested first, because it may crash its process. Then kernels, worker threads and
    processes are compared with the CPU.
    Raises SelftestFailure for a wrong result and LoaderError for an error; any other exception of a library becomes
    LoaderError E-DEPENDENCY.
    """
    target = usable_device(device)
    if target.type != "cpu":
        yield check_gpu_decoder(target)
    ensure_loader_fits(DoctorSettings(workers=_WORKERS, batch_size=BATCH, size=SIZE), _OWN_BYTES)
    folder = ensure_temporary_folder()
    with tempfile.TemporaryDirectory(prefix="penstock-selftest-", dir=folder) as name:
        source = _run_check("made images", lambda: write_images(Path(name)))
        yield Finding("images", "ok", source.describe())
        with cache_of(source, None) as (cache, missing):
            yield from (Finding(left.name, "warn", left.cause, left.fix) for left in missing)
            if cache is not None:
                yield Finding("cache", "ok", cache.describe())
            yield from check_engines(source, cache)
        if target.type != "cpu":
            yield from _run_check(str(target), lambda: list(check_device(source, target, imagenet_train(SIZE), BATCH)))
        yield _run_check("DataLoader", check_data_loader)
        yield _run_check("training step", lambda: check_training_step(source, device))


def check_gpu_decoder(device: torch.device) -> Finding:
    """Test DALI's ways of decoding on `device` in separate processes; loaders use the result."""
    try:
        import_dali()
        verdict = working_way(device, again=True)
    except LoaderError as error:
        return Finding("GPU decoder", "warn", error.cause, error.fix)
    return (
        Finding("GPU decoder", "warn", *describe_verdict(verdict))
        if verdict.why
        else Finding("GPU decoder", "ok", versions())
    )


def _run_check(what: str, check: Callable[[], Value]) -> Value:
    try:
        return check()
    except (LoaderError, SelftestFailure, MemoryError):
        raise
    except Exception as error:
        if CANNOT_ALLOCATE in str(error):
            raise LoaderError("E-MEM", f"{what}: {str(error).splitlines()[0]}") from error
        fix = "reinstall the package named in the cause"
        raise LoaderError("E-DEPENDENCY", f"{what}: {type(error).__name__}: {error}", fix=fix) from error


def write_images(folder: Path) -> Source:
    """Write photo-like JPEGs and a few unusual images (grey; with Pillow also CMYK and PNG) in two class folders."""
    for number in range(CLASSES):
        (folder / f"class{number}").mkdir()
    for number in range(IMAGES):
        path = folder / f"class{number % CLASSES}" / f"{number:02d}.jpg"
        path.write_bytes(plain_photo(120 + 8 * number, 330 - 7 * number, seed=number))
    grey = np.linspace(0, 255, 90 * 140).astype(np.uint8).reshape(90, 140, 1)
    (folder / "class0" / "00.jpg").write_bytes(simplejpeg.encode_jpeg(grey, 90, "GRAY"))
    if "pillow" in usable_decoders():  # only Pillow decodes these
        from PIL import Image

        colours = Image.fromarray(np.repeat(grey, 3, axis=2))
        colours.convert("CMYK").save(folder / "class1" / "01.jpg")
        colours.save(folder / "class0" / "02.jpg", format="PNG")  # a wrong suffix: the first bytes decide
    return open_source(folder)


def check_engines(source: Source, cache: Source | None) -> Iterator[Finding]:
    """Compare the first engine that works with every other one, then with one of each backend with workers.

    One by one, so that an error names its engine and only one engine's workers run at once.
    """
    reference: ParityEngine | None = None
    working: dict[str, ParityEngine] = {}
    for engine in engines_for(source, cache):
        finding = _compare_with(reference, engine, source)
        yield finding
        if finding.state == "ok":
            reference = reference or engine
            working.setdefault(engine.backend, engine)
    if reference is None:
        raise LoaderError("E-DEPENDENCY", "no decoder works", fix="pip install simplejpeg")
    for engine in working.values():
        name, options = f"{engine.name}, {_WORKERS} workers", {**engine.options, "workers": _WORKERS}
        yield _compare_with(reference, replace(engine, name=name, options=options), source)


def _compare_with(reference: ParityEngine | None, engine: ParityEngine, source: Source) -> Finding:
    settings = ParitySettings(images=IMAGES, seed=0, size=SIZE, batch_size=BATCH, evaluate=False)
    pair = [engine] if reference is None else [reference, engine]
    record = _run_check(engine.name, lambda: compare(source, pair, settings, least=0))
    for left in record.left_out:
        return Finding(engine.name, "warn", f"not usable: {left.cause}", left.fix)
    for outside in record.outside:
        raise SelftestFailure(f"{outside.first} and {outside.second}: {'; '.join(outside.outside())}")
    if reference is None:
        return Finding(engine.name, "ok", f"{record.images} images")
    [compared] = record.pairs
    mean = compared.distances()["mean"]
    equality = "bit for bit" if compared.tolerance.p99_9 == 0 else f"pixels within {mean:.2f} on average"
    return Finding(engine.name, "ok", f"the stream of {reference.name}, {equality}")


def check_data_loader() -> Finding:
    """Load numbers with the drop-in DataLoader and one worker; each must be served once."""
    numbers = torch.arange(BATCH * 4)
    with DataLoader(TensorDataset(numbers), batch_size=BATCH, shuffle=True, num_workers=1, pin_memory=False) as loader:
        seen = torch.cat([batch[0] for batch in loader])
    if not torch.equal(seen.sort().values, numbers):
        raise SelftestFailure(f"DataLoader served {seen.tolist()}, not each of {len(numbers)} samples once")
    return Finding("DataLoader", "ok", f"{len(numbers)} samples from a worker process, each once")


def check_training_step(source: Source, device: str = "cpu") -> Finding:
    """Train ResNet-18 on one batch; the loss must be finite and weights must change."""
    settings = TrainSettings(device=device)
    model = build_model(settings, CLASSES)
    before = [weights.detach().clone() for weights in model.parameters()]
    step = TrainStep(model, settings)
    pipeline = imagenet_train(SIZE)
    with create_loader(source, pipeline=pipeline, batch_size=BATCH, device=device, workers=0) as loader:
        loss = float(step(*next(iter(loader))))
    same = [torch.equal(old, new.detach().cpu()) for old, new in zip(before, model.parameters(), strict=True)]
    if not 0 < loss < float("inf") or all(same):
        raise SelftestFailure(f"a training step returned a loss of {loss} and changed {same.count(False)} weights")
    return Finding("training step", "ok", f"resnet18 on {device}, loss {loss:.2f}")
