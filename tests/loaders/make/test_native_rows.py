"""Batches that the native library makes: the same rows, pixels, errors and repairs as the Python path."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import jpeg_parts as jp
import numpy as np
import pytest
from bit_rot import SERVED_ENCODINGS, build_odd_cache, open_cache_of_odd_and_sound, open_damaged_cache
from make_planner import make_planner
from native_tests import native, to_images
from odd_images import corpus, exif_segment, jpeg, textured
from photo_folder import photo, write_folder
from repaired_jpegs import cut
from two_paths import BATCH, Made, check_both, settings_of

from penstock.loaders import Boxes, with_fields
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.dali.dali_tasks import CropTaskProducer
from penstock.loaders.data.cache.format import Encoding
from penstock.loaders.data.cache.hdf5_cache import Hdf5Cache, open_cache
from penstock.loaders.data.files.arrays import ArraySource
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.samples.samples import Samples
from penstock.loaders.data.sources.contract import is_located
from penstock.loaders.front.open_source import open_source
from penstock.loaders.make import native_rows
from penstock.loaders.make.producer import Aborted, Producer
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.ledger import BadSample
from penstock.loaders.run.engine.choose import suits_threads
from penstock.loaders.run.engine.process_engine import ProcessOptions
from penstock.loaders.run.engine.work_items import BATCH_ROW
from penstock.loaders.run.workers.worker_progress import MADE, SAMPLE, WorkerProgress
from penstock.pipelines import imagenet_eval, imagenet_train
from penstock.pipelines.native.rows import ROW
from penstock.pipelines.spec import ImagePipeline

# Whether rows are filled or left as tasks for DALI, which does not report repairs.
ROWS: dict[str, Any] = {"make": Producer, "on_repaired": "count"}
TASKS: dict[str, Any] = {"make": CropTaskProducer, "on_repaired": "ignore"}
KINDS = pytest.mark.parametrize("kind", [ROWS, TASKS], ids=["rows", "tasks"])


@pytest.fixture(autouse=True)
def _built(monkeypatch: pytest.MonkeyPatch) -> None:
    library = native()
    monkeypatch.setattr(native_rows, "native_library", lambda: library)


@pytest.fixture(scope="module")
def odd_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus of odd images among sound photos, shuffled: 64 refused images in a row refuse the data set."""
    root = write_folder(tmp_path_factory.mktemp("native") / "odd", 100)
    images = [image for image in corpus() if len(image.data) < 60_000]
    random.Random(4).shuffle(images)
    for number, image in enumerate(images):
        (root / f"class{number % 2}" / f"odd{number:04d}.jpg").write_bytes(image.data)
    return root


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("native") / "photos", 70)


@pytest.fixture(scope="module", params=SERVED_ENCODINGS)
def odd_cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Hdf5Cache:
    return open_cache_of_odd_and_sound(tmp_path_factory.mktemp("cache"), SERVED_ENCODINGS[request.param])


PIPELINES = {
    "crops": imagenet_train(32),
    "upright crops": imagenet_train(32, exif="apply"),
    "whole, upright": ImagePipeline(crop="full", size=(40, 24), flip=0.0, exif="apply"),
    "large": imagenet_train(160),
    "few pixels": imagenet_train(32, max_pixels=6000),
}


@pytest.mark.parametrize("pipeline", [name for name in PIPELINES if name != "large"])
@KINDS
def test_odd_images_are_served_as_by_python(odd_folder: Path, pipeline: str, kind: dict[str, Any]) -> None:
    source = ImageFolder(odd_folder)
    made = check_both(source, -(-len(source) // BATCH), at_least=60, pipeline=PIPELINES[pipeline], **kind)
    assert len(made.codes) >= 5


@pytest.mark.parametrize("crop", ["center", "letterbox"])
def test_odd_images_that_are_resized_first_are_served_as_by_python(
    odd_folder: Path, odd_cache: Hdf5Cache, crop: Any
) -> None:
    pipeline = imagenet_eval((32, 40), crop=crop, resize_first=True, exif="apply", interpolation="bicubic")
    for source in (ImageFolder(odd_folder), odd_cache):
        check_both(source, 9, at_least=60, pipeline=pipeline)


def test_an_image_that_is_too_long_after_its_resize_is_bad_on_both_paths(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "photos", 20)
    for number, sides in enumerate(((2, 9000), (8000, 1))):
        (root / "class0" / f"long{number}.jpg").write_bytes(jpeg(textured(*sides)))
    pipeline = imagenet_eval(224, resize_first=True)
    made = check_both(ImageFolder(root), 2, at_least=20, pipeline=pipeline, substitute=False)
    assert [entry.cause[:24] for entry in made.bad] == ["the whole image of 9000x", "the whole image of 1x800"]
    assert made.codes == {"E-BOMB"}
    check_both(ImageFolder(root), 2, at_least=22, pipeline=imagenet_eval(8, resize_first=True))


@pytest.mark.parametrize(("pipeline", "on_repaired"), [("large", "count"), ("crops", "replace")])
def test_large_and_replaced_images_are_served_as_by_python(odd_folder: Path, pipeline: str, on_repaired: str) -> None:
    source = ImageFolder(odd_folder)
    batches = -(-len(source) // BATCH)
    made = check_both(source, batches, at_least=60, pipeline=PIPELINES[pipeline], on_repaired=on_repaired)
    assert len(made.codes) >= 5


@pytest.mark.parametrize("on_repaired", ["count", "replace"])
def test_progressive_images_are_served_natively_as_by_python(tmp_path: Path, on_repaired: str) -> None:
    write_folder(tmp_path, 24, classes=1)
    for number, path in enumerate(sorted(tmp_path.glob("*/*.jpg"))):
        data = jp.insert(
            jpeg(textured(61 + number, 83), progressive=True, subsampling=number % 3), exif_segment(number % 8 + 1)
        )
        path.write_bytes(cut(data, 0.7) if number in (3, 8) else data)
    pipeline = imagenet_train(32, exif="apply")
    made = check_both(open_source(tmp_path), batches=2, at_least=22, pipeline=pipeline, on_repaired=on_repaired)
    assert {entry.sample for entry in made.bad} == {3, 8}
    settings = settings_of(open_source(tmp_path), pipeline=pipeline, decoder="native")
    assert suits_threads(settings, ProcessOptions())


def test_evaluation_pads_the_same_rows(odd_folder: Path) -> None:
    source = ImageFolder(odd_folder)
    check_both(source, -(-len(source) // BATCH), at_least=60, pipeline=imagenet_eval(32), evaluation=True)


@pytest.mark.parametrize(("kind", "exif"), [(ROWS, "ignore"), (ROWS, "apply"), (TASKS, "apply")])
def test_caches_are_served_as_by_python(odd_cache: Hdf5Cache, kind: dict[str, Any], exif: str) -> None:
    made = check_both(odd_cache, 9, at_least=60, pipeline=imagenet_train(32, exif=exif), **kind)
    assert made.coded == ({odd_cache.about[0].coded.kind == "jpeg"} if kind is TASKS else set())
    check_both(odd_cache, 3, at_least=10, pipeline=ImagePipeline(crop="full", size=(40, 24), exif=exif), **kind)


def test_a_cache_of_shards_is_served_as_by_python(tmp_path: Path, photos: Path) -> None:
    build_cache(open_source(photos), tmp_path / "set", shards=3, workers=0)
    cache = open_cache(tmp_path / "set")
    assert len(cache.files) == 3
    check_both(cache, 5, at_least=70)


@KINDS
def test_damage_in_a_cache_is_reported_as_by_python(tmp_path: Path, photos: Path, kind: dict[str, Any]) -> None:
    """Python reads whole images: it also finds damage outside the crops."""
    cache = open_damaged_cache(photos, tmp_path / "damaged.h5")
    make, more = kind["make"], {"substitute": False, "on_repaired": kind["on_repaired"]}
    made = Made(make, settings_of(cache, **more), 10)
    python = Made(make, settings_of(cache, decoder="simplejpeg", **more), 10)
    assert made.codes == python.codes == {"E-CACHE"}
    assert made.native >= 60
    assert {entry.sample for entry in made.bad} <= {entry.sample for entry in python.bad}


def test_a_record_with_a_wrong_size_allocates_no_memory(tmp_path: Path, photos: Path) -> None:
    cache = open_cache(build_odd_cache(photos, tmp_path / "cache.h5", Encoding()))
    made = native_rows.native_rows(cache, imagenet_train(32), "auto")
    assert made is not None
    stage, rows = made.stage, np.zeros(1, ROW)
    names = cache.locate(np.array([0]), rows)
    rows["size"] = 1 << 45
    assert stage.load(rows, names)
    rows["window"] = (0, 0, 9, 9)
    images = np.zeros((1, 32, 32, 3), np.uint8)
    assert stage.fill(to_images(rows, images), images)
    assert rows["result"] == 0


@pytest.mark.parametrize("channels", [1, 3])
@KINDS
def test_pixels_in_memory_are_served_as_by_python(channels: int, kind: dict[str, Any]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 50, 37, channels), np.uint8)
    made = check_both(ArraySource(images, np.arange(40)), at_least=88 if channels == 3 else 0, **kind)
    assert made.coded == ({False} if kind is TASKS else set())


@KINDS
def test_a_file_changed_since_the_scan_is_reported_as_by_python(tmp_path: Path, kind: dict[str, Any]) -> None:
    folder = write_folder(tmp_path / "photos", 30)
    source = ImageFolder(folder)
    files = sorted(folder.rglob("*.jpg"))
    os.utime(files[0], ns=(1, 1))
    files[5].unlink()
    files[9].write_bytes(photo(3) + b"more")
    assert check_both(source, 2, at_least=16, **kind).codes == {"E-CHANGED", "E-MISSING"}


def test_a_forged_index_reads_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest of a saved index protects against damage, not against forgery."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = ImageFolder(write_folder(tmp_path / "photos", 30))
    index = source.samples
    for name, at, values in (  # the sizes are too many bytes for a batch
        ("container_offsets", 5, [1 << 40, (1 << 40) + 9]),
        ("container_offsets", 5, [2**64 - 2**32, 2**64 - 2**32 + 9]),
        ("container_offsets", 30, [1 << 33]),
        ("folder_offsets", 1, [1 << 41]),
        ("container_sizes", 0, [1 << 29] * 30),
    ):
        column = index._columns[name].astype("<u8")
        column[at : at + len(values)] = values
        with (tmp_path / "lies.index").open("wb") as file:
            Samples.write(file, index.header, {**index._columns, name: column})
        source.samples = Samples(os.fsencode(tmp_path / "lies.index"))
        check_both(source, 2, at_least=0)


def test_the_limit_on_file_sizes_is_applied(photos: Path) -> None:
    sizes = sorted(path.stat().st_size for path in photos.rglob("*.jpg"))
    assert check_both(ImageFolder(photos, max_file_bytes=sizes[35]), 4, at_least=16).codes == {"E-BOMB"}


@KINDS
@pytest.mark.parametrize("exif", ["ignore", "apply"])
def test_rows_contain_the_exif_orientation_where_boxes_need_it(tmp_path: Path, kind: dict[str, Any], exif: str) -> None:
    """The library reads it, except in odd blocks, where Python makes the photos; without boxes it is not read."""
    write_folder(tmp_path, 40)
    paths = sorted(tmp_path.rglob("*.jpg"))
    blocks = [exif_segment(turn) for turn in range(1, 9)] + [jp.segment(jp.APP1, b"http:" + exif_segment(6)[4:])]
    for path, block in zip(paths, blocks, strict=False):
        path.write_bytes(jp.insert(path.read_bytes(), block))
    source = with_fields(tmp_path, boxes=Boxes([[[0, 0, 2, 2]]] * 40))
    options = {**kind, "pipeline": imagenet_train(32, exif=exif)}
    made = check_both(source, 5, at_least=20, **options)
    found = np.concatenate([np.frombuffer(rows, BATCH_ROW) for _, _, rows, _, _ in made.batches])
    turns = dict(enumerate([*range(1, 9), 6]))
    assert {index: exif for index, exif in found[["index", "exif"]].tolist() if index >= 0} == {
        index: turns.get(index, 1) for index in range(40)
    }
    plain = check_both(ImageFolder(tmp_path), 5, at_least=20, **options)
    whole = np.concatenate([np.frombuffer(rows, BATCH_ROW) for _, _, rows, _, _ in plain.batches])
    assert whole["exif"].any() == (exif == "apply")
    producer = kind["make"](settings_of(source, pipeline=options["pipeline"], on_repaired="ignore"))
    python = 0
    for number in range(5):
        pixels, rows = np.zeros((BATCH, 32, 32, 3), np.uint8), np.zeros(BATCH, BATCH_ROW)
        python += len(producer.produce(Cursor(0, number * BATCH), pixels.reshape(-1), rows, lambda sample: None).left)
    assert python <= 9 if kind is TASKS else python == 1


@KINDS
def test_a_stale_batch_is_abandoned_and_progress_is_recorded(photos: Path, kind: dict[str, Any]) -> None:
    settings = make_planner(ImageFolder(photos), {"batch_size": BATCH}, on_repaired=kind["on_repaired"])
    producer, progress = kind["make"](settings), WorkerProgress(1, shared=False)
    pixels, rows = np.zeros((BATCH, 16, 16, 3), np.uint8), np.zeros(BATCH, BATCH_ROW)
    wanted = progress.addresses(0, progress.generation)
    made = producer.produce(Cursor(0, 0), pixels.reshape(-1), rows, lambda sample: None, wanted)
    assert progress.table[0, SAMPLE] == rows["index"][-1]
    assert progress.table[0, MADE] == 0
    assert len(made.tasks) == (BATCH if kind is TASKS else 0)
    progress.next_generation()
    with pytest.raises(Aborted):
        producer.produce(Cursor(0, 0), pixels.reshape(-1), rows, lambda sample: None, wanted)


def test_parts_may_be_made_in_any_order(tmp_path: Path) -> None:
    """A thread may start with a part that is only padding of a short batch; bad rows are numbered in the batch."""
    for path in sorted(write_folder(tmp_path, 70).rglob("*.jpg"))[::3]:
        path.write_bytes(path.read_bytes()[:300])
    order = {"batch_size": 4 * 50, "drop_last": False}
    settings, made = make_planner(ImageFolder(tmp_path), order, substitute=True), []
    for parts in ((0,), (3, 0, 2, 1), (1, 2, 3, 0)):
        size, producer = settings.schedule.batch_size, Producer(settings)
        pixels, rows = np.full((size, *settings.pipeline.size, 3), 77, np.uint8), np.zeros(size, BATCH_ROW)
        bad: dict[int, BadSample] = {}
        for part in parts:
            done = producer.produce(Cursor(0, 0), pixels.reshape(-1), rows, lambda _: None, part=(part, len(parts)))
            bad |= {entry.row: entry for entry in (*done.in_batch(done.bad), *done.in_batch(done.repaired))}
        made.append((pixels.tobytes(), rows.tobytes(), bad))
    assert len(made[0][2]) >= 20
    assert made[0] == made[1] == made[2]


def test_a_source_with_its_own_read_method_is_not_read_natively(photos: Path) -> None:
    class Grey(ImageFolder):
        def read(self, index: int) -> bytes:
            return photo(index % 3)

    class Moved(ImageFolder):
        def path(self, index: int) -> bytes:
            return super().path(0)

    class Wrapper:
        def __getattr__(self, name: str) -> Any:
            return getattr(source, name)

    source, patched = ImageFolder(photos), ImageFolder(photos)
    patched.read = lambda index: photo(index % 3)  # type: ignore[method-assign]
    assert is_located(source)
    for other in (Grey(photos), Moved(photos), patched, Wrapper()):
        assert not is_located(other)
    assert native_rows.native_rows(Grey(photos), imagenet_train(32), "auto") is None
    for decoder, resample in (("pillow", "torch"), ("simplejpeg", "torch"), ("auto", "pillow")):
        assert native_rows.native_rows(source, imagenet_train(32, resample=resample), decoder) is None
    assert native_rows.native_rows(source, imagenet_train(32), "native") is not None


def test_without_the_library_the_python_path_serves(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_rows, "native_library", lambda: None)
    assert native_rows.native_rows(ImageFolder(photos), imagenet_train(32), "auto") is None
