"""Global settings of torch and numpy do not change what a loader serves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from penstock.loaders import create_loader, with_fields
from penstock.pipelines import imagenet_eval, imagenet_train
from penstock.pipelines.spec import ImagePipeline

JITTER = imagenet_train(16, auto_augment="rand", color_jitter=(0.4, 0.4, 0.4, 0.1), erasing=0.5)
PIPELINES = {
    "evaluation": imagenet_eval(16),
    "augmented": JITTER,
    "mixed": imagenet_train(16, mixup=0.8, cutmix=1.0),
    "grey": ImagePipeline(size=(16, 16), channels=1, mean=(0.4,), std=(0.2,)),
}


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def _default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


SWITCHES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "float16": lambda: _default_dtype(torch.float16),
    "bfloat16": lambda: _default_dtype(torch.bfloat16),
    "float64": lambda: _default_dtype(torch.float64),
    "meta": _default_device,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference": torch.inference_mode,
    "numpy's errors": lambda: np.errstate(all="raise"),
}


def _open(pipeline: ImagePipeline, dtype: torch.dtype) -> Any:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (8, 24, 28, 3), np.uint8)
    source: Any = (images, np.arange(8) % 4)
    if not pipeline.augment.mixes:
        boxes = [[[2.5, 3.0, 10.0, 20.0], [0, 0, 28, 24]]] * 8
        source = with_fields(source, boxes=boxes)
    return create_loader(source, pipeline=pipeline, batch_size=4, dtype=dtype, workers=0, seed=3)


def _serve(loader: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for batch in loader:
        for value in batch.values() if isinstance(batch, dict) else batch:
            found += value if isinstance(value, list) else [value]
    return found


def _equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(one.dtype == two.dtype and torch.equal(one, two) for one, two in pairs)


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("name", PIPELINES)
def test_pixels_labels_and_fields_do_not_depend_on_switches(name: str, switch: str) -> None:
    """With the setting changed before the loader is created, or before its first batch."""
    pipeline = PIPELINES[name]
    for dtype in (torch.float32, torch.float16):
        with _open(pipeline, dtype) as loader:
            expected = _serve(loader)
        with SWITCHES[switch](), _open(pipeline, dtype) as loader:
            made_under = _serve(loader)
        with _open(pipeline, dtype) as loader, SWITCHES[switch]():
            served_under = _serve(loader)
        assert _equal(made_under, expected)
        assert _equal(served_under, expected)


def test_a_difference_of_one_value_is_noticed() -> None:
    with _open(JITTER, torch.float32) as loader:
        expected = _serve(loader)
    changed = [each.clone() for each in expected]
    changed[0][0, 0, 2, 3] += 1
    assert not _equal(changed, expected)
