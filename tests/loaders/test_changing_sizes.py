"""Sizes by epoch and by update, buckets and patches: one stream on all backends and ranks, resumed at every batch."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from photo_folder import photo, write_folder
from PIL import Image
from served_steps import as_step, join, serve_steps

from penstock.loaders import ByUpdate, LoaderError, PatchBudget, create_loader
from penstock.loaders.front.loader import Loader
from penstock.pipelines import imagenet_eval, imagenet_train

NUM_PHOTOS = 48
BUCKETS = [(32, 32), (24, 40), (40, 24)]
BY_EPOCH: dict[str, Any] = {"sizes": {0: 24, 1: (40, 32), 2: 32}, "batch_size": {0: 12, 2: 6}}
# Changes in the middle of the first and second epochs, and at the beginning of the third.
BY_UPDATE: dict[str, Any] = {
    "sizes": ByUpdate({0: 24, 2: (40, 32), 9: 32}),
    "batch_size": ByUpdate({0: 12, 3: 6, 13: 24}),
}
CHANGES: dict[str, dict[str, Any]] = {
    "buckets": {"buckets": BUCKETS, "batch_size": 12},
    "by epoch": BY_EPOCH,
    "by update": BY_UPDATE,
    "patches": {"patches": PatchBudget(size=8, sequence_lengths=(6, 12, 24), tokens=144)},
}


def open_loader(source: Any, **settings: Any) -> Loader:
    defaults = {"pipeline": imagenet_train(64), "dtype": torch.uint8, "seed": 7, "workers": 0, "drop_last": False}
    return create_loader(source, **{**defaults, **settings})


@pytest.fixture(scope="module", params=CHANGES)
def changes(request: pytest.FixtureRequest) -> dict[str, Any]:
    return CHANGES[request.param]


@pytest.fixture(scope="module", params=["buckets", "by epoch", "by update"])
def image_changes(request: pytest.FixtureRequest) -> dict[str, Any]:
    return CHANGES[request.param]


def on_ranks(changes: dict[str, Any], world: int) -> dict[str, Any]:
    """The same global batches on several ranks."""
    if "patches" in changes:
        return {"patches": replace(changes["patches"], tokens=changes["patches"].tokens // world)}
    sizes = changes["batch_size"]
    if isinstance(sizes, int):
        return {**changes, "batch_size": sizes // world}
    is_by_update = isinstance(sizes, ByUpdate)
    own = {first: size // world for first, size in (sizes.values if is_by_update else sizes).items()}
    return {**changes, "batch_size": ByUpdate(own) if is_by_update else own}


def test_an_image_equals_that_of_a_loader_with_only_its_size(photos: Path, image_changes: dict[str, Any]) -> None:
    """Crops, pixels and normalisation are equal; only the images that share a batch differ."""
    found: dict[tuple[int, tuple[int, int]], dict[int, Any]] = {}
    settings: dict[str, Any] = {"dtype": torch.float32}
    with open_loader(photos, **image_changes, **settings) as loader:
        while loader.epoch < 3:
            for batch in loader.batches():
                size = (batch.images.shape[2], batch.images.shape[3])
                rows = zip(batch.index.tolist(), batch.images, strict=True)
                found.setdefault((batch.epoch, size), {}).update({i: image.numpy().tobytes() for i, image in rows})
    for (epoch, size), images in found.items():
        with open_loader(photos, pipeline=imagenet_train(size), batch_size=16, **settings) as loader:
            loader.set_epoch(epoch)
            for batch in loader.batches():
                for index, image in zip(batch.index.tolist(), batch.images, strict=True):
                    assert images.pop(index, None) in (None, image.numpy().tobytes())
        assert not images


def test_augmentations_and_mixing_work_in_every_size(photos: Path, image_changes: dict[str, Any]) -> None:
    pipeline = imagenet_train(64, auto_augment="rand", erasing=0.5, cutmix=1.0)
    with open_loader(photos, **image_changes, pipeline=pipeline, dtype=torch.float32, pad=True) as loader:
        shapes = [tuple(images.shape[2:]) for images, labels in loader if labels.shape[1] == 3]
        assert shapes
        by_epoch = {(24, 24)} if image_changes is BY_EPOCH else {(24, 24), (40, 32)}
        assert set(shapes) == (set(BUCKETS) if "buckets" in image_changes else by_epoch)


@pytest.mark.parametrize("world", [1, 3])
def test_a_state_resumes_at_every_batch_on_any_number_of_ranks(
    photos: Path, changes: dict[str, Any], world: int
) -> None:
    """States of a run on one rank, loaded on several with equal global batch: the same steps, sizes and pixels."""
    with open_loader(photos, **changes, pad=True, rank=0, world_size=1) as loader:
        states, whole = [loader.state_dict()], []
        while loader.epoch < 3:
            for batch in loader.batches():
                whole.append(as_step(batch))
                states.append(loader.state_dict())
    split = on_ranks(changes, world)
    ranks = [open_loader(photos, **split, pad=True, rank=rank, world_size=world) for rank in range(world)]
    for done, state in enumerate(states[:-1]):
        for loader in ranks:
            loader.load_state_dict(state)
        following = [next(loader.batches()) for loader in ranks]
        assert len({batch.images.shape for batch in following}) == 1
        assert join([[as_step(batch)] for batch in following]) == [whole[done]]
        if done % 5 == 0:  # to the end, through later epochs
            ranks[0].load_state_dict(state)
            assert [step[:2] for step in serve_steps(ranks[0], 3)] == [step[:2] for step in whole[done:]]
    for loader in ranks:
        loader.close()


def test_states_contain_sizes_and_buckets_and_refuse_others(photos: Path) -> None:
    with open_loader(photos, **BY_EPOCH) as loader:
        next(iter(loader))
        state = loader.state_dict()
        assert (loader.batch_size, len(loader)) == (12, 4)
        loader.set_epoch(2)
        assert (loader.batch_size, len(loader)) == (6, 8)
    others = r"the state has size=\[\[0, \[24, 24\]\], \[1, \[40, 32\]\]"
    with (
        open_loader(photos, **{**BY_EPOCH, "sizes": {0: 24, 1: 32}}) as loader,
        pytest.raises(LoaderError, match=others),
    ):
        loader.load_state_dict(state)
    with open_loader(photos, **BY_EPOCH, pipeline=imagenet_train(99)) as loader:
        loader.load_state_dict(state)  # the pipeline's own size is not used
    with open_loader(photos, **CHANGES["buckets"]) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with open_loader(photos, buckets=BUCKETS, batch_size=8) as loader:
        with pytest.raises(LoaderError, match=r"E-STATE.*continue with the same global batch: saved 12, now 8"):
            loader.load_state_dict(state)
        loader.load_state_dict({**state, "position": 0})
        assert sorted(index for batch in loader.batches() for index in batch.index.tolist()) == list(range(NUM_PHOTOS))
    others = "E-STATE.*saved with other buckets"
    with open_loader(photos, buckets=BUCKETS[:2], batch_size=12) as loader, pytest.raises(LoaderError, match=others):
        loader.load_state_dict(state)


def test_a_run_by_update_continues_only_with_its_global_batches(photos: Path) -> None:
    with open_loader(photos, **BY_UPDATE) as loader:
        assert [(loader.batch_size, len(loader)), next(iter(loader))[0].shape[2]] == [(12, 5), 24]
        state = loader.state_dict()
        serve_steps(loader, 1)
        assert (loader.batch_size, len(loader)) == (6, 8)
    others = {**BY_UPDATE, "batch_size": ByUpdate({0: 12, 3: 6, 13: 8})}
    words = r"E-STATE.*an epoch must continue with the same global batch: saved \[\[0, 12\].*\[13, 8\]\]"
    with open_loader(photos, **others) as loader, pytest.raises(LoaderError, match=words):
        loader.load_state_dict(state)
    by_epoch = {"sizes": {0: 24, 2: (40, 32), 9: 32}}
    with (
        open_loader(photos, **by_epoch) as loader,
        pytest.raises(LoaderError, match=r"the state has size=.'by_update'"),
    ):
        loader.load_state_dict(state)


def test_programs_written_for_torch_get_the_positions_of_all_batches(
    photos: Path, image_changes: dict[str, Any]
) -> None:
    with open_loader(photos, **image_changes) as loader, open_loader(photos, **image_changes) as other:
        loader.set_epoch(2)
        other.set_epoch(2)
        places = list(loader.batch_sampler)
        assert len(places) == len(loader.batch_sampler) == len(loader)
        served = [zlib.crc32(loader.dataset.__getitems__(place)[0].contiguous().numpy()) for place in places]
        assert served == [zlib.crc32(batch.images.contiguous().numpy()) for batch in other.batches()]


def test_an_image_whose_size_cannot_be_read_is_raised_or_replaced(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "photos", 20)
    (root / "class1" / "0004.jpg").write_bytes(photo(4)[:30])
    with pytest.raises(LoaderError, match=r"E-TRUNC.*sample=8.*class1/0004.jpg.*the file ends inside the JPEG header"):
        open_loader(root, buckets=BUCKETS, batch_size=4)
    with open_loader(root, buckets=BUCKETS, batch_size=4, on_bad_sample="replace") as loader:
        shapes = {index: batch.images.shape[2:] for batch in loader.batches() for index in batch.index.tolist()}
        (bad,) = loader.ledger().bad
    assert (bad.code, bad.sample) == ("E-TRUNC", 8)
    assert bad.substitute in shapes


def test_an_evaluation_in_buckets_serves_each_image_once_in_its_bucket(tmp_path: Path) -> None:
    for number in range(9):
        picture = Image.new("RGB", ((60, 100), (100, 60), (80, 80))[number % 3])
        picture.save(tmp_path / f"{number}.png")
    with create_loader(
        tmp_path, pipeline=imagenet_eval(64), buckets=BUCKETS, batch_size=2, workers=0, dtype=torch.uint8
    ) as loader:
        served = [(batch.images.shape[2:], batch.index.tolist()) for batch in loader.batches()]
    square, wide, tall = (torch.Size(size) for size in BUCKETS)
    expected = [(square, [2, 5]), (square, [8]), (wide, [1, 4]), (wide, [7]), (tall, [0, 3]), (tall, [6])]
    assert served == expected


def test_slots_have_room_for_the_largest_batch(photos: Path) -> None:
    """The batch with the most bytes is not the one with the most samples."""
    with open_loader(photos, sizes={0: 16, 1: 96}, batch_size={0: 24, 1: 4}, workers=2, prefetch=1) as loader:
        steps = serve_steps(loader)
    for epoch, number, side in ((0, 24, 16), (1, 4, 96)):
        parts = [step.rows for step in steps if step.epoch == epoch]
        assert {len(rows) for rows in parts} == {number}
        assert {row.pixels[0].values.shape for rows in parts for row in rows} == {(3, side, side)}
        assert sorted(row.index for rows in parts for row in rows) == list(range(NUM_PHOTOS))


@pytest.mark.parametrize("batch_size", [{0: 6, 1: 12}, ByUpdate({0: 6, 3: 12})], ids=["by epoch", "by update"])
@pytest.mark.parametrize("workers_are", ["threads", "processes"])
@pytest.mark.parametrize("sides", [(32, 24), (24, 32, 16)])
def test_views_keep_their_sizes_when_the_batch_size_changes(
    photos: Path, batch_size: Any, workers_are: str, sides: tuple[int, ...]
) -> None:
    settings = {"pipeline": [imagenet_train(side) for side in sides], "workers_are": workers_are}
    usual: dict[tuple[int, int], Any] = {}
    served: dict[tuple[int, int], Any] = {}
    for size, workers, into in ((4, 0, usual), (batch_size, 2, served)):
        with open_loader(photos, batch_size=size, workers=workers, **settings) as loader:
            while loader.epoch < 2:
                for batch in loader.batches():
                    views = [view.permute(0, 2, 3, 1).numpy() for view in batch.images]
                    assert [view.shape[1:3] for view in views] == [(side, side) for side in sides]
                    for row, sample in enumerate(batch.index.tolist()):
                        about = batch.windows[row].tolist(), batch.flips[row].tolist()
                        into[batch.epoch, sample] = about, [zlib.crc32(view[row].copy()) for view in views]
    assert served == usual
    assert len(usual) == 2 * NUM_PHOTOS
