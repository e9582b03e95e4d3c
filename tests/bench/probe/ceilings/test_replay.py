"""Replayed batches equal those of the loader."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch

from penstock.bench.probe.ceilings import replay
from penstock.bench.probe.ceilings.replay import NUM_BATCHES, ReplayedBatches, host_batches
from penstock.loaders import create_loader, open_source
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.pipelines import imagenet_train


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_replayed_batches_equal_the_loaders(photos: Path, dtype: torch.dtype) -> None:
    pipeline = imagenet_train(32)
    batches = host_batches(open_source(photos), pipeline, 8, 5)
    again = list(islice(ReplayedBatches(lambda: batches, pipeline, dtype, "cpu", resident=False), 2 * NUM_BATCHES))
    with create_loader(photos, pipeline=pipeline, batch_size=8, seed=5, dtype=dtype, workers=0) as loader:
        own = list(islice(loader, NUM_BATCHES))
    for number, (images, labels) in enumerate(again):
        assert torch.equal(images, own[number % NUM_BATCHES][0])
        assert torch.equal(labels, own[number % NUM_BATCHES][1])
        assert images.dtype == dtype
        assert images.is_contiguous(memory_format=torch.channels_last)


def test_an_epoch_of_fewer_batches_is_enough(photos: Path) -> None:
    assert len(host_batches(open_source(photos), imagenet_train(32), 40, 0)) == 1


def test_nothing_is_read_during_replay(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = imagenet_train(32)
    batches = host_batches(open_source(photos), pipeline, 8, 0)
    again = ReplayedBatches(lambda: batches, pipeline, torch.float32, "cpu", resident=False)
    monkeypatch.setattr(ImageFolder, "read", lambda *_: pytest.fail("a file was read"))
    assert len(list(islice(again, 20))) == 20


def test_batches_for_a_device_are_page_locked_like_slots(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each would be copied once more on the host, unlike a loader's batch."""
    pipeline, fed = imagenet_train(32), []
    monkeypatch.setattr(replay, "DeviceFeed", lambda source, *rest: fed.append(source()))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 1)
    batches = host_batches(open_source(photos), pipeline, 8, 5)
    ReplayedBatches(lambda: batches, pipeline, torch.float32, "meta", resident=False).prepare()
    [batch] = fed
    assert batch.pinned
    assert torch.equal(batch.images, batches[0].images + 1)
