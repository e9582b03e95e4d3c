"""Tasks for DALI that the native library prepares: the same bytes, windows, flips and errors as the Python path's."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import jpeg_parts as jp
import numpy as np
import pytest
from bit_rot import SERVED_ENCODINGS, open_cache_of_odd_and_sound, open_damaged_cache
from cache_files import strip_item, write_cache
from native_tests import native
from odd_images import corpus, jpeg, scene, textured
from photo_folder import photo, write_folder
from producer_settings import producer_settings

from penstock.loaders.cache.hdf5_cache import open_cache
from penstock.loaders.dali.dali_tasks import CropTaskProducer
from penstock.loaders.engine.work import BATCH_ROW
from penstock.loaders.rows import native_rows
from penstock.loaders.rows.producer import Aborted
from penstock.loaders.sources.arrays import ArraySource
from penstock.loaders.sources.image_folder import ImageFolder
from penstock.loaders.stream.engine_contract import Cursor
from penstock.loaders.workers.worker_progress import WorkerProgress
from penstock.pipelines import imagenet_eval, imagenet_train
from penstock.pipelines.jpeg.header import parse_header
from penstock.pipelines.jpeg.strips import segment_ends
from penstock.pipelines.sample.dali_graph import CropTask
from penstock.pipelines.spec import ImagePipeline

BATCH, NUM_PHOTOS = 16, 70


@pytest.fixture(autouse=True)
def _built(monkeypatch: pytest.MonkeyPatch) -> None:
    library = native()
    monkeypatch.setattr(native_rows, "native_library", lambda: library)


def as_bytes(task: CropTask) -> tuple[Any, ...]:
    data = task.data if isinstance(task.data, bytes) else np.asarray(task.data).tobytes()
    return task.coded, data, task.window, bool(task.flip), () if task.coded else task.data.shape  # type: ignore[union-attr]


class Made:
    """What a producer makes of some batches, and how many of their tasks the library prepared."""

    def __init__(self, source: Any, batches: int, decoder: str, **changes: Any) -> None:
        order = {"batch_size": BATCH, "drop_last": False}
        defaults = {"pipeline": imagenet_train(32), "substitute": True, "on_repaired": "ignore"}
        producer = CropTaskProducer(producer_settings(source, order, **{**defaults, "decoder": decoder, **changes}))
        self.native, self.batches, self.kinds = 0, [], set()
        if producer._native is not None:
            prepare = producer._native.prepare

            def counted(*arguments: Any) -> Any:
                prepared = prepare(*arguments)
                assert prepared is not None
                assert all(each.flags.c_contiguous for each in prepared.data)
                self.native += len(prepared.rows)
                return prepared

            producer._native.prepare = counted  # type: ignore[method-assign]
        for number in range(batches):
            pixels, rows = (
                np.full((BATCH, *producer._settings.pipeline.size, 3), 77, np.uint8),
                np.zeros(BATCH, BATCH_ROW),
            )
            cursor = Cursor(number * BATCH // len(source), number * BATCH % len(source))
            bad, _ = producer.produce(cursor, pixels.reshape(-1), rows, lambda sample: None)
            repaired = tuple(producer.repaired[row] for row in sorted(producer.repaired))
            tasks = [(row, *as_bytes(task)) for row, task in producer.tasks.items()]
            self.kinds.update(task.coded for task in producer.tasks.values())
            self.batches.append((tasks, pixels.tobytes(), rows.tobytes(), bad, repaired))

    @property
    def codes(self) -> set[str]:
        return {entry.code for batch in self.batches for entry in batch[3]}


def both(source: Any, batches: int = 6, *, at_least: int, **changes: Any) -> Made:
    """Make batches on both paths, and demand that they are equal, and that the library prepared so many rows."""
    made, python = Made(source, batches, "auto", **changes), Made(source, batches, "simplejpeg", **changes)
    assert python.native == 0
    assert made.batches == python.batches
    assert made.native >= at_least
    return made


@pytest.fixture(scope="module")
def odd_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus among sound photos, shuffled: 64 refused images in a row would be a refused data set."""
    root = write_folder(tmp_path_factory.mktemp("native") / "odd", 100)
    images = [image for image in corpus() if len(image.data) < 60_000]
    random.Random(4).shuffle(images)
    for number, image in enumerate(images):
        (root / f"class{number % 2}" / f"odd{number:04d}.jpg").write_bytes(image.data)
    return root


PIPELINES = {
    "crops": imagenet_train(32),
    "upright crops": imagenet_train(32, exif="apply"),
    "centre": imagenet_eval(48),
    "whole, upright": ImagePipeline(crop="full", size=(40, 24), flip=0.0, exif="apply"),
    "of few pixels": imagenet_train(32, max_pixels=6000),
}


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_odd_images_become_the_same_tasks(odd_folder: Path, pipeline: str) -> None:
    source = ImageFolder(odd_folder)
    made = both(source, -(-len(source) // BATCH), at_least=60, pipeline=PIPELINES[pipeline])
    assert len(made.codes) >= 5


@pytest.mark.parametrize("on_repaired", ["count", "replace"])
def test_what_is_judged_is_judged_once(photos: Path, on_repaired: str) -> None:
    """By the Python path; where it has found nothing to repair, the library goes on from the next epoch."""
    made = both(ImageFolder(photos), 10, at_least=60, on_repaired=on_repaired)
    assert made.native <= 10 * BATCH - 70


@pytest.mark.parametrize("encoding", SERVED_ENCODINGS)
@pytest.mark.parametrize("exif", ["ignore", "apply"])
def test_parts_of_caches_are_the_same(tmp_path: Path, encoding: str, exif: str) -> None:
    cache = open_cache_of_odd_and_sound(tmp_path, SERVED_ENCODINGS[encoding])
    made = both(cache, 12, at_least=80, pipeline=imagenet_train(32, exif=exif))
    assert made.kinds == {"raw" not in encoding}
    both(cache, 3, at_least=10, pipeline=ImagePipeline(crop="full", size=(40, 24), exif=exif))


def test_damage_in_a_cache_is_told_alike(tmp_path: Path, photos: Path) -> None:
    cache = open_damaged_cache(photos, tmp_path / "damaged.h5")
    assert both(cache, 10, at_least=60).codes == {"E-CACHE"}


def test_strips_that_are_not_what_their_record_says_are_told_alike(tmp_path: Path) -> None:
    """As a faulty or hostile maker of caches may store them, every CRC right."""
    kinds = [jpeg(textured(97, 160), subsampling=kind, restart_marker_blocks=2) for kind in (0, 1, 2)]
    kinds.append(jpeg(scene(97, 160)[..., 0], restart_marker_blocks=4))
    sound = [strip_item(data, strip_rows) for data in kinds for strip_rows in (1, 2, 5)]
    data = kinds[2]
    header = parse_header(data)
    scan = data[header.scan_offset : -2]
    end = segment_ends(np.frombuffer(scan, np.uint8)).tolist()[7]
    scans = {
        "renumbered": scan[: end - 1] + b"\xd3" + scan[end:],
        "one marker less": scan[: end - 2] + scan[end:],
        "one more": scan[:end] + b"\xff\xd0" + scan[end:],
        "one more at the end": scan + b"\xff\xd0",
        "a stray one": scan[: end - 9] + b"\xff\xd9" + scan[end - 7 :],
        "cut short": scan[: len(scan) // 2],
        "no markers": bytes(90),
        "nothing": b"",
    }
    fields = ({"segment_mcus": 3}, {"segment_mcus": 5}, {"strip_rows": 1}, {"strip_rows": 7})
    fields += ({"width": 162}, {"width": 320}, {"height": 113}, {"height": 40}, {"mcu_height": 8}, {"height_offset": 9})
    odd = [(strip_item(data, 2, each), {}) for each in scans.values()]
    odd += [(strip_item(data), each) for each in fields]
    whole = {"pipeline": ImagePipeline(crop="full", size=(40, 24), flip=0.0)}
    for changes in ({}, whole):
        made = both(open_cache(write_cache(tmp_path / "sound.h5", sound)), 3, at_least=24, **changes)
        assert made.codes == set()
        codes = set()
        for item, lies in odd:
            cache = open_cache(write_cache(tmp_path / "odd.h5", [*sound, item]))
            for name, value in lies.items():  # opening refuses most of them
                cache.records[name][-1] = value
            codes |= both(cache, 5, at_least=25, evaluation=True, **changes).codes
        assert "E-CACHE" in codes


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_in_memory_are_the_same(channels: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 50, 37, channels), np.uint8)
    made = both(ArraySource(images, np.arange(40)), at_least=88 if channels == 3 else 0)
    assert made.kinds == {False}


def test_narrow_windows_and_stray_markers_are_pythons(tmp_path: Path) -> None:
    """One column of an image, colours that a decoder guesses, markers that lead to no end, damage behind the scan."""
    plain = jpeg(scene(61, 83), subsampling=2)
    restarts = jpeg(scene(61, 83), subsampling=2, restart_marker_blocks=3)
    adobe = [jp.segment(jp.APP14, b"Adobe\0\x64\0\0\0\0" + bytes([transform])) for transform in (0, 1)]
    files = [photo(k) for k in range(8)]
    files += [jpeg(np.ascontiguousarray(textured(48, 48)[:side, :side]), subsampling=2) for side in (1, 2, 2, 3, 3, 3)]
    files += [jp.inserted(plain, b"".join(adobe[k] for k in order)) for order in ((0,), (1,), (0, 1), (1, 0))]
    for data in (plain, restarts):
        middle = len(data) - 200
        files += [
            data[:middle] + stray + data[middle + 2 :] for stray in (b"\xff\xd3", b"\xff\xd8", b"\xff\xc4", b"\xff\xff")
        ]
        files += [data[:-2], data[: len(data) // 2], data + b"behind", data[:-2] + b"\xff\xff\xd9"]
    folder = tmp_path / "odd" / "class0"
    folder.mkdir(parents=True)
    for number, data in enumerate(files):
        (folder / f"{number:02d}.jpg").write_bytes(data)
    made = both(ImageFolder(tmp_path / "odd"), 8, at_least=32)
    assert made.native < sum(len(batch[0]) for batch in made.batches)


def test_a_file_that_is_not_as_it_was_scanned_is_told_alike(tmp_path: Path) -> None:
    source = ImageFolder(write_folder(tmp_path / "photos", 30))
    files = sorted((tmp_path / "photos").rglob("*.jpg"))
    os.utime(files[0], ns=(1, 1))
    files[5].unlink()
    files[9].write_bytes(photo(3) + b"more")
    assert both(source, 2, at_least=16).codes == {"E-CHANGED", "E-MISSING"}


def test_a_batch_without_memory_is_pythons(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = np.empty

    def none_left(shape: Any, *rest: Any) -> Any:
        if isinstance(shape, int) and shape > 100:
            raise MemoryError
        return empty(shape, *rest)

    made = Made(ImageFolder(photos), 2, "auto")
    monkeypatch.setattr(native_rows.np, "empty", none_left)
    without = Made(ImageFolder(photos), 2, "auto")
    assert (made.native, without.native) == (2 * BATCH, 0)
    assert made.batches == without.batches


def test_the_second_look_is_pythons_and_a_stale_batch_is_given_up(photos: Path) -> None:
    settings = producer_settings(ImageFolder(photos), {"batch_size": BATCH}, on_repaired="ignore")
    assert CropTaskProducer(settings, checked=True)._native is None
    producer, progress = CropTaskProducer(settings), WorkerProgress(1, shared=False)
    pixels, rows = np.zeros((BATCH, 16, 16, 3), np.uint8), np.zeros(BATCH, BATCH_ROW)
    wanted = progress.addresses(0, progress.generation)
    producer.produce(Cursor(0, 0), pixels.reshape(-1), rows, lambda sample: None, wanted)
    assert len(producer.tasks) == BATCH
    progress.next_generation()
    with pytest.raises(Aborted):
        producer.produce(Cursor(0, 0), pixels.reshape(-1), rows, lambda sample: None, wanted)
