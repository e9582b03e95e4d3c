"""One stream for all settings: the same on every backend, on ranks that share it, and after a resume."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from band_images import keeping
from folder_trees import settle
from served_steps import Step, as_steps, join, serve_steps
from tokenizers_of_users import CountLetters, count_letters
from transform_functions import ByName, Module, from_global_state, jitter, mean, random_window, roll, torchvision_steps

from penstock.loaders import Blocks, ByUpdate, PatchBudget, PerClass, Repeated, create_loader
from penstock.loaders.front.loader import Batch, Loader
from penstock.pipelines import Augmentations, ImagePipeline, imagenet_eval, imagenet_train

NUM_PHOTOS, BATCH = 40, 8
BUCKETS = [(32, 32), (24, 40), (40, 24)]
CROPS: dict[str, dict[str, Any]] = {
    "padded": {"size": (48, 80), "crop": "random", "padding": 20, "fill": (9, 130, 250)},
    "shorter side, drawn": {"size": (24, 24), "crop": "random", "shorter_side": (26, 50)},
    "shorter side": {"size": (24, 30), "crop": "center", "shorter_side": 32, "flip": 0},
    "resized first": {"size": (24, 30), "crop": "center", "resize_first": True, "interpolation": "bicubic", "flip": 0},
    "resized first, ten": {"size": (20, 20), "crop": "ten", "resize_first": True, "shorter_side": 41, "flip": 0},
    "resized first, padded": {"size": (40, 40), "crop": "letterbox", "resize_first": True, "interpolation": "lanczos"}
    | {"fill": (9, 130, 250), "rotate90": 0.75},
    "resized first, grey": {"size": (24, 32), "crop": "full", "resize_first": True, "interpolation": "nearest"}
    | {"channels": 1, "mean": 0.4, "std": 0.2, "align": "center_down", "vertical_flip": 0.5},
    "scale jitter": {"size": (40, 56), "crop": "scale_jitter", "jitter": (0.3, 2.0), "align": "top_left", "fill": 114},
    "letterbox": {"size": (40, 40), "crop": "letterbox", "fill": (114, 114, 114), "flip": 0},
    "turned": {"size": (32, 32), "rotate90": 0.75, "vertical_flip": 0.5},
    "ten": {"size": (16, 24), "crop": "ten", "flip": 0},
    "grey": {"size": (32, 32), "channels": 1, "mean": 0.4, "std": 0.2},
    "lanczos": {"size": (40, 24), "interpolation": "lanczos"},
    "box, letterbox": {"size": (40, 40), "crop": "letterbox", "interpolation": "box", "vertical_flip": 0.5},
    "nearest": {"size": (24, 24), "interpolation": "nearest"},
    "drawn, turned": {"size": (24, 24), "interpolation": "random", "rotate90": 0.75, "vertical_flip": 0.5},
    "grey, rotated, padded": {
        "size": (60, 60),
        "crop": "random",
        "padding": 9,
        "channels": 1,
        "mean": 0,
        "std": 1,
        "rotate90": 1,
        "fill": 77,
    },
}
ORDERS: dict[str, dict[str, Any]] = {
    "blocks": {"shuffle": Blocks(samples=4, group=8)},
    "weights": {"weights": np.arange(NUM_PHOTOS) % 5 + 0.5, "epoch_samples": 50},
    "repeated": {"shuffle": Repeated(3)},
    "per class": {"shuffle": PerClass(4), "epoch_samples": 56},
    "virtual epochs": {"epoch_samples": 24},
    "virtual epochs of blocks": {"epoch_samples": 24, "shuffle": Blocks(samples=4, group=8)},
    "own order": {"order": lambda epoch: np.random.default_rng(epoch).integers(0, NUM_PHOTOS, 32)},
}
CHANGES: dict[str, dict[str, Any]] = {
    "buckets": {"buckets": BUCKETS, "pipeline": imagenet_train(interpolation="random")},
    "by epoch": {"sizes": {0: 24, 1: (40, 32)}, "batch_size": {0: 12, 1: 6}},
    # In the middle of the first and the second epoch.
    "by update": {"sizes": ByUpdate({0: 24, 2: (40, 32), 5: 32}), "batch_size": ByUpdate({0: 12, 3: 6, 7: 4})},
    "patches": {
        "patches": PatchBudget(size=8, sequence_lengths=(6, 12, 24)),
        "batch_size": 6,
        "pipeline": imagenet_train(interpolation="random"),
    },
}
OWN: dict[str, Any] = {"size": None, "crop": "full", "max_output_pixels": 1 << 14}
MIXED = Augmentations(erasing=0.5, mixup=0.3, cutmix=1.0)
DRAWN = imagenet_train((16, 24), scale=(0.05, 0.3), interpolation="random")
WHOLE = ImagePipeline(crop="none", flip=0)
VIEWS = [imagenet_train(32, interpolation="bicubic"), imagenet_train(32), DRAWN, imagenet_eval(20)]
FILTERS: dict[str, dict[str, Any]] = {
    "bicubic": {"pipeline": imagenet_train(24, interpolation="bicubic")},
    "filter drawn": {"pipeline": imagenet_train(24, interpolation="random")},
}
# Images that Python alone makes.
KEPT: dict[str, dict[str, Any]] = {
    "own sizes": {"pipeline": ImagePipeline(**OWN, vertical_flip=0.5)},
    "own sizes, in order": {"pipeline": ImagePipeline(**OWN, flip=0, shorter_side=40)},
    "levels as stored": {"pipeline": keeping(3, 32, size=(24, 24), augment=MIXED), "dtype": torch.float32},
}
TRANSFORMS = {"jitter": jitter, "global state": from_global_state}
# The same code draws and makes all crops, in threads and in processes, on any rank.
OF_EACH_CROP = ("threads", "hdf5", "hdf5, python", "dali")
TEXTS: dict[str, dict[str, Any]] = {
    "texts": {"text": "json:title"},
    "drawn captions": {"text": "json:captions", "captions": "draw"},
    "tokens of two, views": {"text": "json:captions", "captions": 2, "tokenize": CountLetters(), "pipeline": VIEWS},
    "tokens, weights": {"text": "json:captions", "captions": "draw", "tokenize": CountLetters(), **ORDERS["weights"]},
    "tokens, patches": {"text": "json:title", "tokenize": count_letters, "drop_last": False, **CHANGES["patches"]},
}
ALONE = {"roll": roll, "mean": mean, "module": Module(), "by name": ByName(), "pillow": torchvision_steps}
CASES: dict[str, dict[str, Any]] = {
    **{name: {"pipeline": ImagePipeline(**crop)} for name, crop in CROPS.items()},
    **{name: {"transform": function, "dtype": torch.float32} for name, function in (TRANSFORMS | ALONE).items()},
    "views": {"pipeline": VIEWS},
    "whole": {"pipeline": WHOLE, "transform": random_window, "shuffle": True},
    "whole, views": {"pipeline": [WHOLE, imagenet_train(24), WHOLE], "transform": [random_window, None, random_window]}
    | {"shuffle": True},
    **TEXTS,
    **FILTERS,
    **KEPT,
    **ORDERS,
    "weights, crops drawn by numpy": {**ORDERS["weights"], "pipeline": ImagePipeline(**CROPS["grey, rotated, padded"])},
    **{name: {**change, "drop_last": False} for name, change in CHANGES.items()},
}
# Cases with own batch sizes, and those of the same code.
NOT_HALVED = {*CHANGES, *CROPS, "tokens, patches", "per class"}
BACKENDS: dict[str, dict[str, Any]] = {
    "threads": {"workers": 2, "workers_are": "threads"},
    "processes": {"workers": 2, "workers_are": "processes"},
    "hdf5": {"backend": "hdf5", "workers": 2},
    "hdf5, python": {"backend": "hdf5", "decoder": "simplejpeg"},
    "dali": {"backend": "dali", "workers": 2, "readers": 2},
}
OF_CHANGES: dict[str, dict[str, Any]] = {
    "hdf5, processes": {"backend": "hdf5", "workers": 2, "workers_are": "processes"},
    "dali, in the process": {"backend": "dali"},
    "dali, python": {"backend": "dali", "workers": 2, "decoder": "simplejpeg", "verify": 2},
}


def open_loader(photos: Path, case: str, **settings: Any) -> Loader:
    if settings.get("backend") == "hdf5":
        settings["cache"] = photos.with_suffix(f".{CASES[case].get('text', '').partition(':')[2]}.h5")
    usual = {"pipeline": imagenet_train(24), "batch_size": BATCH, "dtype": torch.uint8, "seed": 3, "workers": 0}
    return create_loader(photos, **{**usual, **CASES[case], **settings})


@pytest.fixture(scope="module")
def photos(photos: Path) -> Path:
    """The photos, each with a title and three or more captions in a file beside it."""
    for number, path in enumerate(sorted(photos.rglob("*.jpg"))):
        captions = [f"caption {letter} of {path.stem}" for letter in "abcde"[: 3 + number % 3]]
        path.with_suffix(".json").write_text(json.dumps({"title": f"title of {path.stem}", "captions": captions}))
    return settle(photos)


@pytest.fixture(scope="module")
def streams(photos: Path) -> dict[str, list[Step]]:
    """For each case, two epochs by Python in this process."""
    found = {}
    for case in CASES:
        with open_loader(photos, case, decoder="simplejpeg") as loader:
            found[case] = serve_steps(loader)
    return found


@pytest.mark.filterwarnings("ignore:transform draws from the global random state")  # as expected in threads
@pytest.mark.parametrize(
    ("case", "backend"),
    [
        *itertools.product(CROPS, OF_EACH_CROP),
        *itertools.product([case for case in CASES if case not in {**ALONE, **CROPS}], BACKENDS),
        *itertools.product(CHANGES, OF_CHANGES),
        *itertools.product(ALONE, ["threads"]),
    ],
)
def test_every_backend_serves_the_stream(photos: Path, streams: dict[str, list[Step]], case: str, backend: str) -> None:
    settings = {**BACKENDS, **OF_CHANGES}[backend]
    # DALI resizes regions that are cut and normalised as usual.
    rounds = "dali" in backend and case in {**ORDERS, **CHANGES, **FILTERS, **TEXTS}
    with open_loader(photos, case, **settings) as loader:
        assert serve_steps(loader, rounds=rounds) == streams[case]


@pytest.mark.filterwarnings("ignore:transform draws from the global random state")
@pytest.mark.parametrize("case", [case for case in CASES if case not in NOT_HALVED] + ["scale jitter"])
def test_ranks_resume_together_from_a_state(photos: Path, streams: dict[str, list[Step]], case: str) -> None:
    with open_loader(photos, case, workers=2) as loader:
        head = as_steps(itertools.islice(loader.batches(), 3))
        state = json.loads(json.dumps(loader.state_dict()))
    tails = []
    for rank in range(2):
        with open_loader(photos, case, batch_size=BATCH // 2, rank=rank, world_size=2) as loader:
            loader.load_state_dict(state)
            tails.append(serve_steps(loader))
    assert head + join(tails) == streams[case]


def test_the_streams_follow_their_settings(streams: dict[str, list[Step]]) -> None:
    def epochs(case: str) -> list[list[Step]]:
        return [[step for step in streams[case] if step.epoch == epoch] for epoch in range(2)]

    for case in CASES:
        first, second = ([step.rows for step in steps] for steps in epochs(case))
        drawn = CASES[case].get("pipeline", VIEWS)
        is_random = not isinstance(drawn, ImagePipeline) or drawn.random or "shuffle" in CASES[case]
        orders = [[row.index for rows in epoch for row in rows] for epoch in (first, second)]
        assert (first != second) == (orders[0] != orders[1]) == is_random, case
    for case in CHANGES:
        shapes = {row.pixels[0].values.shape for step in streams[case] for row in step.rows}
        assert len(shapes) == {"by epoch": 2}.get(case, 3)
        for steps in epochs(case):
            assert sorted(row.index for step in steps for row in step.rows) == list(range(NUM_PHOTOS))
    twice = [row for step in epochs("weights")[0] for row in step.rows]  # many samples occur again, with other crops
    assert len({row.index for row in twice}) < len(twice) - 5
    assert len({row.pixels[0].crc for row in twice}) == len(twice)
    for step in streams["per class"]:
        labels = [row.label for row in step.rows]
        assert [len(set(labels[:4])), len(set(labels[4:])), len(set(labels))] == [1, 1, 2]
    copies = [row for step in epochs("repeated")[0] for row in step.rows]
    assert len({row.index for row in copies}) == -(-NUM_PHOTOS // 3)
    assert len({row.pixels[0].crc for row in copies}) == NUM_PHOTOS
    views = streams["views"][0].rows[0].pixels
    assert [view.values.size for view in views] == [3 * size for size in (32 * 32, 32 * 32, 16 * 24, 20 * 20)]


def test_augmentations_of_a_repeated_sample_differ(photos: Path) -> None:
    only_one = {"weights": [1.0] + [0.0] * (NUM_PHOTOS - 1), "epoch_samples": 8}
    pipeline = imagenet_train(24, scale=(1, 1), ratio=(1, 1), flip=0.0, color_jitter=(0.4, 0.4, 0.4, 0.1))
    with create_loader(photos, pipeline=pipeline, batch_size=8, workers=0, **only_one) as loader:
        images = next(iter(loader))[0]
    assert len({image.numpy().tobytes() for image in images.permute(0, 2, 3, 1)}) == 8


def test_the_settings_are_visible_in_the_pixels(photos: Path) -> None:
    """Fill around a letterbox, one channel, ten different crops, floats of one mean and std."""

    def first(name: str, **settings: Any) -> Batch:
        with open_loader(photos, name, **settings) as loader:
            return next(loader.batches())

    boxed = first("letterbox")
    for image, (x, y, w, h) in zip(boxed.images, boxed.places.tolist(), strict=True):
        assert max(w, h) == 40
        outside = torch.ones(40, 40, dtype=torch.bool)
        outside[y : y + h, x : x + w] = False
        assert (image[:, outside] == 114).all()
        assert (image[:, ~outside] != 114).any()
    levels, floats = first("grey").images, first("grey", dtype=torch.float32).images
    assert levels.shape == (BATCH, 1, 32, 32)
    assert torch.allclose(floats, (levels / 255 - 0.4) / 0.2, atol=1e-6)
    crops = first("ten").images
    assert torch.stack(crops, 1).shape == (BATCH, 10, 3, 16, 24)
    assert torch.equal(crops[5], crops[1].flip(3))  # upper left of the mirrored image
    assert len(np.unique(first("turned").turns)) > 1


def test_8_bit_images_are_served_as_16_bit(photos: Path) -> None:
    deep = ImagePipeline(size=(16, 16), depth=16)
    with create_loader(photos, pipeline=deep, batch_size=4, dtype=torch.uint16, shuffle=False, workers=2) as loader:
        images = next(loader.batches()).images
    assert images.dtype == torch.uint16
    assert (images.to(torch.int32) > 255).any()
