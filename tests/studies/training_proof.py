"""Trains one small model with torch's DataLoader and with each backend, and compares the accuracies.

`python training_proof.py --seeds 3 --json FILE`: the same model, schedule and augmentation on two data sets, from the
same initial weights per seed: photos of the demo set (`penstock synth`), and the digits of scikit-learn, which must be
installed. Torch's DataLoader runs torchvision-style transforms in Pillow. Each loader draws its own crops, so the
accuracies differ like those of two seeds.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import nn
from torch.nn import functional

from penstock.bench.probe.data.demo_set import synthesise
from penstock.bench.record.environment import describe_environment
from penstock.bench.run.pillow_loader import baseline_loader
from penstock.loaders import create_loader, open_source
from penstock.loaders.system.json_file import write_json
from penstock.pipelines import imagenet_eval, imagenet_train
from penstock.pipelines.spec import ImagePipeline

BATCH, WORKERS = 32, 2
BACKENDS = ("torch", "hdf5", "dali")
Loaders = dict[str, Callable[[int], Iterable[tuple[torch.Tensor, torch.Tensor]]]]


class SmallNet(nn.Module):
    """Three convolutions and a linear layer."""

    def __init__(self, num_classes: int, width: int = 24) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels_in, channels in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
            layers += [nn.Conv2d(channels_in, channels, 3, 2, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(4 * width, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images).mean((2, 3)))


def train(loader: Any, seed: int, epochs: int, num_classes: int) -> nn.Module:
    """Train from the weights of `seed`, with a one-cycle schedule."""
    torch.manual_seed(seed)
    model = SmallNet(num_classes)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=epochs * len(loader))
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels, label_smoothing=0.1).backward()
            optimizer.step()
            schedule.step()
    return model


@torch.no_grad()
def accuracy(model: nn.Module, loader: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Return the share of right answers."""
    model.eval()
    right = [(model(images).argmax(1) == labels).float() for images, labels in loader]
    return float(torch.cat(right).mean())


def loaders_of(source: Any, pipeline: ImagePipeline, folder: Path) -> Loaders:
    """Return factories of each kind of loader by seed: torch's with Pillow, and ours."""
    opened = open_source(source)
    settings: dict[str, Any] = {"batch_size": BATCH, "workers": WORKERS}

    def torchs(seed: int) -> Any:
        torch.manual_seed(1000 + seed)  # for the order; workers draw from it too
        return baseline_loader(opened, pipeline, dtype=torch.float32, pin_memory=False, **settings)

    def ours(backend: str) -> Callable[[int], Any]:
        more = {"cache": folder / "all.h5"} if backend == "hdf5" else {}
        return lambda seed: create_loader(source, backend=backend, pipeline=pipeline, seed=seed, **settings, **more)

    return {"torch DataLoader + Pillow": torchs, **{f"penstock, {name}": ours(name) for name in BACKENDS}}


def digits() -> tuple[Any, Any]:
    """Return scikit-learn's digits for training and validation, uint8 [n, 32, 32, 3] and labels."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    grey = (images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8).repeat(4, 1).repeat(4, 2)
    pixels = np.repeat(grey[..., None], 3, axis=3)
    return (pixels[:1300], labels[:1300]), (pixels[1300:], labels[1300:])


def main(
    seeds: Annotated[int, typer.Option(help="Seeds of each loader.")] = 3,
    epochs: Annotated[int, typer.Option(help="Epochs of each run.")] = 6,
    images: Annotated[int, typer.Option(help="Photos of the demo set to train on.")] = 800,
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write the record.")] = None,
) -> None:
    """Train, and print mean and spread of the accuracies."""
    record: dict[str, Any] = {"environment": describe_environment(), "epochs": epochs, "images": images, "accuracy": {}}
    with tempfile.TemporaryDirectory() as folder:
        demo = Path(folder) / "demo"
        synthesise(demo, images=images, validation=400, classes=10)
        photos = {part: demo / part for part in ("train", "val")}
        crops = imagenet_train(64, scale=(0.25, 1.0))
        whole = ImagePipeline(size=(32, 32), crop="full", flip=0)
        sets = {
            "demo photos": (photos["train"], photos["val"], crops, imagenet_eval(64, center_fraction=1.0)),
            "digits": (*digits(), imagenet_train(32, scale=(0.6, 1.0), flip=0.0), whole),
        }
        for name, (training, validation, pipeline, evaluation) in sets.items():
            (Path(folder) / name).mkdir()
            found = record["accuracy"][name] = {}
            for who, make in loaders_of(training, pipeline, Path(folder) / name).items():
                started, found[who] = time.perf_counter(), []
                for seed in range(seeds):
                    model = train(make(seed), seed, epochs, 10)
                    with create_loader(validation, pipeline=evaluation, batch_size=100, workers=0) as loader:
                        found[who].append(accuracy(model, loader))
                mean, spread = statistics.mean(found[who]), max(found[who]) - min(found[who])
                took = time.perf_counter() - started
                print(f"{name}, {who}: {mean:.4f}, from lowest to highest {spread:.4f}, {took:.0f} s", flush=True)
    if json_file is not None:
        write_json(json_file, record)


if __name__ == "__main__":
    typer.run(main)
