"""Geometry maps served pixels to the image: on all engines, for views, augmentations, patches and EXIF turns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photo_fields import SEED, PhotoFields
from placed_fields import matrix, move_point, moves_of, shown_box
from turned_photos import find_red, make_photo

from penstock.loaders import Geometry, Keypoints, PatchBudget, create_loader, open_source, with_fields
from penstock.pipelines import imagenet_eval, imagenet_train
from penstock.pipelines.plan.augmentations import BatchKey, plan_augmentations
from penstock.pipelines.plan.crops import BatchPlan
from penstock.pipelines.spec import ImagePipeline

pytestmark = pytest.mark.filterwarnings("ignore:crop=")  # photos and sharp images are resized
NUM_PHOTOS = 19
ENGINES: dict[str, dict[str, Any]] = {
    "in the process": {"decoder": "simplejpeg"},
    "threads": {"workers": 2, "workers_are": "threads"},
    "processes": {"workers": 1, "workers_are": "processes"},
    "hdf5": {"backend": "hdf5"},
    "dali": {"backend": "dali", "workers": 1},
}
PIPELINES: dict[str, list[ImagePipeline]] = {
    "a crop": [imagenet_train((24, 20))],
    "letterbox": [ImagePipeline(size=(28, 40), crop="letterbox", vertical_flip=0.5)],
    "turns": [ImagePipeline(size=(30, 30), crop="random", padding=8, rotate90=0.75, vertical_flip=0.5)],
    "resized first": [ImagePipeline(size=(30, 20), crop="center", resize_first=True, vertical_flip=0.5)],
    "moves": [imagenet_train((24, 20), auto_augment="rand", rand_ops=3, rand_magnitude=15)],
    "views": [imagenet_train((24, 20)), imagenet_train((18, 30), auto_augment="trivial"), imagenet_eval(16)],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PhotoFields:
    return PhotoFields(tmp_path_factory.mktemp("fields"), NUM_PHOTOS)


def options_of(engine: str, tmp_path: Path) -> dict[str, Any]:
    cache = {"cache": tmp_path / "images.h5"} if engine == "hdf5" else {}
    settings = {"batch_size": 8, "dtype": torch.uint8, "seed": SEED, "workers": 0, "with_geometry": True}
    return {**settings, **ENGINES[engine], **cache}


def check(data: PhotoFields, geometry: Geometry, batch: Any, view: int, pipeline: ImagePipeline) -> None:
    """Compare one view's geometry with the drawn windows, and its maps with exact arithmetic."""
    plan = BatchPlan(batch.windows, batch.flips, batch.places, batch.turns)
    plan = BatchPlan._make(part[:, view] for part in plan) if batch.flips.ndim > 1 else plan
    drawn = plan_augmentations(pipeline.augment, pipeline.size, BatchKey(SEED, batch.epoch, batch.index, view))
    for own, name in zip(plan, ("windows", "flips", "places", "turns"), strict=True):
        assert np.array_equal(getattr(geometry, name), own)
    for row, index in enumerate(batch.index.tolist()):
        if index < 0:
            assert not any(getattr(geometry, name)[row].any() for name in ("sizes", "orientations", "matrices"))
            with pytest.raises(ValueError, match=f"row {row} has no sample"):
                geometry.boxes_to_image(row, np.zeros((1, 4)))
            continue
        assert tuple(geometry.sizes[row].tolist()) == data.sizes[index]
        assert geometry.orientations[row] == 1
        (a, b, c), (d, e, f) = matrix(plan, row, pipeline.size)
        points = np.random.default_rng(row).uniform(0, 20, (5, 2))
        for x, y in points:
            at = float(a * x + b * y + c), float(d * x + e * y + f)
            for move in moves_of(drawn, row):
                at = move_point(move, *at, pipeline.size)
            found = geometry.matrices[row] @ (x, y, 1)
            assert np.allclose(found, at, rtol=0, atol=1e-6)
            assert np.allclose(geometry.points_to_image(row, np.array(at)), (x, y), rtol=0, atol=1e-6)


EACH = [(engine, name) for engine in ("threads", "dali") for name in PIPELINES]
EACH += [(engine, "views") for engine in ENGINES if engine not in ("threads", "dali")]


@pytest.mark.parametrize(("engine", "pipeline"), EACH)
def test_geometry_equals_the_drawn_windows(data: PhotoFields, tmp_path: Path, engine: str, pipeline: str) -> None:
    views = PIPELINES[pipeline]
    options = {**options_of(engine, tmp_path), "drop_last": False, "pad": True}
    with create_loader(data.source(), pipeline=views if len(views) > 1 else views[0], **options) as loader:
        for batch in loader.batches():
            found = batch.fields["geometry"]
            each = found if isinstance(found, tuple) else (found,)
            assert len(each) == len(views)
            for view, (geometry, own) in enumerate(zip(each, views, strict=True)):
                check(data, geometry, batch, view, own)


@pytest.mark.parametrize("engine", ["threads", "dali"])
@pytest.mark.parametrize("pipeline", ["a crop", "letterbox", "turns", "resized first", "moves"])
def test_served_boxes_and_points_are_mapped_back(data: PhotoFields, tmp_path: Path, engine: str, pipeline: str) -> None:
    """Boxes that the crop does not cut, and points inside the crop, equal the original ones."""
    source = with_fields(data.source(), points=Keypoints(data.points, swaps=()))
    back = cut = 0
    with create_loader(source, pipeline=PIPELINES[pipeline][0], **options_of(engine, tmp_path)) as loader:
        for batch in loader:
            geometry, size = batch["geometry"], tuple(batch.images.shape[2:])
            plan = BatchPlan(batch.windows, batch.flips, batch.places, batch.turns)
            for row, name in enumerate(batch["name"]):
                index = [str(each) for each in data.names].index(name)
                points = geometry.points_to_image(row, batch["points"][row])
                for point, given in zip(points.tolist(), data.points[index].tolist(), strict=True):
                    if point[2]:
                        assert np.allclose(point, given, atol=1e-3)
                        back += 1
                boxes = geometry.boxes_to_image(row, batch["boxes"][row])
                assert (boxes.dtype, boxes.shape) == (torch.float32, batch["boxes"][row].shape)
                left, top, right, bottom = map(float, shown_box(plan, row, size))
                for box, number in zip(boxes.tolist(), batch["boxes_classes"][row].tolist(), strict=True):
                    given = data.boxes[index][number]
                    shown = given.clip((left, top) * 2, (right, bottom) * 2)
                    cut += not np.array_equal(given, shown)
                    if pipeline == "moves":  # the bounding box of the moved corners, clipped to the image
                        continue
                    assert np.allclose(box, shown, atol=1e-3)
    assert back > 3
    assert cut or pipeline in ("letterbox", "moves")


def test_rows_without_a_sample_are_left_out_unless_padded(data: PhotoFields, tmp_path: Path) -> None:
    for pad, rows in ((True, 8), (False, 3)):
        for pipeline in (imagenet_eval(24), [imagenet_eval(24), imagenet_eval((12, 30))]):
            options = {**options_of("threads", tmp_path), "pipeline": pipeline, "pad": pad}
            *_, last = create_loader(data.source(), **options)
            each = last["geometry"] if isinstance(last["geometry"], tuple) else (last["geometry"],)
            for geometry in each:
                assert len(geometry) == len(geometry.matrices) == len(geometry.flips) == rows == len(last["name"])


def test_geometry_covers_images_cut_into_patches(data: PhotoFields, tmp_path: Path) -> None:
    budget = PatchBudget(size=5, sequence_lengths=(12, 40))
    options = {**options_of("threads", tmp_path), "patches": budget, "batch_size": 4}
    with create_loader(data.source(), pipeline=ImagePipeline(vertical_flip=0.5), **options) as loader:
        for batch in loader.batches():
            plan, geometry = (
                BatchPlan(batch.windows, batch.flips, batch.places, batch.turns),
                batch.fields["geometry"],
            )
            for row in np.flatnonzero(batch.index >= 0).tolist():
                width, height = batch.places[row, 2:].tolist()
                wanted = np.array(matrix(plan, row, (height, width)), float)
                assert np.allclose(geometry.matrices[row], wanted, rtol=0, atol=1e-9)


def test_data_without_fields_is_served_as_dicts(data: PhotoFields, tmp_path: Path) -> None:
    options = options_of("threads", tmp_path)
    with create_loader(data.photos, pipeline=imagenet_eval(24), **options) as loader:
        assert list(next(iter(loader)).keys()) == ["images", "labels", "geometry"]
    with create_loader(data.photos, pipeline=imagenet_eval(24), with_index=True, **options) as loader:
        batch = next(iter(loader))
    assert list(batch.keys()) == ["images", "labels", "geometry", "index"]
    assert batch["geometry"].sizes.tolist() == [list(data.sizes[index]) for index in batch["index"].tolist()]
    with create_loader(data.photos, pipeline=imagenet_eval(24), **{**options, "with_geometry": False}) as loader:
        assert isinstance(next(iter(loader)), tuple)


@pytest.mark.parametrize("engine", ["in the process", "threads", "hdf5", "dali"])
@pytest.mark.parametrize("exif", ["apply", "ignore"])
def test_boxes_are_mapped_back_to_upright_and_to_stored_pixels(tmp_path: Path, engine: str, exif: str) -> None:
    """A red rectangle in photos of every orientation: its place in the file and in the upright image."""
    folder = tmp_path / "photos"
    folder.mkdir()
    photos = [make_photo(np.random.default_rng(turn), "JPEG", turn) for turn in range(1, 9)]
    for photo in photos:
        (folder / f"{photo.orientation}.jpg").write_bytes(photo.data)
    pipeline = ImagePipeline(size=(300, 260), crop="letterbox", flip=1.0, vertical_flip=1.0, exif=exif)
    options = {**options_of(engine, tmp_path), "pipeline": pipeline, "shuffle": False}
    with create_loader(open_source(folder), **options) as loader:
        (batch,) = loader
    geometry = batch["geometry"]
    assert geometry.orientations.tolist() == ([1] * 8 if exif == "ignore" else [1, 2, 3, 4, 5, 6, 7, 8])
    for row, photo in enumerate(photos):
        found = find_red(batch["images"][row])
        assert found is not None
        image = photo.upright_box if exif == "apply" else photo.stored_box
        assert np.abs(geometry.boxes_to_image(row, [found])[0] - image).max() < 1.5
        assert np.abs(geometry.boxes_to_image(row, [found], stored=True)[0] - photo.stored_box).max() < 1.5
        corner = geometry.points_to_image(row, found[:2], stored=True)
        assert min(np.abs(corner[0] - photo.stored_box[at]) for at in (0, 2)) < 1.5
        assert min(np.abs(corner[1] - photo.stored_box[at]) for at in (1, 3)) < 1.5


def test_mapped_coordinates_keep_their_type(data: PhotoFields, tmp_path: Path) -> None:
    with create_loader(data.photos, pipeline=imagenet_eval(24), **options_of("threads", tmp_path)) as loader:
        geometry = next(iter(loader))["geometry"]
    box = [[1.0, 2.0, 9.0, 8.0]]
    wanted = geometry.boxes_to_image(0, np.array(box))
    assert wanted.dtype == np.float64
    assert geometry.boxes_to_image(0, box).dtype == np.float32
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        found = geometry.boxes_to_image(0, torch.tensor(box, dtype=dtype, requires_grad=True))
        assert (found.dtype, found.shape) == (dtype, (1, 4))
        assert np.allclose(found.double(), wanted, rtol=0.02)
    assert geometry.boxes_to_image(0, torch.tensor(box).long()).dtype == torch.float32
    assert geometry.boxes_to_image(0, torch.zeros(0, 4)).shape == (0, 4)
    assert geometry.boxes_to_image(0, torch.zeros(2, 3, 4)).shape == (2, 3, 4)
    far = geometry.boxes_to_image(0, [-999.0, -999.0, 999.0, 999.0])
    assert far.tolist() == [0, 0, *geometry.sizes[0].tolist()]
    assert geometry.boxes_to_image(0, [-999.0, -999.0, 999.0, 999.0], clip=False)[0] < -1000
    assert geometry.points_to_image(0, torch.zeros(5, 17, 3)).shape == (5, 17, 3)
    for wrong, text in (
        (
            lambda: geometry.boxes_to_image(0, np.zeros((3, 2))),
            "coordinates must be numbers [..., 4], got float64 [3, 2]",
        ),
        (lambda: geometry.points_to_image(0, np.zeros(4)), "coordinates must be numbers [..., 2] or [..., 3]"),
        (lambda: geometry.boxes_to_image(0, [["a"] * 4]), "coordinates must be numbers [..., 4]"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            wrong()


def test_transforms_that_geometry_cannot_follow_are_refused(data: PhotoFields, tmp_path: Path) -> None:
    def halve(image: Any) -> Any:
        return image[::2, ::2]

    options = options_of("threads", tmp_path)
    with pytest.raises(ValueError, match="geometry cannot follow mixup and cutmix, which mix two images"):
        create_loader(data.photos, pipeline=imagenet_train(24, mixup=0.2), **{**options, "dtype": torch.float32})
    with pytest.raises(ValueError, match="geometry"):
        create_loader(data.photos, pipeline=imagenet_train(24, auto_augment="rand"), transform=halve, **options)
    named = with_fields(data.photos, geometry=["a"] * NUM_PHOTOS)
    with pytest.raises(ValueError, match="the data has a field of that name"):
        create_loader(named, pipeline=imagenet_eval(24), **options)
    with create_loader(named, pipeline=imagenet_eval(24), **{**options, "with_geometry": False}) as loader:
        assert next(iter(loader))["geometry"] == ["a"] * 8
    with pytest.raises(ValueError, match="with_geometry must be True or False"):
        create_loader(data.photos, **{**options, "with_geometry": 1})
