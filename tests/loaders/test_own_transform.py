"""User functions give the same stream with any workers, and their errors name the sample."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from memory_source import MemorySource
from PIL import Image
from transform_functions import (
    ByName,
    Compose,
    Faulty,
    Normalize,
    RandomHorizontalFlip,
    ToPILImage,
    ToTensor,
    from_global_state,
    from_own_state,
    mean,
    torchvision_steps,
)

from penstock.loaders import LoaderError, create_loader
from penstock.loaders.front.loader import Loader
from penstock.loaders.make.layout import Part
from penstock.loaders.make.own_transform import OwnTransform
from penstock.pipelines import imagenet_eval, imagenet_train
from penstock.pipelines.spec import ImagePipeline

NUM_PHOTOS, BATCH, SIZE = 24, 6, 16


def open_loader(source: Any, **settings: Any) -> Loader:
    usual = {"pipeline": imagenet_train(SIZE), "batch_size": BATCH, "seed": 5, "workers": 0}
    return create_loader(source, **{**usual, **settings})


def test_the_random_state_of_the_program_is_unchanged(photos: Path) -> None:
    random.seed(1), np.random.seed(2), torch.manual_seed(3)  # noqa: NPY002

    def read_states() -> tuple[Any, ...]:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]  # noqa: NPY002

    before = read_states()
    with open_loader(photos, transform=from_global_state) as loader:
        list(loader)
    assert read_states() == before


def test_results_of_a_transform_are_served(photos: Path) -> None:
    """Floats unchanged, in the loader's dtype; integer images are normalised; padding rows are zeros."""
    pipeline = imagenet_eval(SIZE)
    with open_loader(photos, pipeline=pipeline, dtype=torch.uint8) as loader:
        levels = torch.cat([batch.images for batch in loader.batches()])
    with open_loader(photos, pipeline=pipeline, transform=mean, dtype=torch.float16, pad=True, batch_size=23) as loader:
        first, second = (batch.images for batch in loader.batches())
    assert (first.shape, first.dtype) == ((23, 3), torch.float16)
    assert torch.allclose(first.float(), levels[:23].float().mean((2, 3)), atol=0.1)
    assert second[0].any()
    assert not second[1:].any()
    with open_loader(photos, pipeline=pipeline, transform=lambda image: image[4:]) as loader:
        cut = next(iter(loader))[0]
    with open_loader(photos, pipeline=pipeline) as loader:
        assert torch.equal(next(iter(loader))[0][:, :, 4:], cut)
    views = [pipeline, imagenet_eval(8)]
    with open_loader(photos, pipeline=views, transform=[None, mean], dtype=torch.uint8) as loader:
        one, two = next(iter(loader))[0]
    assert torch.equal(one, levels[:BATCH])
    assert two.shape == (BATCH, 3)


@pytest.mark.parametrize("workers", [{"workers": 0}, {"workers": 1, "workers_are": "processes"}])
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("raise", r"transform raised IndexError: .* \(transform_functions.py:\d+\)"),
        ("shape", r"transform must return uint8 \[8, 8, 3\] for each image, got uint8 \[7, 8, 3\]"),
        ("dtype", r"transform must return uint8 \[8, 8, 3\] for each image, got float32 \[8, 8, 3\]"),
        ("list", "transform must return one tensor or array of numbers, got list"),
        ("text", "transform must return one tensor or array of numbers, got str"),
    ],
)
def test_a_fault_of_a_transform_names_the_sample(workers: dict[str, Any], fault: str, cause: str) -> None:
    source = MemorySource([np.full((8, 8, 3), 255 * (number == 4), np.uint8) for number in range(8)])
    whole = ImagePipeline(size=(8, 8), crop="full", flip=0.0)
    settings = {
        "pipeline": whole,
        "batch_size": 3,
        "transform": Faulty(fault),
        "on_bad_sample": "replace",
        "max_bad": 5,
    }
    with open_loader(source, **settings, **workers) as loader, pytest.raises(LoaderError, match=cause) as caught:
        list(loader)
    assert (caught.value.code, caught.value.sample, caught.value.exit_code) == ("E-DATASET", 4, 3)
    if fault == "raise":
        assert "the line that errors name" in "".join(str(caught.value.__cause__)) or not workers["workers"]


def test_a_transform_that_raises_is_refused_with_its_line(photos: Path) -> None:
    for transform, message in (
        (
            lambda image: image.nothing,
            r"transform raised AttributeError: .* \(test_own_transform.py:\d+\) for an image of uint8",
        ),
        (
            lambda image: {}["x" * 100_000],
            r"transform raised KeyError: 'xxx.{190,200}xxx' \(test_own_tr.{,20}\) for an image",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            open_loader(photos, transform=transform)
    with pytest.warns(UserWarning, match="different results for the same image and random state"):
        OwnTransform(from_own_state, Part((8, 8, 3)))


def mirror(image: Any, generator: np.random.Generator) -> Any:
    """Take a Pillow image, although nothing says so."""
    return image.convert("RGB").transpose(0) if generator.uniform() < 2 else image


PILLOW_STEPS: dict[str, Any] = {
    "first version": Compose(RandomHorizontalFlip(1), ToTensor(), Normalize()),
    "second version, which leaves arrays": Compose(RandomHorizontalFlip(1, refuses=False), ToTensor(), Normalize()),
    "begins with ToPILImage": Compose(ToPILImage(), RandomHorizontalFlip(1), ToTensor(), Normalize()),
    "composed": Compose(Compose(RandomHorizontalFlip(1, refuses=False)), ToTensor(), Normalize()),
    "own function first": Compose(lambda image: image.convert("RGB"), RandomHorizontalFlip(1), ToTensor(), Normalize()),
}


@pytest.mark.parametrize("steps", PILLOW_STEPS)
def test_steps_for_pillow_images_get_one(photos: Path, steps: str) -> None:
    pipeline = imagenet_eval(SIZE)
    with open_loader(photos, pipeline=pipeline, dtype=torch.uint8) as loader:
        levels = next(iter(loader))[0]
    with open_loader(photos, pipeline=pipeline, transform=PILLOW_STEPS[steps]) as loader:
        assert torch.equal(next(iter(loader))[0], levels.flip(-1) / 255 - 0.5)


def test_pillow_images_are_results(photos: Path) -> None:
    for channels in ({}, {"channels": 1, "mean": 0.4, "std": 0.2}):
        pipeline = ImagePipeline(size=(SIZE, SIZE), crop="center", flip=0, **channels)
        with open_loader(photos, pipeline=pipeline) as loader:
            images = next(iter(loader))[0]
        function = (lambda image: image.transpose(0)) if channels else mirror
        with open_loader(photos, pipeline=pipeline, transform=function) as loader:
            assert torch.equal(next(iter(loader))[0], images.flip(-1))


def test_a_transform_whose_image_it_cannot_get_is_refused(photos: Path) -> None:
    deep = ImagePipeline(size=(SIZE, SIZE), depth=16)
    for function, pipeline, message in (
        (
            torchvision_steps,
            deep,
            "begins with RandomHorizontalFlip, which needs a Pillow image, not uint16 .* depth=8",
        ),
        (Compose(Normalize(), ToTensor()), imagenet_train(SIZE), "for a Pillow image of .*: begin it with ToImage"),
        (lambda image: image.convert("RGBA"), imagenet_train(SIZE), "Pillow images of mode RGB, got RGBA"),
        (lambda image: image.nothing, imagenet_train(SIZE), "'numpy.ndarray' object has no attribute 'nothing'"),
    ):
        with pytest.raises(ValueError, match=message):
            open_loader(photos, pipeline=pipeline, transform=function)


def test_whole_images_are_handed_over(tmp_path: Path) -> None:
    """Of any size, one at a time; bad ones are replaced, errors name the sample."""
    draw, images, paths = np.random.default_rng(6), [], []
    for number in range(20):
        height, width = draw.integers(20, 90, 2).tolist()
        images.append(draw.integers(0, 256, (height, width, 3), np.uint8))
        paths.append((str(tmp_path / f"{number:02}.png"), number % 3))
        Image.fromarray(images[-1]).save(paths[-1][0])
    whole = ImagePipeline(crop="none", flip=0.0, size=(16, 16))

    def corner(image: Any) -> Any:
        return np.concatenate((image[-16:, -16:], np.full((1, 16, 3), image.shape[1], np.uint8)))

    settings: dict[str, Any] = {"pipeline": whole, "transform": corner, "dtype": torch.uint8, "batch_size": 8}
    for shuffle, workers in ((False, 0), (True, 3)):
        more = {"workers": workers, "shuffle": shuffle, "with_index": True, "pad": True, "drop_last": False}
        with open_loader(paths, **settings, **more) as loader:
            for served, labels, index in loader:
                for image, label, at in zip(served.numpy(), labels.tolist(), index.tolist(), strict=True):
                    wanted = corner(images[at]) if at >= 0 else np.zeros((17, 16, 3), np.uint8)
                    assert np.array_equal(np.moveaxis(image, 0, -1), wanted)
                    assert label == (at % 3 if at >= 0 else -1)
    Path(paths[5][0]).write_bytes(Path(paths[5][0]).read_bytes()[:60])
    replaced = {"on_bad_sample": "replace", "max_bad": 2, "drop_last": False}
    with open_loader(paths, **settings, **replaced, shuffle=True, with_index=True) as loader:
        batches = list(loader)
        assert loader.stats().replaced == 1
        for served, _, index in batches:
            for image, at in zip(served.numpy(), index.tolist(), strict=True):
                assert np.array_equal(np.moveaxis(image, 0, -1), corner(images[at]))


def test_whole_images_need_a_transform_of_one_size(photos: Path) -> None:
    whole = ImagePipeline(crop="none", flip=0.0)
    for options, message in (
        ({}, r"crop='none' hands whole images .* pass transform="),
        (
            {"transform": lambda image: image[::2]},
            r"makes one size of all images, but it returns uint8 \[224, 672, 3\]",
        ),
        ({"transform": lambda image: image[:5000, :5000][4000]}, "with crop='none', pass the size of its results"),
        ({"transform": mean, "shuffle": None}, "pass shuffle=True or shuffle=False"),
        ({"transform": mean, "sizes": {0: 8}}, "transform needs one size"),
    ):
        with pytest.raises(ValueError, match=message):
            open_loader(photos, **{"pipeline": whole, "shuffle": True, **options})
    with pytest.raises(ValueError, match="leaves flips and turns to your transform"):
        ImagePipeline(crop="none")


class Slow(ByName):
    """Another thread may run between its seed and its draw; with a lock it cannot be copied."""

    def __init__(self, lock: Any = None) -> None:
        super().__init__()
        self._lock = lock

    def __call__(self, *, image: Any) -> dict[str, Any]:
        time.sleep(0.001)
        return super().__call__(image=image)


Slow.__module__ = ByName.__module__


@pytest.mark.parametrize("lock", [None, threading.Lock()])
def test_threads_have_their_own_albumentations(photos: Path, lock: Any) -> None:
    served = []
    for workers in ({"workers": 0}, {"workers": 3, "workers_are": "threads", "batch_size": NUM_PHOTOS}):
        with open_loader(photos, transform=Slow(lock), pipeline=imagenet_eval(SIZE), **workers) as loader:
            served.append(torch.cat([images for images, _ in loader]))
            transform = Slow(lock)
    assert torch.equal(*served)
    assert OwnTransform(transform, Part((8, 8, 3))).measure_lock()[1] == (0 if lock is None else math.inf)


def test_floats_with_channels_last_are_named(photos: Path) -> None:
    with pytest.warns(UserWarning, match=r"returns float32 \[16, 16, 3\], channels last.*ToTensorV2\(\)"):
        open_loader(photos, transform=lambda image: image.astype(np.float32)).close()


def test_a_transform_that_holds_the_interpreter_lock_runs_in_processes(photos: Path) -> None:
    with open_loader(photos, transform=from_global_state, workers=2) as loader:
        assert loader.describe()["start_method"] == "forkserver"

    def serve_in_threads() -> None:
        with open_loader(photos, transform=lambda image: image[0] * random.random(), workers=2) as loader:
            assert len(list(loader)) == NUM_PHOTOS // BATCH
            assert loader.describe()["workers_are"] == "threads"

    with pytest.warns(UserWarning, match="define it in a module"):
        serve_in_threads()


CELL = """
import functools, sys, warnings, torch
from penstock.loaders import create_loader
from penstock.pipelines import ImagePipeline
warnings.simplefilter("error")
def inverted(image, generator, top=255):
    return torch.from_numpy(top - image)
class Inverted:
    def __call__(self, image, generator):
        return inverted(image, generator)
    def method(self, image, generator):
        return inverted(image, generator)
def make(top):
    return lambda image, generator: inverted(image, generator, top)
functions = {
    "function": inverted, "instance": Inverted(), "method": Inverted().method, "lambda": lambda image: 255 - image,
    "closure": make(255), "partial": functools.partial(inverted, top=255),
}
for kind, function in functions.items():
    for backend in ("torch", "dali"):
        options = {"pipeline": ImagePipeline(size=(16, 16)), "batch_size": 4, "backend": backend, "workers": 2}
        with create_loader(sys.argv[1], transform=function, **options) as loader:
            print(kind, backend, sum(len(images) for images, _ in loader), loader.describe()["workers_are"])
try:
    create_loader(sys.argv[1], transform=inverted, workers=2, batch_size=4, workers_are="processes")
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_a_transform_of_a_script_runs_in_threads(suffix: str, tmp_path: Path) -> None:
    """For every kind of image and callable; requested processes are refused at once."""
    for number in range(12):
        noise = np.random.default_rng(number).integers(0, 256, (40, 40, 3), np.uint8)
        (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        Image.fromarray(noise).save(tmp_path / "ab"[number % 2] / f"{number}.{suffix}")
    done = subprocess.run(
        [sys.executable, "-c", CELL, tmp_path], capture_output=True, text=True, timeout=120, check=False
    )
    *served, refusal = done.stdout.splitlines() or [done.stderr]
    kinds = ("function", "instance", "method", "lambda", "closure", "partial")
    assert served == [f"{kind} {backend} 12 threads" for kind in kinds for backend in ("torch", "dali")], done.stderr
    assert refusal.startswith("the transform cannot be sent to worker processes")
    assert refusal.endswith("define it in a module, or pass workers_are='threads'")


def test_a_batch_transform_is_called_last(photos: Path) -> None:
    def add_noise(images: torch.Tensor, labels: torch.Tensor, generator: torch.Generator) -> Any:
        return images + torch.rand(images.shape, generator=generator), labels + 100

    with open_loader(photos) as loader:
        plain = [(batch.images, batch.labels) for batch in loader.batches()]
    runs = []
    for workers in (0, 2):
        with open_loader(photos, batch_transform=add_noise, workers=workers) as loader:
            runs.append([(batch.images, batch.labels) for batch in loader.batches()])
    for (images, labels), (first, first_labels), (again, _) in zip(plain, *runs, strict=True):
        assert torch.equal(first, again)
        assert torch.equal(first_labels, labels + 100)
        assert 0 <= (first - images).min() < (first - images).max() < 1.001
    assert not torch.equal(runs[0][0][0] - plain[0][0], runs[0][1][0] - plain[1][0])
    words = r"batch_transform raised AttributeError: .*\(test_own_tr.*:\d+\)"
    loader = open_loader(photos, batch_transform=lambda images, labels: images.nothing)
    with loader, pytest.raises(LoaderError, match=words):
        next(iter(loader))
