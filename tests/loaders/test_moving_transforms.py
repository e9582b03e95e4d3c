"""Transforms with masks, boxes and keypoints: passed to the transform, declared unmoved by the user, or refused."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import stand_in_albumentations
import torch
from PIL import Image

from penstock.loaders import Boxes, Coco, ImageTargets, Keypoints, LoaderError, Masks, create_loader, with_fields
from penstock.loaders.front.loader import Loader
from penstock.pipelines import imagenet_train
from penstock.pipelines.spec import ImagePipeline

HEIGHT, WIDTH, COUNT = 24, 36, 24
WHOLE = ImagePipeline(size=(HEIGHT, WIDTH), crop="full", flip=0.0)
FORMATS = ("pascal_voc", "coco", "yolo", "albumentations", "cxcywh")


class Data(NamedTuple):
    """Images with pixels that encode their origin (x, y, number of the image), and their fields."""

    images: npt.NDArray[np.uint8]
    folder: Path
    masks: npt.NDArray[np.uint8]
    boxes: list[Any]
    classes: list[Any]
    points: npt.NDArray[np.float32]  # [COUNT, 4, 3], one set per image
    of_boxes: list[Any]  # [boxes, 2, 3] per image

    @property
    def source(self) -> Any:
        return [(str(self.folder / f"{number:02}.png"), number % 3) for number in range(COUNT)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    draw, folder = np.random.default_rng(3), tmp_path_factory.mktemp("images")
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.uint8)
    images = np.stack([np.stack((x, y, np.full_like(x, number)), -1) for number in range(COUNT)])
    boxes, classes, of_boxes, notes = [], [], [], []
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number:02}.png")
        corners = np.sort(draw.integers(0, (WIDTH, HEIGHT), (number % 4, 2, 2)), 1)
        corners[:, 1] += 1
        boxes.append(corners.reshape(-1, 4).astype(np.float32))
        classes.append(draw.integers(0, 5, number % 4).tolist())
        of_boxes.append(draw_points(draw, (number % 4, 2)))
        for (x1, y1, x2, y2), kind, points in zip(boxes[-1].tolist(), classes[-1], of_boxes[-1], strict=True):
            inner = np.where(points[:, 2:] > 0, points - (0.5, 0.5, 0), 0).reshape(-1).tolist()
            about = {"image_id": number, "category_id": kind, "bbox": [x1, y1, x2 - x1, y2 - y1], "iscrowd": 0}
            notes.append({"id": len(notes), "area": 1.0, "keypoints": inner, "num_keypoints": 2, **about})
    names = [{"id": n, "file_name": f"{n:02}.png", "width": WIDTH, "height": HEIGHT} for n in range(COUNT)]
    kinds = [{"id": n, "name": str(n), "keypoints": ["a", "b"], "skeleton": []} for n in range(5)]
    document = {"images": names, "annotations": notes, "categories": kinds}
    (folder / "notes.json").write_text(json.dumps(document), "utf-8")
    masks = np.stack([mask_of(x, y, number) for number in range(COUNT)])
    return Data(images, folder, masks, boxes, classes, draw_points(draw, (COUNT, 4)), of_boxes)


def mask_of(x: Any, y: Any, number: int) -> Any:
    return ((x.astype(int) * 3 + y.astype(int) * 5 + number) % 200 + 8).astype(np.uint8)


def draw_points(draw: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return points in the centre of random pixels; some are not labelled."""
    places = draw.integers(0, (WIDTH, HEIGHT), (*shape, 2)) + 0.5
    seen = draw.integers(0, 3, (*shape, 1))
    return np.where(seen > 0, np.concatenate((places, seen), -1), 0).astype(np.float32)


@pytest.fixture
def albumentations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in under the name of the package, which worker processes can import too."""
    package = tmp_path / "packages" / "albumentations"
    package.mkdir(parents=True)
    package.joinpath("__init__.py").write_text(Path(stand_in_albumentations.__file__).read_text("utf-8"), "utf-8")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.delitem(sys.modules, "albumentations", raising=False)
    import albumentations  # type: ignore[import-not-found]

    yield albumentations
    monkeypatch.delitem(sys.modules, "albumentations")


def open_loader(source: Any, **settings: Any) -> Loader:
    usual: dict[str, Any] = {"pipeline": WHOLE, "batch_size": 8, "dtype": torch.uint8, "seed": 2, "workers": 0}
    return create_loader(source, **usual | settings)


def check_batch(data: Data, batch: dict[str, Any], *, view: int | None = None, padded: bool = False) -> int:
    """Compare the fields of a batch with the origin of its pixels; return the number of remaining boxes."""

    def of(name: str) -> Any:
        return batch[name] if view is None else batch[name][view]

    num_boxes = 0
    for row, image in enumerate(np.moveaxis(of("images").numpy(), 1, -1)):
        x, y, number = image[..., 0].astype(int), image[..., 1].astype(int), int(image.max((0, 1))[2])
        if number == 0:
            continue  # its pixels cannot be told from those that a shift leaves behind
        shown = image[..., 2] == number
        if "mask" in batch:
            wanted = np.where(shown, mask_of(image[..., 0], image[..., 1], number), 7)
            assert np.array_equal(of("mask")[row].numpy(), wanted)
        if "points" in batch:
            check_points(of("points")[row].numpy(), data.points[number], x, y, shown)
        if "boxes" not in batch:
            continue
        boxes, classes = of("boxes")[row].numpy(), of("boxes_classes")[row].numpy()
        points = of("keypoints")[row].numpy() if "keypoints" in batch else None
        left = 0
        for corners, kind, inner in zip(data.boxes[number], data.classes[number], data.of_boxes[number], strict=True):
            inside = shown & (x >= corners[0]) & (x < corners[2]) & (y >= corners[1]) & (y < corners[3])
            if not inside.any():
                continue
            rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
            wanted = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
            assert np.allclose(boxes[left], wanted, atol=1e-3)
            assert classes[left] == kind
            if points is not None:
                check_points(points[left], inner, x, y, shown)
            left += 1
        assert (batch["boxes_lengths"][row] if padded else len(boxes)) == left
        num_boxes += left
    return num_boxes


def check_points(found: Any, given: Any, x: Any, y: Any, shown: Any) -> None:
    for point, (px, py, seen) in zip(found, given, strict=True):
        place = np.argwhere(shown & (x == int(px)) & (y == int(py)))
        wanted = [place[0][1] + 0.5, place[0][0] + 0.5, seen] if seen and len(place) else [0, 0, 0]
        assert np.allclose(point, wanted, atol=1e-3)


def fields_of(data: Data, which: str, *, padded: bool = False) -> Any:
    """Return the data with fields of some kinds: m mask, b boxes, p points, k boxes with their own keypoints."""
    given: dict[str, Any] = {}
    if "m" in which:
        given["mask"] = Masks(data.masks)
    if "b" in which:
        given["boxes"] = Boxes(data.boxes, data.classes, min_area=0, padded=padded)
    if "p" in which:
        given["points"] = Keypoints(data.points, ())
    if "k" in which:
        given["coco"] = Coco(data.folder / "notes.json", min_area=0, padded=padded, swaps=())
    return with_fields(data.source, **given)


def test_a_compose_moves_random_fields_like_its_pixels(data: Data, albumentations: Any) -> None:
    """24 images in 60 random settings: kinds of fields, formats, with or without labels and padding."""
    draw = np.random.default_rng(11)
    served = 0
    for number in range(60):
        which = ("mpk", "m", "b", "p", "k", "mb", "mp", "bp")[number % 8]
        steps = [albumentations.HorizontalFlip(), albumentations.Shift(int(draw.integers(0, 20)))]
        form, point_form = FORMATS[number % 5], ("xy", "yx", "xya", "xyas")[number // 4 % 4]
        labels = [None, ["classes"], ["kind", "again"]][number % 3]
        compose = albumentations.Compose(
            steps[:: (1, -1)[number % 2]],
            bbox_params=albumentations.Params(form, labels) if {"b", "k"} & set(which) else None,
            keypoint_params={"format": point_form, "label_fields": [None, ["names"]][number % 5 == 1]},
        )
        padded = number % 7 == 3
        source = fields_of(data, which, padded=padded)
        with open_loader(source, transform=compose, seed=number, shuffle=bool(number % 2)) as loader:
            for batch in loader:
                served += check_batch(data, batch, padded=padded)
    assert served > 500


@pytest.mark.parametrize(
    "workers",
    [{"workers": 3, "workers_are": "threads"}, {"workers": 2, "workers_are": "processes"}],
    ids=["threads", "processes"],
)
def test_workers_serve_the_same_fields(data: Data, albumentations: Any, workers: dict[str, Any]) -> None:
    compose = albumentations.Compose(
        [albumentations.HorizontalFlip(), albumentations.Shift(9)],
        bbox_params=albumentations.Params("coco", ["classes"]),
        keypoint_params=albumentations.Params("xy"),
    )
    served = []
    for kind in ({"workers": 0}, workers):
        options = {"shuffle": True, "batch_size": 32, "pad": True, "drop_last": False}
        with open_loader(fields_of(data, "mpk"), transform=compose, **options, **kind) as loader:
            served.append(list(loader))
    for one, two in zip(*served, strict=True):
        check_batch(data, one)
        for name, value in one.items():
            pairs = zip(value, two[name], strict=True)
            assert all(torch.equal(first, second) for first, second in pairs), name
        assert [len(boxes) for boxes in one["boxes"]][COUNT:] == [0] * 8
        assert not one["points"][COUNT:].any()


def test_each_view_is_moved_separately(data: Data, albumentations: Any) -> None:
    compose = albumentations.Compose(
        [albumentations.HorizontalFlip(), albumentations.Shift(9)],
        bbox_params=albumentations.Params("yolo"),
        keypoint_params=albumentations.Params("yx"),
    )
    for transform in (compose, [None, compose], [compose, None]):
        with open_loader(fields_of(data, "mpk"), pipeline=[WHOLE, WHOLE], transform=transform) as loader:
            for batch in loader:
                for view in range(2):
                    check_batch(data, batch, view=view)


def test_image_targets_are_moved_by_name(data: Data, albumentations: Any) -> None:
    """Declared as image, a target changes with the image's colours; as mask, it only moves."""
    depth = data.images[..., 0].astype(np.float32) / 3
    source = with_fields(data.source, twin=ImageTargets(data.images), depth=ImageTargets(depth), mask=Masks(data.masks))
    steps = [albumentations.HorizontalFlip(p=0.5), albumentations.Invert()]
    compose = albumentations.Compose(steps, additional_targets={"twin": "image", "depth": "mask"})
    with open_loader(source, transform=compose) as loader:
        for batch in loader:
            assert torch.equal(batch["twin"], batch["images"])
            assert torch.equal(batch["depth"][:, 0], (255 - batch["images"][:, 0]).float() / 3)
    for name, settings, message in (
        ("depth", {}, r"transform needs additional_targets to move depth: pass A.Compose\(.*{'depth': 'image'}"),
        ("large", {"scale": 2}, "transform cannot move large, which has 2 times the sides of its image"),
    ):
        wrong = with_fields(data.source, **{name: ImageTargets(depth, **settings)})
        declared = {name: "image"} if settings else None
        with pytest.raises(ValueError, match=message):
            open_loader(wrong, transform=albumentations.Compose(steps, additional_targets=declared))


@pytest.mark.parametrize("workers", [{}, {"workers": 2, "workers_are": "threads"}, {"workers": 1}])
@pytest.mark.parametrize("form", FORMATS)
def test_fields_follow_a_crop_of_whole_images(
    data: Data, albumentations: Any, form: str, workers: dict[str, Any]
) -> None:
    compose = albumentations.Compose(
        [albumentations.RandomCrop(17, 21)],
        bbox_params=albumentations.Params(form),
        keypoint_params=albumentations.Params("xy"),
    )
    pipeline, num_boxes = ImagePipeline(crop="none", flip=0.0), 0
    with open_loader(fields_of(data, "mpk"), pipeline=pipeline, transform=compose, shuffle=True, **workers) as loader:
        for batch in loader:
            assert batch["images"].shape[2:] == batch["mask"].shape[1:] == (17, 21)
            num_boxes += check_batch(data, batch)
    assert num_boxes > 15


def test_fields_do_not_follow_other_functions_of_whole_images(data: Data, albumentations: Any) -> None:
    compose = albumentations.Compose([albumentations.RandomCrop(17, 21)])
    pipeline = ImagePipeline(crop="none", flip=0.0)
    for options, message in (
        (
            {"transform": lambda image: image[:8, :8], "transform_moves": False},
            "mask cannot follow the transform of whole",
        ),
        ({"transform": compose, "with_geometry": True}, "geometry would not follow"),
    ):
        with pytest.raises(ValueError, match=message):
            open_loader(fields_of(data, "m"), pipeline=pipeline, shuffle=True, **options)


def test_two_masks_and_two_fields_of_boxes_are_moved(data: Data, albumentations: Any) -> None:
    source = with_fields(
        data.source,
        mask=Masks(data.masks),
        again=Masks(data.masks),
        boxes=Boxes(data.boxes, data.classes, min_area=0),
        others=Boxes(data.boxes[::-1], data.classes[::-1], min_area=0, first_class=1),
    )
    compose = albumentations.Compose([albumentations.HorizontalFlip(p=1)], bbox_params={"format": "coco"})
    with open_loader(source, transform=compose) as loader:
        for batch in loader:
            check_batch(data, batch)
            assert torch.equal(batch["mask"], batch["again"])
            for row, number in enumerate(batch["images"][:, 2].amax((1, 2)).tolist()):
                wanted = data.boxes[COUNT - 1 - number]
                mirrored = np.stack((WIDTH - wanted[:, 2], wanted[:, 1], WIDTH - wanted[:, 0], wanted[:, 3]), 1)
                assert np.allclose(batch["others"][row].numpy(), mirrored, atol=1e-3)
                assert batch["others_classes"][row].tolist() == [k + 1 for k in data.classes[COUNT - 1 - number]]


def flip(image: Any, generator: Any) -> Any:
    return np.ascontiguousarray(image[:, ::-1])


def darken(image: Any) -> Any:
    return image // 2


def cut(image: Any) -> Any:
    return image[2:]


def flip_batch(images: Any, labels: Any) -> Any:
    return images.flip(-1), labels


class V2:
    """Resembles torchvision's transforms."""

    def __call__(self, image: Any) -> Any:
        return image


V2.__module__ = "torchvision.transforms.v2._geometry"


@pytest.mark.parametrize("which", ["m", "b", "p", "mpk"])
def test_functions_with_fields_require_transform_moves(data: Data, which: str) -> None:
    source = fields_of(data, which)
    for options in ({"transform": flip}, {"transform": darken}, {"transform": V2()}, {"batch_transform": flip_batch}):
        (argument,) = options
        with pytest.raises(ValueError, match=rf"^{argument} may move pixels, but .* transform_moves=False if it does"):
            open_loader(source, **options)
    with pytest.raises(ValueError, match="use the pipeline's crops and flips instead of torchvision's"):
        open_loader(source, transform=V2())
    with pytest.raises(ValueError, match=r"but (mask, points, boxes, keypoints|mask|boxes|points) would"):
        open_loader(source, pipeline=[WHOLE, WHOLE], transform=[None, darken])
    with open_loader(source, transform=darken, batch_transform=flip_batch, transform_moves=False) as loader:
        assert len(list(loader)) == COUNT // 8
    for function in (cut, lambda image: image.mean((0, 1)), lambda image: image[:, :, 0].T):
        with pytest.raises(ValueError, match=r"transform must keep the size of images, because .* would not follow"):
            open_loader(source, transform=function, transform_moves=False)
    for function in (lambda i, t: (i[..., 1:], t), lambda i, t: (i.flatten(1), t), lambda i, t: (i.mT, t)):
        loader = open_loader(source, batch_transform=function, transform_moves=False)
        with pytest.raises(LoaderError, match=r"E-DATASET.*batch_transform must keep the size of images"), loader:
            next(iter(loader))


def test_a_transform_that_may_move_pixels_is_refused_with_geometry(data: Data, albumentations: Any) -> None:
    arrays = (data.images, np.arange(COUNT))
    compose = albumentations.Compose([albumentations.HorizontalFlip()])
    for options in ({"transform": flip}, {"batch_transform": flip_batch}, {"transform": compose}):
        with pytest.raises(ValueError, match="geometry would not follow"):
            open_loader(arrays, with_geometry=True, **options)
    with open_loader(arrays, with_geometry=True, transform=darken, transform_moves=False) as loader:
        assert "geometry" in next(iter(loader))


def test_texts_and_labels_do_not_require_transform_moves(data: Data) -> None:
    source = with_fields((data.images, np.arange(COUNT)), note=["a"] * COUNT)
    with open_loader(source, transform=cut, batch_transform=flip_batch) as loader:
        assert next(iter(loader))["images"].shape[2:] == (HEIGHT - 2, WIDTH)


def test_transform_moves_is_refused_where_it_has_no_effect(data: Data, albumentations: Any) -> None:
    flips = albumentations.Compose([albumentations.HorizontalFlip()], bbox_params={"format": "coco"})
    source = fields_of(data, "mb")
    for options, message in (
        ({"source": source}, "transform_moves has no effect without transform or batch_transform"),
        (
            {"source": (data.images, np.arange(COUNT)), "transform": darken},
            "no effect without masks, image targets, boxes",
        ),
        ({"source": source, "transform": darken, "transform_moves": 0}, "transform_moves must be True or False, got 0"),
        ({"source": source, "transform": flips}, "transform receives mask, boxes and moves them: do not pass"),
    ):
        with pytest.raises(ValueError, match=message):
            open_loader(**{"transform_moves": False} | options)
    with pytest.raises(ValueError, match="has no option transform_move"):
        open_loader(source, transform_move=False)
    with open_loader(source, transform=flips, batch_transform=lambda i, t: (i, t), transform_moves=False) as loader:
        for batch in loader:
            check_batch(data, batch)


def test_albumentations_that_change_only_colour_get_the_image(data: Data, albumentations: Any) -> None:
    colour = albumentations.Compose([albumentations.Invert()])
    source = fields_of(data, "mb")
    with pytest.raises(ValueError, match=r"transform needs bbox_params to move boxes: pass A.Compose\(.*_moves=F"):
        open_loader(source, transform=colour)
    with open_loader(source, transform=colour, transform_moves=False, shuffle=False) as loader:
        batch = next(iter(loader))
    assert torch.equal(batch["images"], 255 - torch.from_numpy(data.images[:8]).permute(0, 3, 1, 2))
    assert np.array_equal(batch["boxes"][3].numpy(), data.boxes[3])


def test_a_compose_that_cannot_move_the_fields_is_refused(data: Data, albumentations: Any) -> None:
    A = albumentations
    flips, boxes = [A.HorizontalFlip()], {"format": "coco"}
    for which, compose, message in (
        ("b", A.Compose(flips), "transform needs bbox_params to move boxes"),
        ("p", A.Compose(flips), "transform needs keypoint_params to move points"),
        ("k", A.Compose(flips, boxes), "transform needs keypoint_params to move keypoints"),
        ("b", A.Compose(flips, {"format": "xyxy"}), "bbox_params must have a format of pascal_voc, .*got 'xyxy'"),
        ("p", A.Compose(flips, None, {"format": "xq"}), "keypoint_params must have a format such as 'xy', got 'xq'"),
        (
            "m",
            A.Compose([A.Resize()]),
            r"transform must keep the size of images, because mask would not.*\[12, 18, 3\]",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            open_loader(fields_of(data, which), transform=compose)
    moving = imagenet_train((HEIGHT, WIDTH), auto_augment="rand")
    with pytest.raises(ValueError, match="boxes cannot follow auto_augment after an albumentations transform"):
        open_loader(fields_of(data, "b"), transform=A.Compose(flips, boxes), pipeline=moving)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("mask", r"transform must return the mask 'mask' as uint8 \[24, 36\], got uint8 \[24, 35\]"),
        ("float mask", r"transform must return the mask 'mask' as uint8 \[24, 36\], got float64"),
        ("short boxes", "transform must return bboxes with 6 values each, as they were passed"),
        ("number", "transform must keep the last value of each of the bboxes: it is its number"),
        ("nan", "transform must return finite bboxes"),
        ("class", "transform must return 3 whole numbers as labels"),
        ("none", "transform raised KeyError: 'bboxes'"),
    ],
)
def test_impossible_results_are_reported_with_their_sample(data: Data, fault: str, cause: str) -> None:
    class Broken:
        def __init__(self) -> None:
            self.bbox_params, self.keypoint_params = {"format": "pascal_voc"}, {"format": "xy"}

        def __call__(self, **given: Any) -> dict[str, Any]:
            if int(given["image"][0, 0, 2]) != 7:
                return given
            boxes = [list(box) for box in given["bboxes"]]
            changes = {
                "mask": {"mask": given["mask"][:, 1:]},
                "float mask": {"mask": given["mask"] + 0.5},
                "short boxes": {"bboxes": [box[:4] for box in boxes]},
                "number": {"bboxes": [[*box[:-1], 99] for box in boxes]},
                "nan": {"bboxes": [[float("nan"), *box[1:]] for box in boxes]},
                "class": {"bboxes": [[*box[:4], 0.5, box[5]] for box in boxes]},
                "none": {},
            }
            if fault == "none":
                del given["bboxes"]
            return given | changes[fault]

    Broken.__module__ = "albumentations.core.composition"
    source = fields_of(data, "mk")
    loader = open_loader(source, transform=Broken(), shuffle=False)
    with loader, pytest.raises(LoaderError, match=cause) as error:
        list(loader)
    assert (error.value.code, error.value.sample) == ("E-DATASET", 7)


def test_a_mirror_without_left_right_swaps_warns(data: Data, albumentations: Any) -> None:
    flip, shift = albumentations.HorizontalFlip(), albumentations.Shift(3)

    def num_warnings(steps: list[Any], swaps: Any, **params: Any) -> int:
        source = with_fields(data.source, points=Keypoints(data.points, swaps))
        compose = albumentations.Compose(steps, keypoint_params={"format": "xy", **params})
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            open_loader(source, transform=compose).close()
        return sum("does not swap left and right of points" in str(each.message) for each in seen)

    assert num_warnings([shift, flip], [(0, 1)]) == num_warnings([flip], None) == 1
    assert num_warnings([shift], [(0, 1)]) == num_warnings([shift, flip], ()) == 0
    assert num_warnings([flip], [(0, 1)], label_fields=["names"]) == 0
