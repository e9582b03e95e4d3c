"""A picture shows what training gets: pixels, labels, fields and names of the next samples."""

from __future__ import annotations

import io
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from penstock.loaders import Boxes, ImageTargets, LoaderError, PatchBudget, create_loader, with_fields, with_labels
from penstock.loaders.make.own.global_draws import read_random_state
from penstock.loaders.show.drawing import Box, Mask, View, colour_of, draw_view
from penstock.loaders.show.picture import Picture, Tile
from penstock.loaders.show.tiles import label_text
from penstock.pipelines import ImagePipeline, imagenet_eval, imagenet_train
from penstock.pipelines.presets import simclr

COUNT = 12
DRAWS = np.random.default_rng(5)
PIXELS = DRAWS.integers(0, 256, (COUNT, 24, 32, 3), np.uint8)
ARRAYS = PIXELS, np.arange(COUNT) % 3
NAMES = ["cat", "dog", "emu"]
SMALL: dict[str, Any] = {"pipeline": imagenet_train(16), "batch_size": 4, "workers": 0, "classes": NAMES}


def objects() -> tuple[Any, dict[str, Any]]:
    """Return black images with a white object, and its mask, box and keypoint."""
    images, masks = np.zeros((COUNT, 40, 48, 3), np.uint8), np.zeros((COUNT, 40, 48), np.uint8)
    boxes, points = [], np.zeros((COUNT, 1, 3), np.float32)
    for number in range(COUNT):
        (x, y), (w, h) = DRAWS.integers(2, 16, 2), DRAWS.integers(8, 20, 2)
        images[number, y : y + h, x : x + w] = 255
        masks[number, y : y + h, x : x + w] = 1 + number % 2
        boxes.append(np.array([[x, y, x + w, y + h]], np.float32))
        points[number] = x + w / 2, y + h / 2, 2
    fields = {
        "mask": masks,
        "boxes": Boxes(boxes, [[number % 2] for number in range(COUNT)], names=["left", "right"], padded=True),
        "keypoints": points,
        "text": [f"text {number}" for number in range(COUNT)],
    }
    return (images, np.arange(COUNT) % 3), fields


def shown_levels(picture: Picture, view: int = 0) -> np.ndarray:
    return np.stack([tile.views[view].image for tile in picture.tiles])


@pytest.mark.parametrize(
    ("dtype", "most"),
    [(torch.uint8, 0), (torch.float32, 0), (torch.float64, 0), (torch.float16, 1), (torch.bfloat16, 1)],
)
def test_images_are_denormalised(dtype: torch.dtype, most: int) -> None:
    pipeline = imagenet_train(16, auto_augment="trivial", mean=(0.3, 0.5, 0.2), std=(0.3, 0.1, 0.9))
    settings = {**SMALL, "pipeline": pipeline}
    with create_loader(ARRAYS, dtype=torch.uint8, **settings) as plain:
        levels = torch.cat([batch.images for batch in plain]).permute(0, 2, 3, 1).numpy()
    with create_loader(ARRAYS, dtype=dtype, **settings) as loader:
        picture = loader.show(COUNT)
    assert len(picture) == COUNT
    assert np.abs(shown_levels(picture).astype(int) - levels).max() <= most


def test_sixteen_bits_and_one_channel_are_levels_of_eight_bits() -> None:
    deep = DRAWS.integers(0, 65536, (COUNT, 16, 16, 3), np.uint16)
    plain = ImagePipeline(size=(16, 16), crop="full", flip=0.0, depth=16)
    for dtype in (torch.uint16, torch.float32):
        with create_loader((deep, ARRAYS[1]), pipeline=plain, dtype=dtype, batch_size=4, workers=0) as loader:
            assert np.abs(shown_levels(loader.show(COUNT)) - deep / 257).max() <= 0.501
    grey = ImagePipeline(size=(24, 32), crop="full", flip=0.0, channels=1, mean=0.4, std=0.2)
    with create_loader((PIXELS[..., 0], ARRAYS[1]), pipeline=grey, batch_size=4, workers=0) as loader:
        assert np.array_equal(shown_levels(loader.show(COUNT)), PIXELS[..., :1].repeat(3, -1))


def test_views_are_shown_next_to_each_other() -> None:
    views = [imagenet_train(16), imagenet_train(8)]
    with create_loader(ARRAYS, **{**SMALL, "pipeline": views}) as loader:
        picture = loader.show(2)
        images, _ = next(iter(loader))
    assert [[view.image.shape for view in tile.views] for tile in picture.tiles] == [[(16, 16, 3), (8, 8, 3)]] * 2
    for view, served in enumerate(images):
        assert np.array_equal(shown_levels(picture, view), levels_of(served[:2], views[view]))


def levels_of(images: torch.Tensor, pipeline: ImagePipeline) -> np.ndarray:
    mean, std = (torch.tensor(each)[:, None, None] for each in (pipeline.mean, pipeline.std))
    return ((images * std + mean) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize("patches", [False, True], ids=["", "patches"])
@pytest.mark.parametrize("views", [1, 2])
def test_fields_lie_on_their_object(*, views: int, patches: bool) -> None:
    if patches and views > 1:
        pytest.skip("patches need a single view")
    data, fields = objects()
    pipeline = imagenet_train(32, scale=(0.5, 1.0), resample="pillow") if not patches else imagenet_eval(32)
    settings: dict[str, Any] = {"pipeline": [pipeline] * views if views > 1 else pipeline, "batch_size": 4}
    if patches:
        settings["patches"] = PatchBudget(size=8, sequence_lengths=(16,))
    with create_loader(with_fields(data, **fields), workers=0, drop_last=False, **settings) as loader:
        picture = loader.show(COUNT)
    assert len(picture) == COUNT
    for tile in picture.tiles:
        assert len(tile.views) == views
        label, name, values, text = tile.lines
        number = int(text.removeprefix("text: text "))
        assert (label, name) == (str(number % 3), f"array[{number}]")
        assert values.startswith("mask: 0, ") or views > 1 or patches
        for view in tile.views:
            white = view.image[..., 0] > 127
            ((mask, ignore_index),) = view.masks
            inside = mask != ignore_index
            assert (white[inside] == (mask[inside] > 0)).mean() > 0.9
            assert set(np.unique(mask[inside])) <= {0, 1 + number % 2}
            for corners, of, name in view.boxes:
                assert (of, name) == (number % 2, ["left", "right"][number % 2])
                left, top, right, bottom = (round(each) for each in corners)
                assert white[top:bottom, left:right].mean() > 0.8
                white[max(0, top - 1) : bottom + 1, max(0, left - 1) : right + 1] = False
                assert not white.any()
            ((x, y, visibility),) = view.points[0].tolist()
            if visibility and max(x, y) < view.image.shape[0]:
                assert view.image[int(y), int(x), 0] > 127


def test_a_drawing_has_the_colours_of_its_fields() -> None:
    image = np.full((80, 100, 3), 100, np.uint8)
    mask = np.zeros((80, 100), np.uint8)
    mask[60:70, 5:15], mask[:, 95:] = 3, 255
    point = np.array([[30.5, 70.5, 2.0], [60.5, 70.5, 0.0]], np.float32)
    drawn = draw_view(View(image, (Mask(mask, 255),), (Box((20.0, 30.0, 50.0, 60.0), 4, "dog"),), (point,)))
    pixels = np.asarray(drawn)
    assert drawn.size == (200, 160)  # doubled
    assert pixels[80, 40].tolist() == pixels[100, 98].tolist() == list(colour_of(4))  # left and right edge of the box
    assert pixels[130, 20].tolist() == [100 // 2 + each // 2 for each in colour_of(3)]
    assert pixels[20, 195].tolist() == [50, 50, 50]  # outside the image
    assert pixels[141, 61].tolist() == list(colour_of(0))
    assert pixels[141, 121].tolist() == [100, 100, 100]  # an unknown point
    assert (pixels[54:58, 40:60] == colour_of(4)).all(-1).any()  # the name
    assert colour_of(3) != colour_of(4)
    assert draw_view(View(np.zeros((400, 800, 3), np.uint8))).size == (320, 160)


@pytest.mark.parametrize(
    ("label", "names", "text"),
    [
        (torch.tensor(1), NAMES, "dog"),
        (torch.tensor(7), NAMES, "7"),
        (torch.tensor(-1), NAMES, "no label"),
        (torch.tensor(float("nan")), (), "no label"),
        (torch.tensor(-1.0), (), "-1"),
        (torch.tensor(2.5), (), "2.5"),
        (torch.tensor([0.3, 0.0, 0.7]), NAMES, "emu 0.70, cat 0.30"),
        (torch.tensor([1.0, 0.0, 1.0]), NAMES, "emu, cat"),
        (torch.tensor([0.0, 0.0, 0.0]), NAMES, "none"),
        (torch.tensor([0.25, 2.0]), (), "0.25, 2"),
        (torch.arange(9), (), "0, 1, 2, 3, 4, 5, ..."),
    ],
)
def test_labels_are_text(label: torch.Tensor, names: Any, text: str) -> None:
    assert label_text(label, names) == text


def test_every_kind_of_label_is_shown() -> None:
    kinds = [["cat", "dog"][number % 2] for number in range(COUNT)]
    several = with_labels(ARRAYS, {"kind": kinds, "age": np.arange(COUNT) / 4})
    tags = with_labels(ARRAYS, [["sea"] if number % 2 else ["sea", "sky"] for number in range(COUNT)])
    evaluate: dict[str, Any] = {"pipeline": imagenet_eval(16), "batch_size": 4, "workers": 0}
    for data, options, lines in (
        (several, {}, ["kind: cat", "age: 0"]),
        (tags, {}, ["sky", "sea"]),
        (ARRAYS, {"classes": NAMES}, ["cat"]),
        (PIXELS, {"pipeline": imagenet_train(16, mixup=1.0), "classes": NAMES, "seed": 2, "shuffle": False}, None),
    ):
        source = ARRAYS if data is PIXELS else data
        with create_loader(source, **{**evaluate, **options}) as loader:
            tile = loader.show(1).tiles[0]
        if lines is not None:
            assert list(tile.lines) == [*lines, "array[0]"]
        else:
            assert tile.lines[0].split()[0] in NAMES
            assert float(tile.lines[0].split()[1]) < 1


def test_texts_and_their_tokens_are_shown() -> None:
    def tokenize(texts: list[str]) -> Any:
        return torch.tensor([[len(text)] * 9 for text in texts])

    data = with_fields((PIXELS, np.zeros(COUNT, int)), text=["a cat", "a bird"] * (COUNT // 2))
    settings: dict[str, Any] = {"pipeline": imagenet_eval(16), "batch_size": 4, "workers": 0}
    for options, text in (({}, "text: a cat"), ({"tokenize": tokenize}, "text: 5, 5, 5, 5, 5, 5, ...")):
        with create_loader(data, **settings, **options) as loader:
            assert loader.show(1).tiles[0].lines[-2:] == ("array[0]", text)


@pytest.mark.parametrize("settings", [{}, {"range": (-1, 1)}], ids=["levels", "range"])
def test_image_targets_are_shown_beside_their_image(settings: dict[str, Any]) -> None:
    data: Any = with_fields(ARRAYS, target=ImageTargets(PIXELS.repeat(2, 1).repeat(2, 2), scale=2, **settings))
    assert np.array_equal(data[3].fields["target"], PIXELS[3].repeat(2, 0).repeat(2, 1))
    pipeline = ImagePipeline(size=(16, 16), crop="random")
    with create_loader(data, pipeline=pipeline, dtype=torch.uint8, batch_size=4, workers=0) as loader:
        picture = loader.show(8)
    for tile in picture.tiles:
        image, target = (view.image for view in tile.views)
        assert np.array_equal(image.repeat(2, 0).repeat(2, 1), target)


def test_images_without_labels_have_only_names(photos: Path, tmp_path: Path) -> None:
    for number, path in enumerate(sorted(photos.rglob("*.jpg"))[:3]):
        (tmp_path / f"{number}.jpg").write_bytes(path.read_bytes())
    with create_loader(tmp_path, pipeline=imagenet_eval(16), workers=0) as loader:
        assert [tile.lines for tile in loader.show().tiles] == [("0.jpg",), ("1.jpg",), ("2.jpg",)]


def test_the_number_of_samples_ends_with_the_epoch() -> None:
    with create_loader(ARRAYS, **{**SMALL, "batch_size": 5, "pad": True, "drop_last": False}) as loader:
        assert [len(loader.show(n)) for n in (1, 4, 7, COUNT, COUNT + 1)] == [1, 4, 7, COUNT, COUNT]
        batches = iter(loader)
        next(batches)
        assert len(loader.show(100)) == COUNT - 5
        second = loader.show(1)
        assert next(batches).names[0] == second.tiles[0].lines[1]
        list(batches)
        assert len(loader.show(100)) == COUNT  # of the next epoch


@pytest.mark.filterwarnings("ignore:transform returns float32 .*channels last")
def test_a_picture_of_a_transforms_result() -> None:
    results: dict[str, Any] = {
        "levels": lambda image: image,
        "floats": lambda image: torch.from_numpy(image).permute(2, 0, 1) / 255,
        "normalised": lambda image: torch.from_numpy(image).permute(2, 0, 1).float() - 128,
        "last": lambda image: image.astype(np.float32) / 255,
    }
    for name, transform in results.items():
        with create_loader(ARRAYS, transform=transform, **SMALL) as loader:
            levels = shown_levels(loader.show(COUNT))
        with create_loader(ARRAYS, dtype=torch.uint8, **SMALL) as plain:
            expected = torch.cat([batch.images for batch in plain]).permute(0, 2, 3, 1).numpy()
        if name == "normalised":  # stretched between its limits
            low, high = expected.min((1, 2, 3), keepdims=True), expected.max((1, 2, 3), keepdims=True)
            expected = np.round((expected.astype(float) - low) / (high - low) * 255)
        assert np.abs(levels.astype(int) - expected).max() <= 1, name
    with create_loader(ARRAYS, transform=lambda image: image.mean((0, 1)), **SMALL) as loader:
        assert len(loader.show(2)) == 2  # not images


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_of_the_users_order_that_has_not_begun(workers: int) -> None:
    """Its indices are then known for a look only: the loader continues where it was."""

    def order(epoch: int) -> np.ndarray:
        return np.random.default_rng(epoch).permutation(COUNT)

    def slow(image: Any) -> Any:  # so that workers still make batches of epoch 0
        time.sleep(0.01)
        return image

    about: dict[str, Any] = {"workers": workers, "prefetch": 3, "workers_are": "threads", "transform": slow}
    with create_loader(ARRAYS, order=order, **{**SMALL, **about}) as loader:
        whole = [batch.index.tolist() for batch in loader]
        loader.set_epoch(0)
        state = next(loader.state_dict() for _ in loader)
        for epoch in (3, 4):
            loader.set_epoch(epoch)
            names = [f"array[{index}]" for index in order(epoch)[:5].tolist()]
            assert [tile.lines[1] for tile in loader.show(5).tiles] == names
        loader.load_state_dict(state)
        assert [batch.index.tolist() for batch in loader] == whole[1:]
        assert len(loader.show(5).tiles) == 5  # of epoch 1


def test_random_generators_stay_as_they_are() -> None:
    def noisy(image: Any) -> Any:
        return (image * random.random() * np.random.rand() * float(torch.rand(1))).astype(np.uint8)  # noqa: NPY002

    def mixed(images: torch.Tensor, labels: Any) -> Any:
        return images + torch.rand_like(images), labels

    with create_loader(ARRAYS, transform=noisy, batch_transform=mixed, **SMALL) as loader:
        before = read_random_state()
        loader.show()
        assert read_random_state() == before


def test_bad_samples_are_treated_as_in_training(photos: Path, tmp_path: Path) -> None:
    for number, path in enumerate(sorted(photos.rglob("*.jpg"))[:6]):
        (tmp_path / f"{number}.jpg").write_bytes(path.read_bytes() if number != 2 else b"\xff\xd8 broken")
    settings: dict[str, Any] = {"pipeline": imagenet_eval(16), "batch_size": 2, "workers": 0}
    with create_loader(tmp_path, **settings) as loader:
        assert len(loader.show(2)) == 2
        with pytest.raises(LoaderError, match=r"2\.jpg") as caught:
            loader.show(3)
        assert caught.value.code in ("E-CORRUPT", "E-TRUNC")
        assert loader.show(1).tiles[0].lines == ("0.jpg",)
    with create_loader(tmp_path, on_bad_sample="replace", **settings) as loader:
        assert [tile.lines[-1] for tile in loader.show().tiles] == [f"{number}.jpg" for number in (0, 1, 3, 4, 5)]
        assert not loader.ledger().bad


def test_mistakes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = create_loader(ARRAYS, **SMALL)
    for n in (0, 1025, 2.5):
        with pytest.raises(ValueError, match="n must be"):
            loader.show(n)  # type: ignore[arg-type]
    for name in ("drawing", "picture", "tiles"):
        monkeypatch.delitem(sys.modules, f"penstock.loaders.show.{name}")
    monkeypatch.setitem(sys.modules, "PIL", None)  # type: ignore[arg-type]
    with pytest.raises(LoaderError, match=r"E-DEPENDENCY.*needs Pillow"):
        loader.show()
    monkeypatch.undo()
    loader.close()
    with pytest.raises(LoaderError, match=r"E-MISUSE.*closed"):
        loader.show()


def test_a_picture_is_a_file_a_notebook_cell_and_text(tmp_path: Path) -> None:
    from rich.console import Console

    data, fields = objects()
    labels = ["\x1b[31mred\n", "a" * 300, "a [bold]"] * (COUNT // 3)
    source = with_fields(with_labels(data, labels), **fields)
    with create_loader(source, **{**SMALL, "classes": None, "pipeline": simclr(16)}) as loader:
        picture = loader.show(5)
    with pytest.raises(ValueError, match=r"a picture is saved as one of \.png, .*got .*look\.xyz"):
        picture.save(tmp_path / "look.xyz")
    picture.save(tmp_path / "look.png")
    saved = Image.open(tmp_path / "look.png")
    assert saved.size == picture.image.size
    assert np.array_equal(np.asarray(saved), np.asarray(Image.open(io.BytesIO(picture._repr_png_()))))
    assert "\x1b" not in repr(picture)
    assert repr(picture).splitlines()[0] == "<Picture of 5 samples; save('look.png') writes it>"
    assert len(repr(picture).splitlines()) == 6
    for width, color, blocks in ((100, "truecolor", 5 * 30 * 7), (10, "truecolor", 5 * 8 * 2), (80, None, 0)):
        out = io.StringIO()
        Console(file=out, width=width, force_terminal=True, color_system=color).print(picture)  # type: ignore[arg-type]
        assert out.getvalue().count("▀") == blocks
    assert "array[" in out.getvalue()
    assert "[bold]" in repr(picture)
    assert Picture([]).image.size > (0, 0)
    assert "nothing" in repr(Picture([Tile((), ("nothing",))]))
