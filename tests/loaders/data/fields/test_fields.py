"""Fields of samples: on all engines, ranks, parts and caches, after a resume; refusals."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from memory_source import MemorySource
from photo_fields import PhotoFields
from PIL import Image

from penstock.loaders import Boxes, LoaderError, Masks, PatchBudget, create_loader, with_fields, with_labels
from penstock.loaders.front.loader import Loader
from penstock.loaders.order.cursor import Cursor
from penstock.pipelines import imagenet_eval, imagenet_train
from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.fields.ragged import Ragged
from penstock.pipelines.spec import ImagePipeline

pytestmark = pytest.mark.filterwarnings("ignore:crop=")  # photos and sharp images are resized
NUM_PHOTOS = 31
ENGINES: dict[str, dict[str, Any]] = {
    "in the process": {"decoder": "simplejpeg"},
    "threads": {"workers": 2, "workers_are": "threads"},
    "processes": {"workers": 2, "workers_are": "processes", "decoder": "simplejpeg"},
    "hdf5": {"backend": "hdf5"},
    "dali": {"backend": "dali", "workers": 1},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PhotoFields:
    return PhotoFields(tmp_path_factory.mktemp("fields"), NUM_PHOTOS)


def open_loader(source: Any, tmp_path: Path, **settings: Any) -> Loader:
    if settings.get("backend") == "hdf5":
        settings["cache"] = tmp_path / "images.h5"
    defaults = {"pipeline": imagenet_train((24, 20)), "batch_size": 8, "dtype": torch.uint8, "seed": 3, "workers": 0}
    return create_loader(source, **{**defaults, **settings})


@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_serves_the_same_fields(data: PhotoFields, tmp_path: Path, engine: str) -> None:
    source, served = data.source(), []
    for rank in range(2):
        ranks = {"rank": rank, "world_size": 2, "drop_last": False}
        with open_loader(source, tmp_path, **ranks, **ENGINES[engine]) as loader:
            batches = loader.batches()
            first = next(batches)
            data.check(first)
            served += first.index.tolist()
            with open_loader(data.source(), tmp_path, **ranks) as resumed:
                resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
                for batch, again in zip(batches, resumed.batches(), strict=True):
                    data.check(batch)
                    data.check(again)
                    assert batch.index.tolist() == again.index.tolist()
                    served += batch.index.tolist()
    assert sorted(number for number in served if number >= 0) == list(range(NUM_PHOTOS))


def test_an_iteration_yields_dicts(data: PhotoFields, tmp_path: Path) -> None:
    names = ["images", "labels", "mask", "boxes", "boxes_classes", "keypoints", "name", "about", "depth", "sharp"]
    with open_loader(data.source(), tmp_path, with_index=True) as loader:
        batch = next(iter(loader))
        assert list(batch.keys()) == [*names, "index"]
        assert batch["name"] == [str(data.names[number]) for number in batch["index"].tolist()]
    with open_loader(with_labels(data.source(), {"a": np.arange(NUM_PHOTOS)}), tmp_path) as loader:
        batch = next(iter(loader))
        assert list(batch.keys()) == names
        assert [str(data.names[number]) for number in batch["labels"]["a"].tolist()] == batch["name"]


CROPS: dict[str, dict[str, Any]] = {
    "padding, turns": {"crop": "random", "size": (30, 30), "padding": 8, "rotate90": 0.75, "vertical_flip": 0.5},
    "scale jitter": {"crop": "scale_jitter", "size": (40, 28)},
    "letterbox": {"crop": "letterbox", "size": (28, 40), "vertical_flip": 0.5},
    "resized first": {"crop": "center", "size": (28, 28), "resize_first": True, "rotate90": 0.75},
    "resized first, cut and padded": {"crop": "letterbox", "resize_first": True, "center_fraction": 0.75},
    "grey, 16 bits": {"channels": 1, "depth": 16, "mean": (0.5,), "std": (0.5,)},
}


@pytest.mark.parametrize("engine", ["in the process", "threads", "dali"])
@pytest.mark.parametrize("crop", CROPS)
def test_fields_follow_every_crop(data: PhotoFields, tmp_path: Path, engine: str, crop: str) -> None:
    pipeline = ImagePipeline(**{"size": (24, 20), **CROPS[crop]})
    settings = {"pipeline": pipeline, "dtype": torch.float32, **ENGINES[engine]}
    with open_loader(data.source(), tmp_path, **settings) as loader:
        batches = list(loader.batches())
    for batch in batches:
        data.check(batch)
    assert len(batches) == NUM_PHOTOS // 8


def test_fields_have_the_size_of_their_bucket(data: PhotoFields, tmp_path: Path) -> None:
    sizes = [(24, 24), (18, 30), (30, 18)]
    with open_loader(data.source(), tmp_path, buckets=sizes, workers=2, drop_last=False) as loader:
        batches = list(loader.batches())
    assert {tuple(batch.images.shape[2:]) for batch in batches} == set(sizes)
    for batch in batches:
        data.check(batch)


@pytest.mark.parametrize("engine", ENGINES)
def test_fields_follow_images_that_are_cut_into_patches(data: PhotoFields, tmp_path: Path, engine: str) -> None:
    settings: dict[str, Any] = {"patches": PatchBudget(size=5, sequence_lengths=(12, 40)), "batch_size": 4, "pad": True}
    pipeline = ImagePipeline(vertical_flip=0.5)
    own = {**settings, **ENGINES[engine], "pipeline": pipeline, "drop_last": False}
    with open_loader(data.source(), tmp_path, **own) as loader:
        batches = list(loader.batches())
    assert {batch.images.shape[1] for batch in batches} == {12, 40}
    assert min(batch.index.min() for batch in batches) == -1
    for batch in batches:
        data.check_patches(batch, 5)
    assert sorted(number for batch in batches for number in batch.index.tolist() if number >= 0) == [*range(NUM_PHOTOS)]


@pytest.mark.parametrize("pad", [True, False])
def test_padded_boxes_equal_the_lists(data: PhotoFields, tmp_path: Path, pad: bool) -> None:
    for padded, lists in zip(
        open_loader(data.source(padded=True), tmp_path, drop_last=False, pad=pad),
        open_loader(data.source(), tmp_path, drop_last=False, pad=pad),
        strict=True,
    ):
        lengths = padded["boxes_lengths"].tolist()
        assert lengths == list(map(len, lists["boxes"]))
        assert padded["boxes"].shape == (len(lists["boxes"]), max(lengths), 4)
        for name, fill in (("boxes", 0), ("boxes_classes", -1)):
            for row, values in enumerate(lists[name]):
                assert torch.equal(padded[name][row, : lengths[row]], values)
                assert (padded[name][row, lengths[row] :] == fill).all()


def test_rows_without_a_sample_are_left_out_unless_padded(data: PhotoFields, tmp_path: Path) -> None:
    for pad, rows in ((True, 8), (False, 7)):
        for pipeline in (imagenet_eval(24), [imagenet_eval(24), imagenet_eval((12, 30))]):
            with open_loader(data.source(), tmp_path, pipeline=pipeline, pad=pad) as loader:
                last = list(loader.batches())[-1]
            data.check(last)
            views = [value if isinstance(value, tuple) else (value,) for value in last.fields.values()]
            assert {len(values) for each in views for values in each} == {rows}


@pytest.mark.parametrize(
    ("engine", "fault"),
    [
        *itertools.product(["in the process"], ["size", "missing", "cut", "box", "depth"]),
        *itertools.product(["threads", "hdf5", "dali"], ["missing", "cut"]),
    ],
)
def test_bad_fields_name_their_sample_and_are_replaced(
    data: PhotoFields, tmp_path: Path, engine: str, fault: str
) -> None:
    masks, bad, boxes = tmp_path / "masks", 5, list(data.boxes)
    shutil.copytree(data.root / "masks", masks)
    path = masks / data.names[bad].with_suffix(".png")
    source = {"mask": Masks(masks), "boxes": Boxes(boxes)}
    code, cause = "E-DATASET", "field"
    if fault == "size":
        Image.fromarray(np.zeros((7, 9), np.uint8)).save(path)
        cause = "field 'mask': the mask has 9x7 pixels, but its image has {}x{}".format(*data.sizes[bad])
    elif fault == "cut":
        path.write_bytes(path.read_bytes()[:100])
        code, cause = "E-CORRUPT", "the mask cannot be decoded"
    elif fault == "depth":
        Image.fromarray(np.full(data.sizes[bad][::-1], 256, np.uint16)).save(path)
        cause = "has values from 0 to 256"
    elif fault == "box":
        boxes[bad] = np.array([[0, 0, data.sizes[bad][0] + 2, 9]])
        cause = "field 'boxes': box [0.0, 0.0, "
    with_faults = with_fields(data.photos, **source)
    if fault == "missing":
        path.unlink()
        code, cause = "E-MISSING", "No such file"
        if engine == "hdf5":  # as for a missing image, no cache is built
            with pytest.raises(LoaderError, match=cause) as raised:
                open_loader(with_faults, tmp_path, **ENGINES[engine])
            assert (raised.value.code, raised.value.sample) == (code, bad)
            return
    with (
        open_loader(with_faults, tmp_path, pipeline=imagenet_eval(24), **ENGINES[engine]) as loader,
        pytest.raises(LoaderError, match=re.escape(cause)) as raised,
    ):
        list(loader)
    assert (raised.value.code, raised.value.sample, raised.value.exit_code) == (code, bad, 3)
    assert str(data.names[bad]) in str(raised.value)
    assert "\n" not in str(raised.value)
    options = {"on_bad_sample": "replace", "shuffle": False, "drop_last": False, **ENGINES[engine]}
    with open_loader(with_faults, tmp_path, **options) as loader:
        batch = next(loader.batches())
        assert batch.index.tolist() == [0, 1, 2, 3, 4, 6, 6, 7]
        assert [entry.sample for entry in loader.ledger().bad] == [bad]
        assert torch.equal(batch.fields["mask"][5], batch.fields["mask"][6])
        assert torch.equal(batch.images[5], batch.images[6])
    options |= {"pipeline": imagenet_eval(24), "pad": True}
    with open_loader(with_faults, tmp_path, **options) as loader:
        batch = next(loader.batches())
        assert batch.index.tolist() == [0, 1, 2, 3, 4, -1, 6, 7]
        assert not batch.images[5].any()
        assert (batch.fields["mask"][5] == 255).all()


MOVING: dict[str, list[ImagePipeline]] = {
    "one view": [imagenet_train((24, 20), auto_augment="rand", rand_ops=3, rand_magnitude=15)],
    "views": [
        imagenet_train((24, 20)),
        imagenet_train((24, 20), auto_augment="trivial", erasing=0.5),
        imagenet_train((18, 30), auto_augment="timm", rand_ops=4, blur=0.5),
        ImagePipeline(size=(20, 20), crop="random", padding=4, rotate90=0.75, flip=0.5),
    ],
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("views", MOVING)
def test_fields_follow_views_and_augmentations(data: PhotoFields, tmp_path: Path, engine: str, views: str) -> None:
    """Each view has its own window and its own moves: in each epoch, on all engines, after a resume."""
    pipelines = MOVING[views]
    settings: dict[str, Any] = {"pipeline": pipelines if len(pipelines) > 1 else pipelines[0], **ENGINES[engine]}
    with open_loader(data.source(), tmp_path, **settings) as loader:
        batches = [next(loader.batches())]
        state = json.loads(json.dumps(loader.state_dict()))
        loader.set_epoch(1)
        batches += loader.batches()
    with open_loader(data.source(), tmp_path, **settings) as loader:
        loader.load_state_dict(state)
        batches += loader.batches()
    for batch in batches:
        data.check(batch, pipelines=pipelines)
    assert [batch.epoch for batch in batches] == [0, 1, 1, 1, 0, 0]
    with pytest.raises(AssertionError):
        data.check(batches[0])  # without the moves of the batch stage


@pytest.mark.parametrize("engine", ["in the process", "threads"])
def test_samples_drawn_twice_move_independently(data: PhotoFields, tmp_path: Path, engine: str) -> None:
    settings = {"pipeline": MOVING["one view"], "weights": [9.0] * 3 + [0.1] * (NUM_PHOTOS - 3), **ENGINES[engine]}
    with open_loader(data.source(), tmp_path, **settings) as loader:
        batch = next(loader.batches())
        numbers = loader._schedule.draw_keys(Cursor(0, 0))
    assert len(set(batch.index.tolist())) < 6
    data.check(batch, pipelines=MOVING["one view"], numbers=numbers)


def test_a_transform_must_keep_the_image_size_if_augmentations_move_fields(data: PhotoFields, tmp_path: Path) -> None:
    def halve(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        return image[::2, ::2]

    def darken(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        return image // 2

    moving = {"pipeline": imagenet_train((24, 20), auto_augment="rand"), "transform_moves": False}
    with pytest.raises(ValueError, match=re.escape("transform must keep the size of images, because mask, boxes, key")):
        open_loader(data.source(), tmp_path, transform=halve, **moving)
    with open_loader(data.source(), tmp_path, transform=darken, **moving) as loader:
        data.check(next(loader.batches()), pipelines=[moving["pipeline"]])


@pytest.mark.parametrize("settings", [{"mixup": 0.2}, {"cutmix": 1.0}])
def test_augmentations_that_fields_cannot_follow_are_refused(
    data: PhotoFields, tmp_path: Path, settings: dict[str, Any]
) -> None:
    with pytest.raises(
        ValueError, match="mask, boxes, keypoints, depth, sharp cannot follow mixup and cutmix, which mix two images"
    ):
        open_loader(data.source(), tmp_path, pipeline=imagenet_train(24, **settings), dtype=torch.float32)
    texts = with_fields(data.photos, name=list(map(str, range(NUM_PHOTOS))))
    with open_loader(texts, tmp_path, pipeline=imagenet_train(24, **settings), dtype=torch.float32) as loader:
        assert next(iter(loader)).keys() == {"images", "labels", "name"}


def test_a_transform_keeps_its_fields(data: PhotoFields, tmp_path: Path) -> None:
    def negative(image: npt.NDArray[np.uint8], generator: Any) -> torch.Tensor:
        return torch.from_numpy(255 - image).permute(2, 0, 1)

    own_loader = open_loader(data.source(), tmp_path, transform=negative, transform_moves=False)
    with open_loader(data.source(), tmp_path) as plain, own_loader as own:
        for batch, changed in zip(plain.batches(), own.batches(), strict=True):
            data.check(batch)
            assert torch.equal(changed.images, 255 - batch.images)
            for name in ("mask", "keypoints"):
                assert torch.equal(changed.fields[name], batch.fields[name])


class OwnFields(MemorySource):
    """A user-defined source with a field of each kind."""

    short = False

    def __init__(self) -> None:
        super().__init__([np.full((20, 20, 3), number, np.uint8) for number in range(12)])
        self.field_kinds = {"boxes": FieldKind(kind="boxes"), "note": FieldKind(kind="text")}

    def fields(self, indices: npt.NDArray[np.int64]) -> dict[str, Any]:
        boxes = np.stack([np.array([0, 0, index + 1, 20], np.float32) for index in indices.tolist()])
        lengths = np.ones(len(indices) - self.short, np.int64)
        return {"boxes": Ragged(lengths, (boxes, indices)), "note": [f"note {index}" for index in indices.tolist()]}

    def mask(self, name: str, index: int) -> bytes:
        raise KeyError(name)


def test_fields_of_a_user_defined_source_are_served(tmp_path: Path) -> None:
    with open_loader(OwnFields(), tmp_path, pipeline=imagenet_eval(20, center_fraction=1.0)) as loader:
        for batch in loader.batches():
            assert [boxes.tolist() for boxes in batch.fields["boxes"]] == [[[0, 0, i + 1, 20]] for i in batch.index]
            assert batch.fields["note"] == [f"note {index}" for index in batch.index]
    unequal = OwnFields()
    unequal.short = True
    with (
        open_loader(unequal, tmp_path) as loader,
        pytest.raises(LoaderError, match=r"E-DATASET.*samples were asked for, got"),
    ):
        next(iter(loader))
