"""Checks a GPU: worker threads and processes must serve the same batches there as this process on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from penstock.bench.checks.finding import Finding
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.front.create import create_loader
from penstock.loaders.front.loader import Loader
from penstock.loaders.front.loader_options import WorkersAre
from penstock.pipelines.augmentations import Augmentations
from penstock.pipelines.spec import ImagePipeline

FUSED = "fused kernels"  # as in BatchStage.kernels
_WORKERS = 2
_AUGMENT = Augmentations(auto_augment="rand", color_jitter=(0.4, 0.4, 0.4, 0.1), erasing=0.5, mixup=0.4, cutmix=1.0)
_AUGMENTS = {torch.uint8: replace(_AUGMENT, mixup=0.0, cutmix=0.0), torch.bfloat16: _AUGMENT}  # levels are not mixed
_TOLERANCE = 2e-2  # for bfloat16 normalised by torch's kernels: one step of its values
_LABEL_TOLERANCE = 1e-6  # for the shares of mixed labels
_FIX = "see the warning above; penstock doctor names what is missing"


class SelftestFailure(RuntimeError):
    """A one-line message that names the engines or images that differ, or the step that failed."""


def check_device(source: Source, device: torch.device, pipeline: ImagePipeline, batch_size: int) -> Iterator[Finding]:
    """Yield a finding for each kind of workers and dtype: equality of images and labels, and the kernels.

    All augmentations that have a fused kernel are applied. "warn" if other than the fused kernels run, or if slots are
    not page-locked. Raises SelftestFailure if images or labels differ from the CPU's.
    """
    kinds: tuple[WorkersAre, ...] = ("threads", "processes")
    for workers_are in kinds:
        for dtype in _AUGMENTS:
            yield _compare(source, device, pipeline, batch_size, workers_are, dtype)


def _compare(
    source: Source,
    device: torch.device,
    pipeline: ImagePipeline,
    batch_size: int,
    workers_are: WorkersAre,
    dtype: torch.dtype,
) -> Finding:
    settings: dict[str, Any] = {
        "pipeline": replace(pipeline, augment=_AUGMENTS[dtype]),
        "batch_size": batch_size,
        "dtype": dtype,
        "on_bad_sample": "replace",
        "rank": 0,
        "world_size": 1,
    }
    name = f"{device}, {_WORKERS} {workers_are}, {str(dtype).removeprefix('torch.')}"
    with (
        create_loader(source, workers=0, **settings) as here,
        create_loader(source, device=device, workers=_WORKERS, workers_are=workers_are, **settings) as there,
    ):
        fused = there.describe()["augmentations"] == FUSED
        exact = fused or dtype == torch.uint8
        images = _count_equal(name, here, there, 0.0 if exact else _TOLERANCE)
        about = there.describe()
    locked = bool(about.get("page_locked"))
    slots = "page-locked slots" if locked else "slots that are not page-locked"
    found = f"{images} images as on the CPU{', bit for bit' * exact}; {about['augmentations']}, {slots}"
    return Finding(name, "ok", found) if fused and locked else Finding(name, "warn", found, _FIX)


def _count_equal(name: str, here: Loader, there: Loader, tolerance: float) -> int:
    """Count the images of an epoch of both loaders. Raises SelftestFailure at the first difference."""
    images = 0
    for expected, found in zip(here.batches(), there.batches(), strict=True):
        distance = (found.images.cpu().float() - expected.images.float()).abs().flatten(1).amax(1)
        of_labels = (found.labels.cpu().float() - expected.labels.float()).abs().view(len(distance), -1).amax(1)
        wrong = (distance > tolerance) | (of_labels > _LABEL_TOLERANCE)
        if wrong.any():
            row, total = int(wrong.int().argmax()), int(wrong.sum())
            where = f"step {found.step}, row {row}, pixels by {float(distance[row]):.3g}"
            raise SelftestFailure(f"{name}: {total} of {len(wrong)} images or labels differ from the CPU: {where}")
        images += int((found.index >= 0).sum())
    return images
