"""Pipelines of pretrained models do what timm's and Hugging Face's own transforms do, or are refused."""

from __future__ import annotations

import dataclasses
import math
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from penstock.loaders import LoaderError, create_loader
from penstock.pipelines import for_hugging_face, for_timm, imagenet_eval, imagenet_train
from penstock.pipelines.spec import ImagePipeline

COUNT = 12
FILTERS = {"bilinear": 2, "bicubic": 3, "lanczos": 1, "box": 4, "nearest": 0}
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int]]:
    """Images of random sizes, with details that half a pixel changes."""
    folder, draw, found = tmp_path_factory.mktemp("images"), np.random.default_rng(5), []
    for number in range(COUNT):
        width, height = draw.integers(150, 400, 2).tolist()
        small = Image.fromarray(draw.integers(0, 256, (height // 4, width // 4, 3), np.uint8))
        small.resize((width, height), Image.Resampling.BICUBIC).save(folder / f"{number:02}.png")
        found.append((str(folder / f"{number:02}.png"), number % 2))
    return found


def serve(images: list[tuple[str, int]], pipeline: ImagePipeline) -> npt.NDArray[np.int64]:
    with create_loader(images, pipeline=pipeline, dtype=torch.uint8, batch_size=COUNT, workers=0) as loader:
        return np.moveaxis(next(iter(loader))[0].numpy().astype(np.int64), 1, -1)


def as_timm(
    path: str, size: tuple[int, int], share: float, mode: str, kernel: str, around: Any = round
) -> npt.NDArray[np.uint8]:
    """Resize and crop as transforms_imagenet_eval in timm/data/transforms_factory.py of timm 1.0.31 does.

    around: rounds the position of the crop; int as center_crop in image_processing_backends.py of transformers 5.24.
    """
    image = Image.open(path)
    width, height = image.size
    scaled = [math.floor(side / share) for side in size]
    if mode == "squash":
        new = scaled[1], scaled[0]
    elif mode == "border" or scaled[0] != scaled[1]:  # ResizeKeepRatio
        ratio = (max if mode == "border" else min)(height / scaled[0], width / scaled[1])
        new = round(width / ratio), round(height / ratio)
    else:  # torchvision's Resize with one number
        shorter, longer = sorted(image.size)
        long = int(scaled[0] * longer / shorter)
        new = (scaled[0], long) if width <= height else (long, scaled[0])
    image = image.resize(new, Image.Resampling(FILTERS[kernel]))
    canvas = Image.new("RGB", size[::-1], tuple(round(255 * value) for value in MEAN))
    rooms = new[0] - size[1], new[1] - size[0]
    canvas.paste(image, tuple(-around(room / 2) if room > 0 else -room // 2 for room in rooms))  # CenterCropOrPad
    return np.array(canvas)


@pytest.mark.parametrize(
    ("kernel", "mode", "share", "size"),
    [
        *[(kernel, "center", 0.9, (48, 48)) for kernel in FILTERS],
        *[("bicubic", "center", share, (48, 48)) for share in (0.875, 0.95, 1.0)],
        ("bicubic", "center", 0.95, (32, 48)),
        *[("bilinear", mode, share, (40, 56)) for mode in ("squash", "border") for share in (0.71, 0.95, 1.0)],
    ],
)
def test_the_evaluation_shows_the_images_of_timm(
    images: Any, kernel: str, mode: str, share: float, size: tuple[int, int]
) -> None:
    """With Pillow's resize each level is equal, with ours it is as near as the resizes are."""
    config = {"input_size": (3, *size), "interpolation": kernel, "crop_pct": share, "crop_mode": mode, "mean": MEAN}
    train, evaluation = for_timm(config)
    wanted = np.stack([as_timm(path, size, share, mode, kernel) for path, _ in images]).astype(np.int64)
    assert np.array_equal(serve(images, for_timm(config, resample="pillow")[1]), wanted)
    assert np.abs(serve(images, evaluation) - wanted).mean() < 0.1
    assert (train.size, train.mean, train.interpolation) == (size, MEAN, kernel)
    wrong = np.stack([as_timm(path, size, share * 0.9, "center", kernel) for path, _ in images]).astype(np.int64)
    assert np.abs(serve(images, evaluation) - wrong).mean() > 3


@dataclasses.dataclass
class PretrainedCfg:
    """Resembles timm's."""

    input_size: tuple[int, int, int] = (3, 224, 224)
    test_input_size: Any = None
    interpolation: str = "bicubic"
    crop_pct: float = 0.9
    test_crop_pct: Any = None
    crop_mode: str = "center"
    mean: Any = MEAN
    std: Any = STD


def test_every_form_of_a_timm_model_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    config = PretrainedCfg(test_input_size=(3, 288, 288), test_crop_pct=0.95)
    given = {"mean": MEAN, "std": STD, "interpolation": "bicubic"}
    wanted = (
        imagenet_train(224, **given, mixup=0.2),
        imagenet_eval(288, **given, center_fraction=0.95, resize_first=True),
    )
    package = ModuleType("timm.models")
    package.get_pretrained_cfg = {"known": config}.get  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", ModuleType("timm"))
    monkeypatch.setitem(sys.modules, "timm.models", package)
    model = SimpleNamespace(pretrained_cfg=dataclasses.asdict(config))
    for form in (config, dataclasses.asdict(config), model, "known"):
        assert for_timm(form, mixup=0.2) == wanted
    for function, config in (
        (for_timm, {"input_size": (3, 64, 64)}),
        (for_hugging_face, {"image_processor_type": "ViT"}),
    ):
        with pytest.raises(ValueError, match=r"^size is the model's: for another, change it"):
            function(
                {"size": {"height": 8, "width": 8}, "image_mean": MEAN, "image_std": STD, "resample": 2, **config},
                size=256,
            )
    with pytest.raises(ValueError, match="no pretrained settings of a model named 'unknown'"):
        for_timm("unknown")
    monkeypatch.setitem(sys.modules, "timm.models", None)
    with pytest.raises(LoaderError, match=r"E-DEPENDENCY.*timm cannot be imported"):
        for_timm("known")


def test_absent_settings_are_those_of_timm() -> None:
    train, evaluation = for_timm({"input_size": (3, 64, 64)})
    assert train == imagenet_train(64, interpolation="bicubic")
    assert evaluation == imagenet_eval(64, interpolation="bicubic", resize_first=True)
    grey, _ = for_timm({"input_size": (1, 64, 64), "mean": (0.5,), "std": (0.2,)})
    assert (grey.channels, grey.mean) == (1, (0.5,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"crop_mode": "corner"}, "crop_mode must be center, squash or border, got 'corner'"),
        ({"crop_pct": 1.1}, "crop_pct must be at most 1, got 1.1"),
        ({"interpolation": "hamming"}, "interpolation must be .*bicubic.* got 'hamming'"),
        ({"crop_border_pixels": 4}, "trim a border of 4 pixels"),
        ({"input_size": None}, "model must be a model of timm"),
    ],
)
def test_settings_of_timm_that_cannot_be_served_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        for_timm({"input_size": (3, 64, 64), **change})


BASE = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 40, "width": 56},
    "resample": 3,
    "rescale_factor": 1 / 255,
    "image_mean": list(MEAN),
    "image_std": list(STD),
}
CENTER = {"size": {"shortest_edge": 52}, "do_center_crop": True, "crop_size": {"height": 48, "width": 48}}


@pytest.mark.parametrize(
    ("change", "size", "share", "mode"),
    [
        ({}, (40, 56), 1.0, "squash"),
        ({**CENTER, "image_processor_type": "CLIPImageProcessorFast"}, (48, 48), 48 / 52, "center"),
        ({"do_center_crop": True, "crop_size": {"height": 35, "width": 49}}, (35, 49), 0.875, "squash"),
        (
            {"image_processor_type": "ConvNextFeatureExtractor", "size": {"shortest_edge": 56}, "crop_pct": 0.875},
            (56, 56),
            0.875,
            "center",
        ),
    ],
)
def test_the_evaluation_shows_the_images_of_hugging_face(
    images: Any, change: dict[str, Any], size: tuple[int, int], share: float, mode: str
) -> None:
    config = {**BASE, **change}
    train, evaluation = for_hugging_face(config)
    assert for_hugging_face(SimpleNamespace(to_dict=lambda: config)) == (train, evaluation)
    wanted = np.stack([as_timm(path, size, share, mode, "bicubic", int) for path, _ in images]).astype(np.int64)
    assert np.array_equal(serve(images, for_hugging_face(config, resample="pillow")[1]), wanted)
    assert np.abs(serve(images, evaluation) - wanted).mean() < 0.1
    assert (train.size, train.mean, train.std, train.interpolation) == (size, MEAN, STD, "bicubic")


def test_processors_without_normalising_and_those_of_timm_are_accepted() -> None:
    _, plain = for_hugging_face({**BASE, "do_normalize": False, "image_mean": None})
    assert (plain.mean, plain.std) == ((0.0,) * 3, (1.0,) * 3)
    wrapped = SimpleNamespace(pretrained_cfg={"input_size": (3, 64, 64)})
    assert for_hugging_face(wrapped) == for_timm({"input_size": (3, 64, 64)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_processor_type": "LevitImageProcessor"}, "processor must be one of Beit, .*got 'LevitImageProcessor'"),
        ({"do_resize": False}, "cannot be served with do_resize=False"),
        ({"do_pad": True}, "cannot be served with do_pad"),
        ({"do_rescale": False}, "must rescale by 1/255"),
        ({"rescale_factor": 1 / 127.5}, "must rescale by 1/255"),
        ({"resample": 5}, "interpolation must be .*got 'hamming'"),
        ({"do_center_crop": True, "crop_size": {"height": 30, "width": 30}}, "cannot be served with size=.*crop_size="),
        ({"do_center_crop": True, "crop_size": {"height": 50, "width": 70}}, "cannot be served with size=.*crop_size="),
        ({"size": {"shortest_edge": 40}}, "cannot be served with size=.*do_center_crop=False"),
        ({**CENTER, "size": {"shortest_edge": 40}}, "cannot be served with size=.*shortest_edge"),
        ({"size": 224}, "cannot be served with size=224"),
    ],
)
def test_processors_that_cannot_be_served_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        for_hugging_face({**BASE, **change})


@pytest.mark.parametrize("trained", ["random", "box", None])
@pytest.mark.parametrize("of_model", FILTERS)
def test_the_evaluation_has_the_interpolation_of_the_training_or_of_the_model(of_model: str, trained: Any) -> None:
    """timm trains with a drawn interpolation, and evaluates with the model's."""
    changes: Any = {} if trained is None else {"interpolation": trained}
    expected = of_model if trained in (None, "random") else trained
    for mode in ("center", "squash", "border"):
        config = {"input_size": (3, 32, 32), "crop_pct": 1.0, "interpolation": of_model, "crop_mode": mode}
        train, evaluation = for_timm(config, **changes)
        assert (train.interpolation, evaluation.interpolation) == (trained or of_model, expected)
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
    processor |= {"resample": FILTERS[of_model], "image_mean": MEAN, "image_std": STD}
    assert for_hugging_face(processor, **changes)[1].interpolation == expected
