"""Measures runs with a known bottleneck, and checks the verdict and the predicted gain of its advice.

`python tests/studies/known_bottlenecks.py --json OUT [--only NAME] [--thorough]` makes the data, measures each
bottleneck like `penstock bench`, each within its budget, and applies the advice. The exit code is 1 if a verdict is
wrong or a gain is off by more than 20 %.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.bench.probe.ceilings.decode import all_decoders, usable_decoders
from penstock.bench.probe.data.demo_photo import photo_pixels, texture_bank
from penstock.bench.probe.data.demo_set import synthesise
from penstock.bench.probe.search.candidate import BenchData
from penstock.bench.record.advice import Verdict
from penstock.bench.record.bench_record import BenchRecord, TriedAdvice
from penstock.bench.record.settings import BenchSettings
from penstock.bench.run.benchmark import run_benchmark
from penstock.bench.run.rounds import Display
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.data.sources.data import Data
from penstock.loaders.front.open_source import open_source
from penstock.loaders.system.json_file import write_json
from penstock.loaders.system.machine import available_cpus

TOLERANCE = 0.2
_PHOTOS, _LARGE = 64, 32
_ENTRIES = 8192  # to make epochs long


class ThrottledSource(Data):
    """Serves `source` with reads that take `latency_s` seconds longer.

    bytes_per_s, lock: also limits the total bandwidth of all processes and threads; each read holds the lock, an
    existing file, for the duration of its bytes.
    """

    def __init__(
        self, source: Source, *, latency_s: float = 0.0, bytes_per_s: float | None = None, lock: Path | None = None
    ) -> None:
        if (bytes_per_s is None) != (lock is None):
            raise ValueError("a shared bandwidth needs a lock file: pass both bytes_per_s and lock")
        super().__init__([source])
        self._latency_s, self._bytes_per_s, self._lock = latency_s, bytes_per_s, lock

    def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
        """Read an image after a delay."""
        data = super().read(index)
        if self._latency_s:
            time.sleep(self._latency_s)
        if self._bytes_per_s is not None and self._lock is not None:
            num_bytes = len(data) if isinstance(data, bytes) else data.nbytes
            fd = os.open(self._lock, os.O_RDONLY)  # a separate descriptor: locks work between descriptors
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                time.sleep(num_bytes / self._bytes_per_s)
            finally:
                os.close(fd)
        return data

    def describe(self) -> str:
        """Describe the data in one line."""
        return f"{super().describe()}, throttled"


@dataclass(frozen=True, kw_only=True)
class Bottleneck:
    """limits: the correct verdicts; data: a function that makes it in a folder; settings: of the run."""

    name: str
    limits: tuple[str, ...]
    data: Callable[[Path], Source]
    settings: BenchSettings


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The verdict of a run on a bottleneck, and the applied advice with the highest predicted gain."""

    name: str
    expected: tuple[str, ...]
    limit: str
    sentence: str
    advice: str
    predicted_gain: float | None
    measured_gain: float | None

    @property
    def right(self) -> bool:
        """Return whether the verdict names the limit."""
        return self.limit in self.expected

    @property
    def within(self) -> bool:
        """Return whether the predicted gain is within TOLERANCE of the measured one."""
        predicted, measured = self.predicted_gain, self.measured_gain
        return bool(predicted and measured) and abs(predicted / measured - 1) <= TOLERANCE  # type: ignore[operator]

    @classmethod
    def of(cls, case: Bottleneck, record: BenchRecord, verdict: Verdict) -> Outcome:
        """Compare the results of a run with the known facts of the case."""
        best: TriedAdvice | None = next((a for a in record.applied if a.gain is not None), None)
        return cls(
            name=case.name,
            expected=case.limits,
            limit=verdict.limit,
            sentence=verdict.sentence,
            advice=best.what if best else "",
            predicted_gain=best.predicted / best.before if best and best.predicted else None,
            measured_gain=best.gain if best else None,
        )


def bottlenecks(device: str, seconds: float, budget: float | None = None) -> list[Bottleneck]:
    """Return the cases for this machine's processors and `device`; without a budget, two rounds."""
    cpus = available_cpus()
    some = max(1, cpus // 2)

    def run(**more: Any) -> BenchSettings:
        rounds = 2 if budget is None else None
        wanted: dict[str, Any] = {"device": device, "seconds": seconds, "rounds": rounds, "budget": budget}
        wanted |= {"apply": True, "model": None}
        wanted |= {"backend": "torch", "entries": _ENTRIES, "decoder": all_decoders()[0]}
        return BenchSettings(**{**wanted, **more})

    # an explicit decoder, because the native library does not support sources with their own read method
    throttled = {"batch_size": 16, "size": 160, "decoder": usable_decoders()[0]}
    return [
        Bottleneck(
            name="storage-latency",
            limits=("storage",),
            data=lambda folder: ThrottledSource(_photos(folder), latency_s=0.02),
            settings=run(workers=some, dtype="uint8", **throttled),
        ),
        Bottleneck(
            name="storage-bandwidth",
            limits=("storage",),
            data=_narrow,
            settings=run(workers=cpus, dtype="uint8", **throttled),
        ),
        Bottleneck(
            name="decode", limits=("decode",), data=_large_photos, settings=run(workers=some, batch_size=8, size=160)
        ),
        Bottleneck(
            name="model",
            limits=("model",),
            data=_photos,
            settings=run(workers=some, batch_size=8 if device == "cpu" else 128, size=128, model="resnet50"),
        ),
        Bottleneck(
            name="consumer",
            limits=("transfer", "consumer"),
            data=lambda _: _arrays(),
            settings=run(workers=min(cpus, 4), batch_size=32, size=320, dtype="bfloat16"),
        ),
    ]


def _photos(folder: Path) -> Source:
    """Return photos like those of the demo set, about 500 pixels per side."""
    synthesise(folder / "photos", images=_PHOTOS, validation=0)
    return open_source(folder / "photos" / "train")


def _narrow(folder: Path) -> Source:
    """Return photos behind a bandwidth of 100 average photos per second."""
    photos, lock = _photos(folder), folder / "lock"
    lock.touch()
    bandwidth = 100.0 * sum(path.stat().st_size for path in (folder / "photos").rglob("*.jpg")) / _PHOTOS
    return ThrottledSource(photos, bytes_per_s=bandwidth, lock=lock)


def _large_photos(folder: Path) -> Source:
    """Return photos of nearly one megapixel, decoded to a small crop."""
    from PIL import Image

    for number in range(_LARGE):
        path = folder / "large" / str(number % 4) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = photo_pixels(np.random.default_rng(number), texture_bank(0), number % 4, 960, 960)
        data = io.BytesIO()
        Image.fromarray(pixels).save(data, "JPEG", quality=92)
        path.write_bytes(data.getvalue())
    return open_source(folder / "large")


def _arrays() -> Source:
    """Return small pixels in memory, which take almost no time to read and little to resize."""
    pixels = np.random.default_rng(0).integers(0, 256, (256, 96, 96, 3), dtype=np.uint8)
    return open_source((pixels, np.arange(256) % 10))


def measure(case: Bottleneck, folder: Path) -> tuple[Outcome, BenchRecord]:
    """Measure one bottleneck with data made in `folder`."""

    def say(done: int, total: int, what: str) -> None:
        print(f"\r{case.name}: {done + 1} of {total}, {what}\033[K", end="", file=sys.stderr, flush=True)

    data = BenchData(case.data(folder), case.settings)
    record = run_benchmark(data, "data", case.settings, display=Display(begin=say))
    print("\r\033[K", end="", file=sys.stderr)
    assert record.verdict is not None
    return Outcome.of(case, record, record.verdict), record


def _row(outcome: Outcome) -> str:
    gains = [f"{gain:.2f}" if gain else "-" for gain in (outcome.predicted_gain, outcome.measured_gain)]
    verdict = f"{outcome.limit} ({'right' if outcome.right else 'expected ' + ' or '.join(outcome.expected)})"
    cells = (outcome.name, verdict, outcome.advice or "-", *gains, "yes" if outcome.within else "no")
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="OUT", help="write outcomes and records here")
    parser.add_argument("--only", action="append", metavar="NAME", help="only this bottleneck; may be repeated")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per measurement and round")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds per run")
    parser.add_argument("--thorough", action="store_true", help="no budget: two rounds of everything")
    arguments = parser.parse_args()
    cases = bottlenecks(arguments.device, arguments.seconds, None if arguments.thorough else arguments.budget)
    unknown = set(arguments.only or ()) - {case.name for case in cases}
    if unknown:
        parser.error(f"no bottleneck {', '.join(sorted(unknown))}: there are {', '.join(c.name for c in cases)}")
    # Half of the processors train; with all of them, torch's threads would wait for each other and for the workers.
    torch.set_num_threads(max(1, available_cpus() // 2))
    print("| bottleneck | verdict | advice taken | predicted gain | measured gain | within 20 % |")
    print("|---|---|---|--:|--:|---|")
    document: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bottlenecks-") as folder:
        for case in cases:
            if arguments.only and case.name not in arguments.only:
                continue
            outcome, record = measure(case, Path(folder))
            print(_row(outcome), flush=True)
            told = {**asdict(outcome), "right": outcome.right, "within": outcome.within}
            document.append({"outcome": told, "record": record.as_dict()})
            if arguments.json:  # after each case, so that an aborted run keeps its results
                write_json(arguments.json, {"bottlenecks": document})
    return 0 if all(entry["outcome"]["right"] and entry["outcome"]["within"] for entry in document) else 1


if __name__ == "__main__":
    sys.exit(main())
