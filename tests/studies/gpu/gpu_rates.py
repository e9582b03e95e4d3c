"""Measures the model alone on a loader's batch, loaders alone, and both: `gpu_rates.py OUT.json DATA CACHE DEVICE`.

Images per second; DATA is a folder of images, served repeatedly, CACHE its cache, which is built if missing.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gpu_kernels import FULL
from gpu_notes import Notes

from penstock.bench.probe.data.wrapped_sources import repeat_source
from penstock.bench.record.loader_rate import loader_rate
from penstock.bench.train.step.models import build_model
from penstock.bench.train.step.rates import resident_batch_rate, training_times
from penstock.bench.train.step.settings import TrainSettings
from penstock.loaders import create_loader
from penstock.loaders.cache_build.open_or_build import prepare_source
from penstock.loaders.front.open_source import open_source
from penstock.pipelines.augmentations import Augmentations
from penstock.pipelines.spec import imagenet_train

KINDS = ("torch", "hdf5", "dali", "dali-cache")


class Scale(NamedTuple):
    """Hold the size of the work, for a GPU or for a CPU that tries the code."""

    batch: int
    seconds: float
    entries: int
    size: int
    models: tuple[str, ...]


ON_GPU = Scale(256, 5.0, 100_000, 224, ("resnet18", "resnet50"))
ON_CPU = Scale(8, 0.3, 200, 32, ("resnet18",))


class Rates:
    """Opens loaders over one folder, and notes measurements."""

    def __init__(self, notes: Notes, data: str, cache: str, device: str) -> None:
        self._notes, self._cache, self._device, self._begin = notes, cache, device, time.perf_counter()
        self._on_gpu = device.startswith("cuda")
        self.scale = ON_GPU if self._on_gpu else ON_CPU
        self._files = open_source(data)
        self.models: dict[str, Any] = {}
        self._alone: dict[str, float] = {}

    def open(self, kind: str, stack: ExitStack, **more: Any) -> Any:
        """Open the loader of a kind: the files by torch or dali, their cache by hdf5 or dali-cache."""
        cached = kind in ("hdf5", "dali-cache")
        source = prepare_source(self._files, Path(self._cache)) if cached else self._files
        options = {
            "backend": "dali" if kind.startswith("dali") else kind,
            "pipeline": imagenet_train(self.scale.size, augment=more.pop("augment", Augmentations())),
            "batch_size": self.scale.batch,
            "device": self._device,
            "dtype": torch.bfloat16 if self._on_gpu else torch.float32,
            "on_bad_sample": "replace",
            "max_bad": None,
            **more,
        }
        return stack.enter_context(create_loader(repeat_source(source, self.scale.entries), **options))

    def note(self, name: str, rate: Any = None, **more: Any) -> None:
        about = {"at_s": round(time.perf_counter() - self._begin, 1), **more}
        if rate is not None:
            rates = {"images_per_s": rate.median, "q25": rate.q25, "q75": rate.q75}
            about |= {name: round(value, 1) for name, value in rates.items()} | {"windows": rate.windows}
        self._notes.note(name, about)

    def take_batch(self, loader: Any) -> Any:
        start = time.perf_counter()
        images, labels = next(iter(loader))[:2]
        about = {name: str(value) for name, value in loader.describe().items()}
        seconds = round(time.perf_counter() - start, 2)
        self.note("first batch", seconds=seconds, shape=list(images.shape), dtype=str(images.dtype), about=about)
        return images, labels

    def models_alone(self, batch: Any, seconds: float, again: str = "") -> None:
        for name in self.scale.models:
            if name not in self.models:
                amp = "bf16" if self._on_gpu else "off"
                settings = TrainSettings(model=name, device=self._device, amp=amp, compile="off")
                self.models[name] = build_model(settings, max(2, len(self._files.classes))), settings
            rate = resident_batch_rate(*self.models[name], batch=batch, seconds=seconds)
            self._alone.setdefault(name, rate.median)
            self.note(f"{name} alone{again}", rate)

    def loader_alone(self, name: str, loader: Any, seconds: float) -> None:
        self.note(f"{name} loader", loader_rate(loader, seconds=seconds, device=self._device))

    def both(self, name: str, loader: Any, model: str, seconds: float) -> None:
        times = training_times(*self.models[model], loader=loader, seconds=seconds)
        share = round(times.images_per_s.median / self._alone[model], 4)
        wait_share = round(times.wait_share, 4)
        self.note(f"{name} + {model}", times.images_per_s, of_alone=share, wait_share=wait_share)


def measure(rates: Rates, kinds: list[str]) -> None:
    """Measure every kind, the most important first, and the models once more at the end to show drift."""
    seconds, models = rates.scale.seconds, rates.scale.models
    with ExitStack() as stack:
        first = rates.open(kinds[0], stack)
        batch = rates.take_batch(first)
        rates.models_alone(batch, seconds)
        for kind in kinds:
            loader = first if kind == kinds[0] else rates.open(kind, stack)
            rates.loader_alone(kind, loader, seconds)
            for model in models:
                rates.both(kind, loader, model, seconds)
        variants = {"full recipe": {"augment": FULL}, "processes": {"workers_are": "processes"}}
        for name, options in variants.items() if "torch" in kinds else ():
            with ExitStack() as inner:
                loader = rates.open("torch", inner, **options)
                rates.loader_alone(f"torch, {name}", loader, seconds / 2)
                rates.both(f"torch, {name}", loader, models[0], seconds)
        rates.models_alone(batch, seconds / 2, ", again")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("out", "data", "cache", "device"):
        parser.add_argument(name)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["torch", "hdf5"])
    given = parser.parse_args()
    measure(Rates(Notes(given.out), given.data, given.cache, given.device), given.kinds)


if __name__ == "__main__":
    main()
