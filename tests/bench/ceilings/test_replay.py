"""Replayed batches are the loader's own, without the loader."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from photo_folder import write_folder

from penstock.bench.ceilings import replay
from penstock.bench.ceilings.decode import DecodeCeiling
from penstock.bench.ceilings.probes import list_ceiling_probes, prepare_replay
from penstock.bench.ceilings.replay import NUM_BATCHES, ReplayedBatches, host_batches
from penstock.bench.record.bench_record import DECODE, READ_COLD, READ_WARM, RESIZE, BenchSettings
from penstock.loaders import create_loader, open_source
from penstock.loaders.sources.image_folder import ImageFolder
from penstock.pipelines import imagenet_train


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), 48)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_they_are_the_batches_that_the_loader_hands_out(photos: Path, dtype: torch.dtype) -> None:
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


def test_nothing_is_read_while_they_are_replayed(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = BenchSettings(batch_size=8, size=32)
    again = prepare_replay(open_source(photos), imagenet_train(32), settings, {"decoder": "simplejpeg"})
    assert again is not None
    again.prepare()
    monkeypatch.setattr(ImageFolder, "read", lambda *_: pytest.fail("a file was read"))
    assert len(list(islice(again, 20))) == 20


def test_for_a_device_they_lie_in_page_locked_memory_as_slots_do(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each would be copied once more on the host, which a loader's batch is not."""
    pipeline, fed = imagenet_train(32), []
    monkeypatch.setattr(replay, "DeviceFeed", lambda source, *rest: fed.append(source()))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 1)
    batches = host_batches(open_source(photos), pipeline, 8, 5)
    ReplayedBatches(lambda: batches, pipeline, torch.float32, "meta", resident=False).prepare()
    [batch] = fed
    assert batch.pinned
    assert torch.equal(batch.images, batches[0].images + 1)


def test_uint8_on_a_cpu_is_handed_out_without_work(photos: Path) -> None:
    settings = BenchSettings(batch_size=8, size=32, dtype="uint8")
    assert prepare_replay(open_source(photos), imagenet_train(32), settings, {}) is None


def test_of_arrays_only_the_resize_is_a_ceiling() -> None:
    arrays = open_source((np.zeros((20, 50, 40, 3), np.uint8), np.arange(20)))
    pipeline, settings = imagenet_train(16), BenchSettings(batch_size=4, size=16, dtype="uint8", seconds=0.1)
    decoders = {"simplejpeg": DecodeCeiling(arrays, pipeline, "simplejpeg", 0)}
    probes = dict(list_ceiling_probes(arrays, pipeline, settings, decoders, "simplejpeg"))
    assert RESIZE in probes
    assert not {DECODE, READ_WARM, READ_COLD} & set(probes)
    assert probes[RESIZE]().median > 0  # type: ignore[union-attr]
