"""Transforms that draw from the process's random state for some images only give equal runs."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transform_functions import draws_for_some

from penstock.loaders import create_loader
from penstock.loaders.front.loader import Loader
from penstock.loaders.make.own.global_draws import read_random_state, seed_generators
from penstock.pipelines.spec import ImagePipeline

Image = npt.NDArray[np.uint8]
LEVELS = np.random.default_rng(0).permutation(96).astype(np.uint8)
ARRAYS = np.broadcast_to(LEVELS[:, None, None, None], (96, 6, 6, 3)).copy(), LEVELS.astype(np.int64)
DRAWS: dict[str, Callable[[], float]] = {
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),
    "numpy": lambda: float(np.random.rand()),  # noqa: NPY002
    "numpy's gauss": lambda: float(np.random.randn()),  # noqa: NPY002
    "torch": lambda: float(torch.rand(())),
    "torch's gauss": lambda: float(torch.randn(())),
    "all": lambda: random.random() + float(np.random.rand()) + float(torch.rand(())),  # noqa: NPY002
}


def sometimes(draw: Callable[[], float], levels: frozenset[int], *, changes: bool = False) -> Any:
    """Return a transform that draws for images of some levels, and may change its image."""

    def transform(image: Image) -> npt.NDArray[np.float32]:
        level = float(image[0, 0, 0])
        if changes:
            image[...] = 255 - image
        drawn = draw() if level in levels else 0.0
        return np.float32([level, image[0, 0, 0], drawn])

    return transform


def with_generator(draw: Callable[[], float], levels: frozenset[int]) -> Any:
    def transform(image: Image, generator: np.random.Generator) -> npt.NDArray[np.float32]:
        return np.float32([image[0, 0, 0], generator.random(), draw() if int(image[0, 0, 0]) in levels else 0])

    return transform


def open_loader(transform: Any, workers: int) -> Loader:
    kinds = {"workers": workers} | ({"workers_are": "threads"} if workers else {})
    pipeline = ImagePipeline(size=(6, 6), crop="full", flip=0.0)
    settings: Any = {"pipeline": pipeline, "batch_size": 32, "shuffle": True, "seed": 4, "transform": transform}
    return create_loader(ARRAYS, **settings, **kinds)


def serve(transform: Any, workers: int) -> torch.Tensor:
    with open_loader(transform, workers) as loader:
        return torch.cat([images for images, _ in loader])


def serve_quietly(transform: Any, workers: int) -> torch.Tensor:
    """Serve without the warning of threads about shared random state."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "transform draws from the global random state")
        return serve(transform, workers)


@pytest.mark.parametrize("draw", DRAWS)
def test_runs_are_equal_whichever_images_draw(draw: str) -> None:
    """56 random sets of images that draw, from one in a hundred to all, and any number of workers."""
    choose = np.random.default_rng(len(draw))
    for number in range(8):
        levels = frozenset(choose.permutation(96)[: (1, 1, 2, 5, 20, 50, 95, 96)[number]].tolist())
        make: Callable[[], Any] = partial(sometimes, DRAWS[draw], levels, changes=number % 2 == 1)
        if number % 3 == 0:
            make = partial(with_generator, DRAWS[draw], levels)
        expected = serve_quietly(make(), 0)
        DRAWS[draw]()  # the program's random state advances
        assert torch.equal(serve_quietly(make(), 0), expected)
        assert torch.equal(serve_quietly(make(), (1, 2, 3)[number % 3]), expected)
        drawn = expected[:, 2][torch.tensor([int(level) in levels for level in expected[:, 0]])]
        assert len(drawn) == len(levels)
        assert drawn.unique().numel() == len(levels)


def test_a_worker_process_seeds_each_call() -> None:
    pipeline = ImagePipeline(size=(6, 6), crop="full", flip=0.0)
    served = []
    for workers in ({"workers": 0}, {"workers": 2, "workers_are": "processes"}):
        settings: Any = {"pipeline": pipeline, "batch_size": 16, "seed": 4, "transform": draws_for_some} | workers
        with create_loader(ARRAYS, **settings) as loader:
            served.append(torch.cat([images for images, _ in loader]))
    assert torch.equal(*served)
    assert len(served[0][:, 1].unique()) == 1 + 96 // 4


def test_threads_warn_once_of_a_draw_and_processes_do_not() -> None:
    rare = sometimes(random.random, frozenset([17]))
    with pytest.warns(UserWarning, match=r"draws from the global random state.*define it in a module") as seen:
        serve(rare, 2)
    assert len(seen) == 1
    always = sometimes(random.random, frozenset(range(96)) | frozenset(range(96, 256)))
    with pytest.warns(UserWarning, match="results differ between runs if other code draws at the same time"):
        serve(always, 1)
    serve(rare, 0)


def test_threads_do_not_touch_the_state_of_a_program_that_draws_meanwhile() -> None:
    """A transform that draws nothing is not mistaken for one that does, and the program's state is not seeded."""
    stop = threading.Event()
    drawn: list[float] = []

    def train() -> None:
        while not stop.is_set():
            drawn.append(float(torch.rand(())))
            stop.wait(0.001)

    thread = threading.Thread(target=train)
    with open_loader(sometimes(random.random, frozenset()), 2) as loader:
        torch.manual_seed(8)
        thread.start()
        try:
            served = [torch.cat([images for images, _ in loader]) for _ in range(10)]
        finally:
            stop.set()
            thread.join()
    assert {len(images) for images in served} == {96}
    torch.manual_seed(8)
    assert len(drawn) > 5
    assert drawn == [float(torch.rand(())) for _ in drawn]


def test_without_threads_the_state_of_the_program_is_unchanged() -> None:
    before = read_random_state()
    serve(sometimes(DRAWS["all"], frozenset([3, 50])), 0)
    assert read_random_state() == before
    random.random()
    assert read_random_state() != before


def test_another_generator_of_numpy_is_seeded_too() -> None:
    usual = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(5))
    try:
        rare = sometimes(DRAWS["numpy"], frozenset([4, 9]))
        assert torch.equal(serve(rare, 0), serve(rare, 0))
        words = np.arange(4, dtype=np.uint64)
        seed_generators(words)
        first = np.random.rand()  # noqa: NPY002
        seed_generators(words)
        assert np.random.rand() == first  # noqa: NPY002
    finally:
        np.random.set_bit_generator(usual)
