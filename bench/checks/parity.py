"""Compares the streams of the engines on this machine in lockstep, batch by batch."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from penstock.bench.checks.parity_pair import DALI_CPU, DALI_GPU, EXACT, TOLERANCES, EnginePair, ServedBatch, Tolerance
from penstock.bench.record.environment import describe_environment
from penstock.bench.record.settings import Interpolation, crops_of
from penstock.loaders.cache_build.open_or_build import prepare_source, prepare_whole
from penstock.loaders.data.cache.hdf5_cache import known_cache
from penstock.loaders.data.sources.contract import Source, is_cache
from penstock.loaders.front.create import create_loader
from penstock.loaders.front.loader import Loader
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.sample.decode import JPEG_DECODERS, NATIVE
from penstock.pipelines.spec import ImagePipeline

MOST_CACHED = 5_000  # maximum number of images for a temporary cache


@dataclass(frozen=True, kw_only=True)
class ParitySettings:
    """Define the part of the stream to compare.

    Attributes:
        images: maximum number of images to compare.
        evaluate: whether to compare the stream of imagenet_eval instead of that of imagenet_train.
    """

    images: int
    seed: int
    size: int
    batch_size: int
    evaluate: bool
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        _ = self.pipeline  # rejects an invalid size before a cache is built

    @property
    def pipeline(self) -> ImagePipeline:
        """The pipeline that every engine serves."""
        return crops_of(self.size, self.interpolation, evaluate=self.evaluate)


class LeftOut(NamedTuple):
    """Name a decoder or backend that cannot be compared here, why, and what to do about it."""

    name: str
    cause: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class ParityEngine:
    """Describe one engine to compare: a backend with its decoder, source and device.

    Attributes:
        needs: the decoder or backend that may be missing here.
        options: further arguments of create_loader.
    """

    name: str
    needs: str
    source: Source
    backend: str
    device: str = "cpu"
    options: Mapping[str, Any]

    def open(self, settings: ParitySettings) -> Loader:
        """Open a loader of the whole stream, as one rank. Raises as create_loader does."""
        return create_loader(
            self.source,
            backend=self.backend,
            pipeline=settings.pipeline,
            batch_size=min(settings.batch_size, settings.images, len(self.source)),
            device=self.device,
            dtype=torch.uint8,
            seed=settings.seed,
            drop_last=False,
            pad=True,  # rows stay aligned if only one engine finds a sample bad
            rank=0,
            world_size=1,
            on_bad_sample="replace",
            **self.options,
        )


def engines_for(data: Source, cache: Source | None) -> list[ParityEngine]:
    """List all engines that could serve `data` or its `cache`, installed or not.

    All work in the consumer's process: they alternate, so workers would only wait.
    """
    found = [
        ParityEngine(
            name=f"{backend}/{decoder}",
            needs=decoder,
            source=source,
            backend=backend,
            options={"decoder": decoder, "workers": 0},
        )
        for backend, source in (("torch", data), ("hdf5", cache))
        if source is not None
        for decoder in (*JPEG_DECODERS, NATIVE)
    ]
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        for source in (data,) if cache is None or cache is data else (data, cache):
            kind = "cache" if is_cache(source) else "files"
            name, options = f"dali/{kind}/{device}", {"workers": 0}
            found.append(
                ParityEngine(name=name, needs="dali", source=source, backend="dali", device=device, options=options)
            )
    return found


def tolerance_between(first: ParityEngine, second: ParityEngine) -> Tolerance:
    """Return the tolerance between two engines."""
    dali = [engine for engine in (first, second) if engine.backend == "dali"]
    if not dali:
        return EXACT
    return DALI_CPU if all(engine.device == "cpu" for engine in dali) else DALI_GPU


@contextmanager
def cache_of(data: Source, path: Path | None) -> Iterator[tuple[Source | None, list[LeftOut]]]:
    """Yield the cache of `data`: `data` itself, the one at `path` (built if missing), or a temporary one.

    If there is none, yield None with the reason. Raises LoaderError E-MISUSE for a lossy cache, otherwise as
    prepare_source.
    """
    if path is not None or is_cache(data):
        there = None if path is None else known_cache(path)
        if there is not None and not there.coded.lossless:
            cause = f"the cache is not lossless ({there.coded.describe()}): its pixels differ from those of the files"
            raise LoaderError("E-MISUSE", cause, fix="pass a lossless cache, or this one as DATA", path=str(path))
        yield prepare_whole(data, path), []
    elif len(data) > MOST_CACHED:
        cause = f"a temporary cache is built for up to {MOST_CACHED:,} images, not for {len(data):,}"
        yield None, [LeftOut("hdf5", cause, "pass --cache FILE.h5, which is built if missing")]
    else:
        with tempfile.TemporaryDirectory(prefix="penstock-parity-") as folder:
            try:
                cache, missing = prepare_source(data, os.path.join(folder, "data.h5")), []
            except LoaderError as error:
                cache, missing = None, [_left_out("hdf5", error)]
            yield cache, missing


def _left_out(name: str, error: LoaderError) -> LeftOut:
    """Return the entry for an engine without its package; raise any other error again."""
    if error.code != "E-DEPENDENCY":
        raise error
    return LeftOut(name, error.cause, error.fix)


def served_batches(loader: Loader, images: int) -> Iterator[ServedBatch]:
    """Yield the first `images` rows of the loader's epoch, batch by batch, in host memory."""
    left, entries_seen, repairs_seen = images, 0, 0
    for batch in loader.batches():
        rows = min(left, len(batch.index))
        ledger = loader.ledger(batch.epoch)
        entries = [*ledger.repairs[repairs_seen:], *ledger.bad[entries_seen:]]
        replaced = {entry.row: (entry.sample, entry.substitute, entry.code) for entry in entries}
        entries_seen, repairs_seen = len(ledger.bad), len(ledger.repairs)
        yield ServedBatch(
            (batch.epoch, batch.step),
            batch.index[:rows],
            batch.labels[:rows].cpu().numpy(),
            batch.windows[:rows],
            batch.flips[:rows],
            batch.images[:rows].permute(0, 2, 3, 1).cpu().numpy(),
            {row: entry for row, entry in replaced.items() if row < rows},
        )
        left -= rows
        if left == 0:
            return


@dataclass(frozen=True, kw_only=True)
class ParityRecord:
    """Hold the result of a comparison.

    Attributes:
        images: number of compared images, without padding.
        engines: name of an engine -> its loader's settings.
    """

    data: Source
    settings: ParitySettings
    images: int
    engines: Mapping[str, Mapping[str, object]]
    pairs: Sequence[EnginePair]
    left_out: Sequence[LeftOut]

    @property
    def outside(self) -> list[EnginePair]:
        """The pairs that are outside their tolerance."""
        return [pair for pair in self.pairs if pair.outside()]

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable record without paths."""
        return {
            "data": {"summary": self.data.describe(), "images": len(self.data), "fingerprint": self.data.fingerprint},
            "settings": asdict(self.settings),
            "images_compared": self.images,
            "candidates": [{"name": name, "loader": dict(about)} for name, about in self.engines.items()],
            "tolerances": [tolerance._asdict() for tolerance in TOLERANCES],
            "pairs": [pair.as_dict() for pair in self.pairs],
            "left_out": [left._asdict() for left in self.left_out],
            "inside": not self.outside,
            "environment": describe_environment(),
        }


class _Running(NamedTuple):
    engine: ParityEngine
    loader: Loader
    stream: Iterator[ServedBatch]


def compare(
    data: Source,
    engines: Sequence[ParityEngine],
    settings: ParitySettings,
    *,
    advance: Callable[[int], None] = lambda images: None,
    left_out: Sequence[LeftOut] = (),
    least: int = 2,
) -> ParityRecord:
    """Serve the start of the stream with every engine in lockstep, and compare each pair.

    Keeps one or two batches per engine in memory. `advance` is called with the number of newly compared images. Engines
    without their package are added to `left_out`. Raises LoaderError E-MISUSE if fewer than `least` engines work, and
    for any error of an engine.
    """
    images = 0
    with ExitStack() as stack:
        running, missing = _start(stack, engines, settings, left_out)
        if len(running) < least:
            names = " and ".join(each.engine.name for each in running) or "none"
            fix = "; ".join(f"{left.name}: {left.fix}" for left in missing) or "install another decoder"
            raise LoaderError("E-MISUSE", f"parity needs at least two engines, but only {names} works here", fix=fix)
        pairs = [
            (one, two, EnginePair(a.engine.name, b.engine.name, tolerance_between(a.engine, b.engine)))
            for (one, a), (two, b) in itertools.combinations(enumerate(running), 2)
        ]
        for batches in zip(*(each.stream for each in running), strict=True):
            for one, two, pair in pairs:
                pair.add(batches[one], batches[two])
            images += int((batches[0].index >= 0).sum())
            advance(len(batches[0].index))
        return ParityRecord(
            data=data,
            settings=settings,
            images=images,
            engines={each.engine.name: each.loader.describe() for each in running},
            pairs=[pair for _, _, pair in pairs],
            left_out=missing,
        )


def _start(
    stack: ExitStack, engines: Sequence[ParityEngine], settings: ParitySettings, known: Sequence[LeftOut]
) -> tuple[list[_Running], list[LeftOut]]:
    """Open the engines that work here; return them, and `known` plus those without their package."""
    running, left_out = [], list(known)
    for engine in engines:
        try:
            loader = stack.enter_context(engine.open(settings))
            stream = served_batches(loader, min(settings.images, len(engine.source)))
            first = next(stream)  # some packages are first imported here
        except LoaderError as error:
            left_out.append(_left_out(engine.needs, error))
            continue
        running.append(_Running(engine, loader, itertools.chain([first], stream)))
    return running, list(dict.fromkeys(left_out))
