"""Images of own sizes as lists: sizes as torchvision's Resize, pixels, fields, padding, limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from band_images import keeping
from PIL import Image

from penstock.loaders import Boxes, ImageTargets, LoaderError, Masks, create_loader, with_fields
from penstock.loaders.front.loader import Loader
from penstock.pipelines import ImagePipeline, imagenet_train
from penstock.pipelines.plan.placed_crops import fit_whole

COUNT = 11
Files = tuple[list[tuple[str, int]], list[np.ndarray]]  # data of a loader, and its pixels
WHOLE: dict[str, Any] = {"size": None, "crop": "full"}


def resize_of_torchvision(width: int, height: int, shorter: int | None, longest: int | None) -> tuple[int, int]:
    """Return (width, height) as _compute_resized_output_size of torchvision does."""
    short, long = min(width, height), max(width, height)
    new_short, new_long = (short, long) if shorter is None else (shorter, int(shorter * long / short))
    if longest is not None and (shorter is None or new_long > longest):
        new_short, new_long = int(longest * new_short / new_long), longest
    return (new_short, new_long) if width <= height else (new_long, new_short)


def test_whole_images_have_the_size_of_torchvisions_resize() -> None:
    rng = np.random.default_rng(0)
    widths, heights = rng.integers(1, 3000, (2, 500))
    for _ in range(30):
        shorter = None if rng.random() < 0.3 else int(rng.integers(1, 900))
        longer = None if rng.random() < 0.3 else int(rng.integers(shorter or 1, 1400))
        pipeline = ImagePipeline(**WHOLE, shorter_side=shorter, longer_side=longer)
        places = fit_whole(pipeline, widths, heights)
        expected = [resize_of_torchvision(w, h, shorter, longer) for w, h in zip(widths, heights, strict=True)]
        assert places[:, 2:].tolist() == np.maximum(expected, 1).tolist()
        assert not places[:, :2].any()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    root, rng = tmp_path_factory.mktemp("own"), np.random.default_rng(1)
    images = [rng.integers(0, 256, (*rng.integers(20, 60, 2), 3), np.uint8) for _ in range(COUNT)]
    for number, image in enumerate(images):
        Image.fromarray(image).save(root / f"{number}.png")
    return [(str(root / f"{number}.png"), number) for number in range(COUNT)], images


def load(source: Any, pipeline: ImagePipeline, **settings: Any) -> Loader:
    return create_loader(source, **{"pipeline": pipeline, "batch_size": 4, "workers": 0, "seed": 3, **settings})


@pytest.mark.parametrize(("shorter", "longer"), [(None, None), (30, None), (30, 40), (None, 33)])
def test_each_image_is_resized_and_turned_to_its_own_size(
    files: Files, shorter: int | None, longer: int | None
) -> None:
    source, images = files
    pipeline = ImagePipeline(**WHOLE, shorter_side=shorter, longer_side=longer, vertical_flip=0.5)
    for dtype in (torch.uint8, torch.float32):
        for batch in load(source, pipeline, dtype=dtype).batches():
            assert isinstance(batch.images, list)
            assert [image.dtype for image in batch.images] == [dtype] * 4
            for row, index in enumerate(batch.index.tolist()):
                height, width, _ = images[index].shape
                size = resize_of_torchvision(width, height, shorter, longer)
                expected = np.asarray(Image.fromarray(images[index]).resize(size, Image.Resampling.BILINEAR))
                expected = expected[::-1] if batch.turns[row] else expected
                expected = expected[:, ::-1] if batch.flips[row] else expected
                found = batch.images[row].permute(1, 2, 0).double().numpy()
                if dtype == torch.float32:
                    found = (found * pipeline.std + np.array(pipeline.mean)) * 255
                assert found.shape == expected.shape
                assert np.abs(found - expected).max() <= 1.01
                assert batch.places[row].tolist() == [0, 0, *size]


def test_boxes_masks_and_geometry_are_in_the_pixels_of_each_image(files: Files) -> None:
    source, images = files
    masks = [
        np.arange(image.shape[0] * image.shape[1], dtype=np.int64).reshape(image.shape[:2]) % 250 for image in images
    ]
    root = Path(source[0][0]).parent
    for number, mask in enumerate(masks):
        (root / "masks").mkdir(exist_ok=True)
        Image.fromarray(mask.astype(np.uint8)).save(root / "masks" / f"{number}.png")
    corners = [np.array([[2, 3, image.shape[1] - 4, image.shape[0] - 5]], np.float32) for image in images]
    data = with_fields(source, boxes=Boxes(corners, [[0]] * COUNT), mask=Masks(str(root / "masks")))
    pipeline = ImagePipeline(**WHOLE, longer_side=48)
    for pad in (True, False):
        settings = {"drop_last": False, "pad": pad, "with_geometry": True, "with_index": True}
        batches = list(load(data, pipeline, **settings).batches())
        assert sum(int((batch.index >= 0).sum()) for batch in batches) == COUNT
        assert [len(batch.images) for batch in batches] == [4, 4, 4 if pad else 3]
        for batch in batches:
            assert len(batch["mask"]) == len(batch["boxes"]) == len(batch.images) == len(batch.labels)
            for row, index in enumerate(batch.index.tolist()):
                image, mask, boxes = batch.images[row], batch["mask"][row], batch["boxes"][row]
                if index < 0:
                    assert (image.shape, mask.shape, boxes.shape) == ((3, 0, 0), (0, 0), (0, 4))
                    assert image.dtype == torch.float32
                    continue
                height, width = image.shape[1:]
                scale = np.array([width / images[index].shape[1], height / images[index].shape[0]] * 2)
                x0, y0, x1, y1 = corners[index][0] * scale
                expected = (width - x1, y0, width - x0, y1) if batch.flips[row] else (x0, y0, x1, y1)
                np.testing.assert_allclose(boxes[0], expected, rtol=1e-5, atol=1e-3)
                taken = np.asarray(Image.fromarray(masks[index].astype(np.uint8)).resize((width, height), 0))
                taken = taken[:, ::-1] if batch.flips[row] else taken
                assert np.array_equal(mask.numpy(), taken)
                np.testing.assert_allclose(batch["geometry"].boxes_to_image(row, boxes), corners[index], atol=1e-2)


def test_image_targets_have_a_multiple_of_the_size_of_each_image(files: Files) -> None:
    source, images = files
    root = Path(source[0][0]).parent / "large"
    root.mkdir(exist_ok=True)
    larger = [image.repeat(2, 0).repeat(2, 1) for image in images]
    for number, image in enumerate(larger):
        Image.fromarray(image).save(root / f"{number}.png")
    data = with_fields(source, target=ImageTargets(str(root), scale=2))
    pipeline = ImagePipeline(**WHOLE, max_output_pixels=1 << 12)
    batches = list(load(data, pipeline, dtype=torch.uint8, drop_last=False, pad=True).batches())
    assert [len(batch["target"]) for batch in batches] == [4, 4, 4]
    for batch in batches:
        for row, index in enumerate(batch.index.tolist()):
            expected = larger[index] if index >= 0 else np.zeros((0, 0, 3), np.uint8)
            expected = expected[:, ::-1] if batch.flips[row] else expected
            assert np.array_equal(batch["target"][row].permute(1, 2, 0).numpy(), expected)


def test_an_image_above_the_limit_is_a_bad_sample(files: Files) -> None:
    source, images = files
    pixels = sorted(image.shape[0] * image.shape[1] for image in images)
    limit = pixels[COUNT // 2]
    pipeline = ImagePipeline(**WHOLE, max_output_pixels=limit)
    with pytest.raises(LoaderError, match=rf"E-BOMB.*more than max_output_pixels={limit}: fix=pass .*=\d+\), or a sm"):
        list(load(source, pipeline))
    settings = {"on_bad_sample": "replace", "max_bad": COUNT, "drop_last": False, "shuffle": True}
    for decoder in ("auto", "simplejpeg"):
        loader = load(source, pipeline, decoder=decoder, **settings)
        served = [index for batch in loader.batches() for index in batch.index.tolist() if index >= 0]
        assert {images[index].shape[0] * images[index].shape[1] <= limit for index in served} == {True}
        assert loader.ledger().replaced == sum(each > limit for each in pixels)
    both = ImagePipeline(**WHOLE, shorter_side=800, longer_side=1333)
    assert (both.most_pixels, ImagePipeline(**WHOLE, longer_side=100).most_pixels) == (800 * 1333, 10_000)
    assert ImagePipeline(**WHOLE).most_pixels == 4_000_000


def test_other_channels_and_depths_have_own_sizes_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    for channels, depth, kind in ((1, 8, "u1"), (5, 16, "u2"), (4, 32, "f4")):
        images = [(rng.random((*rng.integers(5, 30, 2), channels)) * 200).astype(kind) for _ in range(6)]
        for number, image in enumerate(images):
            np.save(tmp_path / f"{number}.npy", image)
        source = [(str(tmp_path / f"{number}.npy"), number) for number in range(6)]
        loader = load(source, keeping(channels, depth, **WHOLE, flip=0), memory_format=torch.contiguous_format)
        for batch in loader.batches():
            for index, image in zip(batch.index.tolist(), batch.images, strict=True):
                assert image.is_contiguous()
                highest = {8: 255, 16: 65535, 32: 1}[depth]
                np.testing.assert_allclose(image.permute(1, 2, 0), images[index] / np.float64(highest), rtol=1e-5)


def test_a_batch_transform_gets_and_returns_the_list(files: Files) -> None:
    def negate(images: list[torch.Tensor], labels: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        return [-image for image in images], labels + 1

    pipeline = ImagePipeline(**WHOLE)
    plain = load(files[0], pipeline)
    for one, two in zip(plain, load(files[0], pipeline, batch_transform=negate), strict=True):
        assert all(torch.equal(-a, b) for a, b in zip(one.images, two.images, strict=True))
        assert torch.equal(one.labels + 1, two.labels)
    with pytest.raises(LoaderError, match="must keep the 4 images of a batch, got 3"):
        list(load(files[0], pipeline, batch_transform=lambda images, labels: (images[1:], labels)))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"size": None}, "size=None serves whole images: pass crop='full', got crop='random_resized'"),
        ({**WHOLE, "rotate90": 0.5}, "rotate90 needs a square size, got None"),
        ({**WHOLE, "augment": imagenet_train(mixup=0.2).augment}, "augment needs images of one size"),
        ({**WHOLE, "shorter_side": 50, "longer_side": 40}, "longer_side must be at least shorter_side=50, got 40"),
        ({**WHOLE, "shorter_side": (30, 50)}, "shorter_side must be one number for crop='full'"),
        ({"crop": "full", "shorter_side": 50}, "shorter_side keeps the aspect of whole images: pass size=None"),
        ({"longer_side": 50}, "longer_side keeps the aspect of whole images: pass size=None"),
        ({**WHOLE, "max_output_pixels": 0}, "max_output_pixels must be from 1 to"),
    ],
)
def test_settings_that_need_one_size_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        ImagePipeline(**settings)


def test_loaders_of_one_size_refuse_it(files: Files) -> None:
    pipeline = ImagePipeline(**WHOLE)
    for name, value in {"sizes": {0: 32}, "buckets": [(32, 32)], "transform": np.negative}.items():
        with pytest.raises(ValueError, match=f"size=None, images of own sizes, cannot be combined with {name}"):
            load(files[0], pipeline, **{name: value})
    with pytest.raises(ValueError, match="cannot be combined with a changing batch_size"):
        load(files[0], pipeline, batch_size={0: 2, 1: 4})
    with pytest.raises(ValueError, match="cannot be combined with views"):
        load(files[0], [pipeline, pipeline])
