"""The dali backend on a GPU."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from broken_scans import KINDS, make_undecodable
from dali_streams import IDS, WORKERS, assert_near, open_loader, stream
from memory_source import MemorySource
from photo_folder import photo

from penstock.loaders.order.cursor import Cursor
from penstock.pipelines import imagenet_train

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
@pytest.mark.parametrize("options", WORKERS, ids=IDS)
def test_the_device_serves_the_stream_of_the_host(photos: Path, dtype: torch.dtype, options: dict[str, Any]) -> None:
    settings = {"batch_size": 12, "dtype": dtype, "pipeline": imagenet_train(64)}
    level = 2.0 if dtype == torch.uint8 else 2.0 / 255 / 0.22
    with open_loader(photos, **settings) as host, open_loader(photos, device="cuda", **settings, **options) as device:
        assert device.describe()["decodes_on"] == "cuda"
        for _ in range(2):
            for one, two in itertools.zip_longest(host.batches(), device.batches()):
                assert (two.images.device.type, two.labels.device.type) == ("cuda", "cuda")
                assert (two.images.dtype, two.images.shape) == (dtype, one.images.shape)
                assert two.images.is_contiguous(memory_format=torch.channels_last)
                assert torch.equal(one.labels, two.labels.cpu())
                for name in ("index", "windows", "flips"):
                    assert np.array_equal(getattr(one, name), getattr(two, name))
                assert (one.images.double() - two.images.cpu().double()).abs().mean() <= level


def test_images_are_made_on_the_device_and_never_leave_it(photos: Path) -> None:
    with open_loader(photos, batch_size=12, device="cuda", workers=2) as loader:
        loader._engine.seek(Cursor(0, 0))
        batch = loader._engine.next()
    assert batch.resident
    assert batch.images.device.type == "cuda"


def test_kept_batches_are_not_overwritten_on_the_device(photos: Path) -> None:
    with open_loader(photos, batch_size=4, device="cuda", workers=2) as loader:
        kept = [batch.images for _ in range(3) for batch in loader.batches()]
        copies = [images.clone() for images in kept[:12]]
        again = [batch.images for _ in range(2) for batch in loader.batches()]
        assert all(torch.equal(one, two) for one, two in zip(kept, copies, strict=False))
    assert len(again) == 24


def test_the_device_reports_the_bad_samples_of_the_host() -> None:
    items = [make_undecodable(photo(k), KINDS[0]) if k in (3, 4, 17) else photo(k) for k in range(40)]
    settings = {"batch_size": 8, "on_bad_sample": "replace"}
    ours = stream(MemorySource(items), backend="torch", **settings)
    for options in WORKERS:
        dali = stream(MemorySource(items), device="cuda", **settings, **options)
        assert_near(dali, ours, level=4.0)


def test_memory_of_the_device_does_not_grow(photos: Path) -> None:
    with open_loader(photos, batch_size=12, device="cuda", workers=2) as loader:
        batches = itertools.chain.from_iterable(loader.batches() for _ in itertools.count())
        for number, _ in enumerate(itertools.islice(batches, 70)):
            if number == 19:
                torch.cuda.synchronize()
                before = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]
        torch.cuda.synchronize()
        after = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]
    assert after[0] - before[0] < 32 << 20
    assert before[1] - after[1] < 32 << 20


@pytest.mark.parametrize("options", WORKERS, ids=IDS)
def test_images_decoded_on_the_device_are_compared_and_correct(photos: Path, options: dict[str, Any]) -> None:
    with open_loader(photos, batch_size=12, device="cuda", verify=12, **options) as loader:
        for _ in range(3):
            list(loader)
        about = loader.describe()
    assert about["compared"] > 0  # type: ignore[operator]
    assert about["misread"] == 0
