"""The dali backend serves torch's stream within one level, including bad samples, and its own stream bit for bit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from broken_scans import KINDS, make_repairable, make_undecodable
from dali_streams import IDS, WORKERS, assert_near, assert_refused, assert_taken, open_loader, stream
from memory_source import MemorySource
from odd_images import corpus, encoded, jpeg, scene, textured
from photo_folder import photo

from penstock.loaders import Boxes, with_fields
from penstock.loaders.data.cache.format import Encoding
from penstock.pipelines import imagenet_eval, imagenet_train
from penstock.pipelines.jpeg.header import parse_header
from penstock.pipelines.sample.dali_graph import DaliGraph, dali_can_decode

IN_THE_PROCESS, THREADS = WORKERS


@pytest.fixture(scope="module")
def odd_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus, shuffled, because 64 refused images in a row refuse the data set."""
    root, images = tmp_path_factory.mktemp("odd") / "photos", corpus()
    random.Random(4).shuffle(images)
    for number, image in enumerate(images):
        folder = root / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:03d}_{image.name}.jpg").write_bytes(image.data)
    return root


@pytest.fixture(scope="module")
def odd_cache(odd_folder: Path) -> Path:
    path = odd_folder.with_name("odd.h5")
    with open_loader(odd_folder, backend="hdf5", cache=path, batch_size=8):
        return path


@pytest.mark.parametrize(
    ("exif", "cached", "options"),
    [("ignore", False, THREADS), ("apply", False, IN_THE_PROCESS), ("apply", True, THREADS)],
    ids=["as stored", "turned", "turned, from a lossless cache"],
)
def test_odd_images_are_served_as_on_the_torch_backend(
    odd_folder: Path, odd_cache: Path, exif: str, cached: bool, options: dict[str, Any]
) -> None:
    settings = {"pipeline": imagenet_train(32, exif=exif), "batch_size": 20, "on_bad_sample": "replace"}
    settings["drop_last"] = False
    ours = stream(odd_folder, backend="torch", **settings)
    assert len({entry[1] for entry in ours.bad}) >= 7
    cache = {"cache": odd_cache} if cached else {}
    assert_taken(stream(odd_folder, **settings, **cache, **options), ours)


def test_pixels_in_memory_are_served_as_on_the_torch_backend() -> None:
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (100, 32, 32, 3), np.uint8), draw.integers(0, 10, 100)
    smooth = np.stack([scene(32, 32) // 2 + image // 4 for image in images])
    settings = {"batch_size": 24, "pipeline": imagenet_train(24)}
    ours = stream((smooth, labels), epochs=2, backend="torch", **settings)
    for options in WORKERS:
        assert_taken(stream((smooth, labels), epochs=2, **settings, **options), ours)


def test_pixels_of_a_cache_are_served_as_on_the_torch_backend(photos: Path, tmp_path: Path) -> None:
    settings = {"batch_size": 12, "cache": tmp_path / "raw.h5", "encoding": Encoding(kind="raw")}
    ours = stream(photos, backend="torch", batch_size=12)
    for options in WORKERS:
        assert_taken(stream(photos, **settings, **options), ours)


def mixed() -> list[Any]:
    """JPEGs, pixels, and images that neither graph supports."""
    cmyk = next(image.data for image in corpus() if image.name == "jpeg_cmyk_pillow")
    kinds = (photo, lambda k: textured(40 + k, 50), lambda k: encoded(scene(50, 40 + k), "PNG"), lambda k: cmyk)
    return [kinds[k % 4](k) for k in range(40)]


def test_a_batch_may_mix_all_kinds_of_rows() -> None:
    ours = stream(MemorySource(mixed()), epochs=2, backend="torch", batch_size=8)
    for options in WORKERS:
        assert_taken(stream(MemorySource(mixed()), epochs=2, batch_size=8, **options), ours)


OPTIONS = [
    {"workers": 1, "readers": 1, "prefetch": 1},
    {"workers": 2, "readers": 3, "prefetch": 3},
    {"workers": 5, "readers": 1, "prefetch": 2},
    {"workers": 1, "readers": 4, "prefetch": 8},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_no_option_changes_a_bit_of_the_served_images(options: dict[str, Any]) -> None:
    items = mixed()
    first = stream(MemorySource(items), epochs=2, batch_size=6)
    other = stream(MemorySource(items), epochs=2, batch_size=6, **options)
    assert other.numbers() == first.numbers()
    assert np.array_equal(other.pixels, first.pixels)
    assert first.about["batches_refused"] == other.about["batches_refused"] == 0


def test_describe_names_the_decoder(photos: Path) -> None:
    with open_loader(photos, batch_size=8, workers=3, prefetch=4, decoder="simplejpeg") as loader:
        about = loader.describe()
    expected = {"backend": "dali", "workers": 3, "readers": 1, "prefetch": 4, "decodes_on": "cpu", "batches_refused": 0}
    expected["readers_are"] = "Python"
    assert {name: about[name] for name in expected} == expected
    assert str(about["dali"]).split(".")[0].isdigit()
    assert "hw_decoder_load" not in about


# ---- bad samples, refused by the decoder or by DALI ----

CASES: dict[str, tuple[list[int], dict[str, Any], dict[str, Any]]] = {
    "a whole batch": (list(range(8, 16)), THREADS, {}),
    "in the first batch": ([0, 7], THREADS, {}),
    "in the last batch": ([38, 39], THREADS, {"batch_size": 12, "drop_last": False}),
    "in two successive batches": ([9, 17, 22], THREADS, {}),
    "the substitute too": ([3, 4, 5, 31, 32], IN_THE_PROCESS, {"batch_size": 12, "pipeline": imagenet_eval(32)}),
    "batches of one": ([3, 4, 5, 31, 32], THREADS, {"batch_size": 1}),
    "every other one": (list(range(0, 40, 2)), IN_THE_PROCESS, {}),
    "all but one": (list(range(1, 40)), THREADS, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_samples_anywhere_give_the_stream_of_the_torch_backend(case: str) -> None:
    places, options, changed = CASES[case]
    items = [make_undecodable(photo(k), KINDS[k % len(KINDS)]) if k in places else photo(k) for k in range(40)]
    assert all(dali_can_decode(parse_header(items[place]), items[place]) for place in places)
    settings = {"batch_size": 8, "shuffle": False, "on_bad_sample": "replace", **changed}
    dali = stream(MemorySource(items), **settings, **options)
    assert_near(dali, stream(MemorySource(items), backend="torch", **settings))
    assert sorted(sample for sample, *_ in dali.bad) == places
    assert_refused(dali, len({place // settings["batch_size"] for place in places}), options)


@pytest.mark.parametrize("options", WORKERS, ids=IDS)
def test_repaired_damage_is_served_as_on_the_torch_backend(options: dict[str, Any]) -> None:
    items = [make_repairable(photo(k), k) if k % 2 else photo(k) for k in range(48)]
    items += [make_repairable(jpeg(textured(61, 83), progressive=True), k) for k in range(8)]
    settings = {"batch_size": 8, "on_bad_sample": "replace"}
    ours = stream(MemorySource(items), epochs=2, backend="torch", **settings)
    dali = stream(MemorySource(items), epochs=2, **settings, **options)
    assert ours.bad == []
    assert_taken(dali, ours)


@pytest.mark.parametrize("options", WORKERS, ids=IDS)
def test_a_sample_refused_for_its_boxes_is_replaced(options: dict[str, Any]) -> None:
    """Even where DALI decoded the refused image and cannot decode the substitute."""
    boxes = np.array([[[0, 0, 1, 1]]] * 16, np.float32)
    boxes[::2, 0, 2] = 9999  # outside the image
    items = [encoded(textured(40, 50), "PNG") if n % 2 else photo(n) for n in range(16)]
    data = with_fields(MemorySource(items), boxes=Boxes(boxes, [[0]] * 16))
    settings = {"batch_size": 8, "on_bad_sample": "replace"}
    ours = stream(data, backend="torch", **settings)
    assert len(ours.bad) >= 8
    assert_near(stream(data, **settings, **options), ours)


@pytest.mark.parametrize("options", WORKERS, ids=IDS)
def test_images_that_only_dali_refuses_are_decoded_by_us(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """As by a GPU's decoder: the batch is made without DALI, bit for bit as by torch; no sample is reported as bad."""
    items = [photo(k) for k in range(40)]
    feed = DaliGraph.feed

    def fail_on_17(graph: DaliGraph, tasks: Any) -> None:
        if any(task.data is items[17] for task in tasks):
            tasks = [task._replace(data=make_undecodable(items[17], KINDS[0])) for task in tasks]
        feed(graph, tasks)

    ours = stream(MemorySource(items), backend="torch", batch_size=8)
    monkeypatch.setattr(DaliGraph, "feed", fail_on_17)
    dali = stream(MemorySource(items), batch_size=8, **options)
    assert_near(dali, ours)
    at = int(np.flatnonzero(ours.index == 17)[0]) // 8
    rows = slice(8 * at, 8 * at + 8)
    assert np.array_equal(dali.pixels[rows], ours.pixels[rows])
    assert not np.array_equal(dali.pixels, ours.pixels)
    assert dali.bad == []
    assert_refused(dali, 1, options)
