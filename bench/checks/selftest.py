"""Whether this installation works: images are made, loaded by everything that is installed, compared, trained on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from torch.utils.data import TensorDataset

from penstock.bench.checks.doctor import ensure_room
from penstock.bench.checks.finding import DoctorSettings, Finding
from penstock.bench.checks.parity import Candidate, ParitySettings, cache_of, candidates, served, tolerance_between
from penstock.bench.checks.parity_pair import Pair, Served
from penstock.bench.data.photo_like import photo_like
from penstock.bench.step.models import create_model
from penstock.bench.step.settings import TrainSettings
from penstock.bench.step.step import make_step
from penstock.loaders.create import create_loader
from penstock.loaders.drop_in.data_loader import DataLoader
from penstock.loaders.open_source import open_source
from penstock.loaders.sources.contract import Source
from penstock.loaders.system.needs import ensure_temporary_folder
from penstock.pipelines.errors import CANNOT_ALLOCATE, LoaderError
from penstock.pipelines.spec import imagenet_train

CLASSES, IMAGES, SIZE, BATCH = 2, 24, 96, 8
_SETTINGS = ParitySettings(images=IMAGES, size=SIZE, batch_size=BATCH)
_WORKERS = 2
_OWN_BYTES = 150 << 20  # of engines that work in this process, and of the model
_REINSTALL = "install the package named in the cause again"

Value = TypeVar("Value")


class SelftestFailure(RuntimeError):
    """Engines that should serve the same do not, or a step that should train does not; one line."""


def selftest() -> Iterator[Finding]:
    """One finding for each thing that works, or is not installed ("warn").

    Raises SelftestFailure for a wrong result, LoaderError for what fails; any other exception of a library becomes
    E-DEPENDENCY.
    """
    ensure_room(DoctorSettings(workers=_WORKERS, batch_size=BATCH, size=SIZE), _OWN_BYTES)
    folder = ensure_temporary_folder()
    with tempfile.TemporaryDirectory(prefix="penstock-selftest-", dir=folder) as name:
        source = _tried("synthetic images", lambda: _photos(Path(name)))
        yield Finding("images", "ok", source.describe())
        with cache_of(source, None) as (cache, missing):
            yield from (Finding(left.name, "warn", left.cause, left.fix) for left in missing)
            if cache is not None:
                yield Finding("cache", "ok", cache.describe())
            yield from _engines(source, cache)
        yield _tried("DataLoader", _drop_in)
        yield _tried("training step", lambda: _training_step(source))


def _tried(what: str, step: Callable[[], Value]) -> Value:
    try:
        return step()
    except (LoaderError, SelftestFailure, MemoryError):
        raise
    except Exception as error:
        if CANNOT_ALLOCATE in str(error):
            raise LoaderError("E-MEM", f"{what}: {str(error).splitlines()[0]}") from error
        raise LoaderError("E-DEPENDENCY", f"{what}: {type(error).__name__}: {error}", fix=_REINSTALL) from error


def _photos(folder: Path) -> Source:
    for number in range(IMAGES):
        place = folder / f"class{number % CLASSES}"
        place.mkdir(exist_ok=True)
        (place / f"{number:02d}.jpg").write_bytes(photo_like(120 + 8 * number, 330 - 7 * number, seed=number))
    return open_source(folder)


def _engines(source: Source, cache: Source | None) -> Iterator[Finding]:
    """Every engine in the consumer's process, then each backend with workers, against the first one that works."""
    reference: tuple[Candidate, list[Served]] | None = None
    working: dict[str, Candidate] = {}
    for candidate in candidates(source, cache):
        try:
            rows = _tried(candidate.name, lambda candidate=candidate: _stream(candidate))  # type: ignore[misc]
        except LoaderError as error:
            if error.code != "E-DEPENDENCY":
                raise
            yield Finding(candidate.name, "warn", f"not usable: {error.cause}", error.fix)
            continue
        reference = reference or (candidate, rows)
        working.setdefault(candidate.backend, candidate)
        yield _compared(candidate, rows, *reference)
    if reference is None:
        raise LoaderError("E-DEPENDENCY", "no decoder works", fix="pip install simplejpeg")
    for candidate in working.values():
        name, options = f"{candidate.name}, {_WORKERS} workers", {**candidate.options, "workers": _WORKERS}
        busy = replace(candidate, name=name, options=options)
        yield _compared(busy, _tried(name, lambda busy=busy: _stream(busy)), *reference)  # type: ignore[misc]


def _stream(candidate: Candidate) -> list[Served]:
    with candidate.open(_SETTINGS) as loader:
        return list(served(loader, IMAGES))


def _compared(candidate: Candidate, rows: list[Served], other: Candidate, expected: list[Served]) -> Finding:
    tolerance = tolerance_between(candidate, other)
    pair = Pair(candidate.name, other.name, tolerance)
    if len(rows) != len(expected):
        raise SelftestFailure(f"{candidate.name} served {len(rows)} batches, {other.name} {len(expected)}")
    for mine, theirs in zip(rows, expected, strict=True):
        pair.add(mine, theirs)
    if outside := pair.outside():
        raise SelftestFailure(f"{candidate.name} and {other.name}: {'; '.join(outside)}")
    if candidate is other:
        return Finding(candidate.name, "ok", f"{IMAGES} images")
    said = "bit for bit" if tolerance.p99_9 == 0 else f"pixels within {pair.distance.as_dict()['mean']:.2f} on average"
    return Finding(candidate.name, "ok", f"the stream of {other.name}, {said}")


def _drop_in() -> Finding:
    numbers = torch.arange(BATCH * 4)
    with DataLoader(TensorDataset(numbers), batch_size=BATCH, shuffle=True, num_workers=1, pin_memory=False) as loader:
        seen = torch.cat([batch[0] for batch in loader])
    if not torch.equal(seen.sort().values, numbers):
        raise SelftestFailure(f"DataLoader served {seen.tolist()}, not each of {len(numbers)} samples once")
    return Finding("DataLoader", "ok", f"{len(numbers)} samples from a worker process, each once")


def _training_step(source: Source) -> Finding:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = create_model("resnet18", CLASSES)
    before = [weights.detach().clone() for weights in model.parameters()]
    step = make_step(model, TrainSettings(device=device))
    pipeline = imagenet_train(SIZE)
    with create_loader(source, pipeline=pipeline, batch_size=BATCH, device=device, workers=0) as loader:
        loss = float(step(*next(iter(loader))))
    same = [torch.equal(old, new.detach().cpu()) for old, new in zip(before, model.parameters(), strict=True)]
    if not 0 < loss < float("inf") or all(same):
        raise SelftestFailure(f"a training step gave a loss of {loss}, and changed {same.count(False)} weights")
    return Finding("training step", "ok", f"resnet18 on {device}, loss {loss:.2f}")
