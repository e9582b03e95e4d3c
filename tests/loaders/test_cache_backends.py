"""The hdf5 backend: a cache is built once, checked from then on, and serves the stream of the files."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cache_files import Item, write_cache
from folder_trees import settle
from make_planner import make_planner
from native_tests import native
from odd_images import encoded, scene
from photo_folder import photo, write_folder
from stored_images import has_images_of

from penstock.loaders import LoaderError, create_loader
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.cache_build.encode import SampleEncoder
from penstock.loaders.cache_build.verify import refuse_other_source
from penstock.loaders.data.cache import hdf5_cache
from penstock.loaders.data.cache.format import FILE, PIXELS, RECORD, STRIPS, Encoding
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.loaders.data.cache.hdf5_file import CacheFile
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.front.backends import BACKENDS
from penstock.loaders.front.open_source import open_source
from penstock.loaders.front.profile import Profile, save_profile
from penstock.loaders.make import native_rows
from penstock.loaders.run.engine.choose import suits_threads
from penstock.loaders.run.engine.process_engine import ProcessEngine, ProcessOptions
from penstock.loaders.run.engine.thread_engine import ThreadEngine
from penstock.loaders.system.machine import available_cpus
from penstock.pipelines import imagenet_train
from penstock.pipelines.native.library import native_library

NUM_PHOTOS = 40


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "photos", NUM_PHOTOS)


def stream(source: Any, pipeline: Any = None, **settings: Any) -> list[tuple[Any, ...]]:
    defaults = {"batch_size": 8, "dtype": torch.uint8, "seed": 5, "workers": 0}
    seen = []
    with create_loader(source, pipeline=pipeline or imagenet_train(48), **{**defaults, **settings}) as loader:
        for _ in range(2):
            for batch in loader.batches():
                pixels = batch.images.permute(0, 2, 3, 1).contiguous().numpy()
                crcs = [zlib.crc32(image.tobytes()) for image in pixels]
                windows = batch.windows.tolist()
                seen.append((batch.index.tolist(), batch.labels.tolist(), windows, batch.flips.tolist(), crcs))
    return seen


@pytest.mark.parametrize("decoder", ["simplejpeg", "turbojpeg", "pillow"])
def test_a_cache_serves_the_stream_of_the_files(photos: Path, tmp_path: Path, decoder: str) -> None:
    files, cache = stream(photos, decoder=decoder), tmp_path / "photos.h5"
    assert stream(photos, backend="hdf5", cache=cache, decoder=decoder) == files
    for backend, options in (
        ("torch", {"workers": 0}),
        ("torch", {"workers": 2}),
        ("hdf5", {"workers": 3, "workers_are": "threads"}),
        ("hdf5", {"workers": 2, "workers_are": "processes"}),
    ):
        assert stream(cache, backend=backend, decoder=decoder, **options) == files
    kinds = open_cache(cache).records["kind"].tolist()
    assert kinds == [STRIPS if native_library() else FILE] * NUM_PHOTOS


def test_a_state_of_files_loads_only_on_a_lossless_cache(photos: Path, tmp_path: Path) -> None:
    with create_loader(photos, pipeline=imagenet_train(32), batch_size=8, workers=0) as loader:
        batches = loader.batches()
        next(batches)
        state = loader.state_dict()
        rest = [batch.index.tolist() for batch in batches]
    settings = {"backend": "hdf5", "pipeline": imagenet_train(32), "batch_size": 8, "workers": 0}
    with create_loader(photos, cache=tmp_path / "same.h5", **settings) as loader:
        loader.load_state_dict(state)
        assert [batch.index.tolist() for batch in loader.batches()] == rest
    smaller = Encoding(resize=64)
    with (
        create_loader(photos, cache=tmp_path / "small.h5", encoding=smaller, **settings) as loader,
        pytest.raises(LoaderError, match="E-STATE"),
    ):
        loader.load_state_dict(state)


def test_exif_orientation_applies_to_a_cache_as_to_files(tmp_path: Path) -> None:
    from PIL import Image

    folder = tmp_path / "photos" / "class"
    folder.mkdir(parents=True)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        pixels = np.random.default_rng(orientation).integers(0, 256, (12, 9, 3), np.uint8)
        image = Image.fromarray(pixels).resize((90, 120), Image.Resampling.BICUBIC)
        image.save(folder / f"{orientation}.jpg", exif=exif, quality=90)
    for exif in ("ignore", "apply"):
        pipeline = imagenet_train(48, exif=exif)
        files = stream(tmp_path / "photos", pipeline)
        for kind in ("jpeg", "raw"):
            cache = tmp_path / f"{kind}.h5"
            encoding = Encoding(kind=kind)
            assert stream(tmp_path / "photos", pipeline, backend="hdf5", cache=cache, encoding=encoding) == files
    assert open_cache(tmp_path / "jpeg.h5").records["orientation"].tolist() == list(range(1, 9))


def test_the_size_limit_of_the_reader_applies_to_a_cache(photos: Path, tmp_path: Path) -> None:
    cache = tmp_path / "photos.h5"
    stream(photos, backend="hdf5", cache=cache)
    codes = []
    for source in (photos, cache):
        with pytest.raises(LoaderError) as caught:
            stream(source, imagenet_train(32, max_pixels=1000))
        codes.append((caught.value.code, caught.value.sample))
    assert codes[0] == codes[1]
    assert codes[0][0] == "E-BOMB"


@pytest.mark.parametrize("shards", [1, 3])
def test_an_existing_cache_is_opened_once(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    """Opening digests all tables, which takes seconds for millions of images. Leftovers of dead builders go, too."""
    cache = tmp_path / "cache.h5"
    build_cache(open_source(photos), cache, shards=shards, workers=0)
    left = [Path(os.fsdecode(file.path + b".tmp.1")) for file in open_cache(cache).files]
    for folder in left:
        folder.mkdir()
        (folder / "data").write_bytes(b"half of it")
    opened: list[bytes] = []

    class Counted(CacheFile):
        def __init__(self, path: bytes, **options: Any) -> None:
            opened.append(path)
            super().__init__(path, **options)

    monkeypatch.setattr(hdf5_cache, "CacheFile", Counted)
    create_loader(photos, backend="hdf5", cache=cache, batch_size=8, workers=0).close()
    assert len(opened) == len(set(opened)) == shards
    assert not any(folder.exists() for folder in left)


KIND = (
    r"cache '.*photos.h5' is raw, lossy: shorter side 40, PSNR \d+\.\d dB against the source, "
    r"\d+\.\d MB for \d+\.\d MB of images: pass encoding=Encoding\(kind='raw', resize=40, .*\) to confirm"
)


def test_one_overwritten_file_of_many_makes_the_cache_stale(tmp_path: Path) -> None:
    """With more files than are compared when a folder is opened."""
    root, cache = tmp_path / "photos", tmp_path / "photos.h5"
    (root / "c").mkdir(parents=True)
    for number in range(600):
        (root / "c" / f"{number:04d}.jpg").write_bytes(photo(number % 2))
    settle(root)
    source = open_source(root)
    build_cache(source, cache, workers=0)
    create_loader(root, backend="hdf5", cache=cache, batch_size=8, workers=0).close()
    spoilt = root / "c" / "0001.jpg"
    spoilt.write_bytes(spoilt.read_bytes()[::-1])
    for judge in (
        lambda: create_loader(root, backend="hdf5", cache=cache, batch_size=8, workers=0),
        lambda: create_loader(source, backend="hdf5", cache=cache, batch_size=8, workers=0),
        lambda: build_cache(open_source(root), cache, workers=0),
        lambda: build_cache(source, cache, workers=0),
        lambda: refuse_other_source(open_cache(cache), source),
    ):
        with pytest.raises(LoaderError, match=r"E-STALE.*files of the source were modified"):
            judge()
    assert build_cache(source, cache, workers=0, replace_stale=True).files[0].built == 600
    refuse_other_source(open_cache(cache), source)
    assert has_images_of(open_cache(cache), open_source(root))
    (root / "c" / "9999.jpg").write_bytes(photo(1))
    cache.unlink()
    with pytest.raises(LoaderError, match=r"E-CHANGED.*600 images then, 601 now"):
        create_loader(source, backend="hdf5", cache=cache, batch_size=8, workers=0)


def test_an_existing_cache_keeps_its_encoding_by_default(photos: Path, tmp_path: Path) -> None:
    cache = tmp_path / "photos.h5"
    build_cache(open_source(photos), cache, Encoding(kind="raw", resize=40), workers=0)
    asked = Encoding(kind="raw", resize=40)
    stream(photos, backend="hdf5", cache=cache, encoding=asked)
    with pytest.warns(UserWarning, match=KIND) as caught_warnings:  # the default is the encoding of the cache
        stream(photos, backend="hdf5", cache=cache)
    assert [warning.filename for warning in caught_warnings] == [__file__]


def test_a_set_of_shards_is_opened_by_its_folder(photos: Path, tmp_path: Path) -> None:
    build_cache(open_source(photos), tmp_path / "set", workers=0, shards=3)
    assert stream(tmp_path / "set", backend="hdf5", workers=2) == stream(photos)
    assert stream(photos, backend="hdf5", cache=tmp_path / "set") == stream(photos)


def test_arrays_have_caches_too(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), np.uint8)
    arrays = (images, np.arange(40) % 10)
    assert stream(arrays, backend="hdf5", cache=tmp_path / "arrays.h5") == stream(arrays)


def test_workers_are_processes_unless_threads_suit_or_are_requested(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = native()
    monkeypatch.setattr(native_rows, "native_library", lambda: library)
    settings, python = (make_planner(open_source(photos), decoder=name) for name in ("auto", "simplejpeg"))
    for workers, kind, expected in (
        (0, {}, ThreadEngine),
        (1, {}, ThreadEngine),
        (1, {"start_method": "spawn"}, ProcessEngine),
        (2, {"workers_are": "processes"}, ProcessEngine),
        (9, {"workers_are": "threads"}, ThreadEngine),
    ):
        engine = BACKENDS["hdf5"].open_engine(settings, ProcessOptions(workers=workers, **kind))
        assert type(engine) is expected
        assert (engine.name, engine.describe()["workers"]) == ("hdf5", workers)
        engine.close()
    for workers, expected in ((0, ThreadEngine), (1, ProcessEngine)):
        engine = BACKENDS["hdf5"].open_engine(python, ProcessOptions(workers=workers))
        assert type(engine) is expected
        engine.close()


def test_images_that_mostly_need_python_get_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = native()
    monkeypatch.setattr(native_rows, "native_library", lambda: library)
    for number in range(16):
        (tmp_path / f"{number:02d}.jpg").write_bytes(photo(number) if number % 2 else encoded(scene(20, 30), "PNG"))
    settings = make_planner(open_source(tmp_path))
    assert not suits_threads(settings, ProcessOptions())
    for number in range(0, 10, 2):
        (tmp_path / f"{number:02d}.jpg").write_bytes(photo(number))
    assert suits_threads(make_planner(ImageFolder(tmp_path, rescan=True)), ProcessOptions())
    for number in range(16, 48):  # the checked samples are spread over the whole set
        (tmp_path / f"{number:02d}.jpg").write_bytes(encoded(scene(20, 30), "PNG"))
    assert not suits_threads(make_planner(ImageFolder(tmp_path, rescan=True)), ProcessOptions())


def test_a_script_needs_no_main_guard_to_build_its_cache(photos: Path, tmp_path: Path) -> None:
    """A worker that ran the script again would wait for the lock of the build that it works for."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        "from penstock.loaders import create_loader\n"
        "print('once')\n"
        "loader = create_loader(sys.argv[1], backend='hdf5', cache=sys.argv[2], batch_size=8, workers=2)\n"
        "print(len([labels for _, labels in loader]))\n"
    )
    command = [sys.executable, str(script), str(photos), str(tmp_path / "photos.h5")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    messages = [line for line in done.stderr.splitlines() if " of 40 images, " not in line]  # progress, if it is slow
    assert (done.returncode, done.stdout, messages) == (0, "once\n5\n", [])


def test_auto_uses_an_existing_cache(photos: Path, tmp_path: Path) -> None:
    profile, cache = tmp_path / "chosen.json", tmp_path / "photos.h5"

    def backend(source: Any, **options: Any) -> object:
        chosen = {"profile": profile} if profile.exists() else {}
        with create_loader(source, backend="auto", batch_size=8, **chosen, **options) as loader:
            return loader.describe()["backend"]

    assert (backend(photos), backend(photos, cache=cache), backend(cache)) == ("torch", "hdf5", "torch")
    for saved, expected in (("hdf5", ("torch", "hdf5", "hdf5")), ("torch", ("torch", "hdf5", "torch"))):
        save_profile(Profile(backend=saved, workers=0, cpus=available_cpus()), profile)
        assert (backend(photos), backend(photos, cache=cache), backend(cache)) == expected


def test_an_image_too_wide_for_a_jpeg_is_stored_as_pixels(tmp_path: Path) -> None:
    wide = np.arange(70000 * 3, dtype=np.uint32).astype(np.uint8).reshape(1, 70000, 3)
    stored = SampleEncoder(Encoding(quality=90)).encode(wide, 0)
    assert int(stored.record["kind"]) == PIXELS
    assert stored.data[-wide.size :] == wide.tobytes()


def test_a_missing_pillow_is_reported_before_the_build(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "penstock.pipelines.sample.decode_pillow", raising=False)  # nothing imported it
    for name in [name for name in sys.modules if name.partition(".")[0] == "PIL"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(LoaderError, match=r"E-DEPENDENCY.*Pillow"):
        create_loader(photos, backend="hdf5", cache=tmp_path / "x.h5", batch_size=8)
    assert not list(tmp_path.glob("x.h5*"))


@pytest.mark.parametrize("decoder", ["simplejpeg", "turbojpeg", "pillow"])
def test_a_header_that_contradicts_its_record_is_refused_by_every_decoder(
    photos: Path, tmp_path: Path, decoder: str
) -> None:
    """The digests of a crafted file are correct, but its JPEG header declares a larger size than its record."""
    encoder = SampleEncoder(Encoding())
    data = sorted(photos.rglob("*.jpg"))[0].read_bytes()
    stored = encoder.encode(data, 0)
    names = ("kind", "width", "height", "orientation", *RECORD.names[-5:])
    fields = {name: int(stored.record[name]) for name in names}
    size = int(stored.record["head"])
    head, body = stored.data[:size], stored.data[size:]
    table = size - len(head[head.index(b"\xff\xd8\xff") :])
    at = table + fields["height_offset"]
    decoy = b"\xff\xef\x00\x0b" + head[at - 3 : at + 6]  # the record then points to this
    start = head[:table] + head[table : table + 2]
    crafted = start + decoy + head[table + 2 : at] + b"\x4e\x20\x4e\x20" + head[at + 4 :]
    item = Item({**fields, "height_offset": 2 + 4 + 3}, crafted, body)
    cache = write_cache(tmp_path / "crafted.h5", [item] * 8, encoding={**asdict(Encoding())})
    with pytest.raises(LoaderError, match=r"E-BOMB.*20000x20000 pixels declared"):
        stream(cache, decoder=decoder)
