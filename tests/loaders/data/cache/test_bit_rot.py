"""Changed bytes in a cache: the reader reports them or serves the same images."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from bit_rot import ENCODINGS, REPORTED, SAME, SILENT, Flipper, build_odd_cache, outcome_of, write_odd_folder
from folder_trees import swap_names
from photo_folder import photo, write_folder

from penstock.loaders import LoaderError, create_loader
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.cache_build.verify import verify_cache
from penstock.loaders.data.cache.format import FILE, PIXELS, STRIPS, Encoding
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.loaders.data.files.arrays import ArraySource
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.pipelines import imagenet_eval

PAGE = 4096


@pytest.fixture(scope="module")
def odd_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_odd_folder(tmp_path_factory.mktemp("odd"))


@pytest.fixture(scope="module", params=ENCODINGS)
def sound(request: pytest.FixtureRequest, odd_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of images of all kinds; each test works on a copy."""
    return build_odd_cache(odd_images, tmp_path_factory.mktemp("cache") / "x.h5", ENCODINGS[request.param])


@pytest.fixture
def flipper(sound: Path, tmp_path: Path) -> Flipper:
    return Flipper(Path(shutil.copy(sound, tmp_path)))


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `photos` and their cache `x.h5`."""
    folder = tmp_path_factory.mktemp("cached")
    build_cache(ImageFolder(write_folder(folder / "photos", 12)), folder / "x.h5", workers=0)
    return folder


# ---- bits


def test_the_caches_contain_every_kind(request: pytest.FixtureRequest, sound: Path) -> None:
    """Otherwise the other tests would prove little."""
    name, records = request.node.callspec.params["sound"], open_cache(sound).records
    assert set(records["kind"].tolist()) == {PIXELS if name == "raw" else STRIPS, FILE}
    whole = records[records["kind"] == STRIPS]
    sampled = set(zip(whole["mcu_width"].tolist(), whole["mcu_height"].tolist(), strict=True))
    assert sampled >= ({(8, 8), (16, 8), (16, 16), (8, 16), (32, 8)} if name == "jpeg" else set())


def test_flips_in_the_images_are_reported(flipper: Flipper) -> None:
    outcomes = flipper.payload_flips(100, random.Random(1))
    assert outcomes == {REPORTED: 100}
    assert flipper.outcome() == SAME


def test_flips_in_the_tables_are_reported(flipper: Flipper) -> None:
    outcomes = flipper.table_flips(60, random.Random(2))
    assert set(outcomes) == {REPORTED, SAME}
    assert outcomes[REPORTED] > 30
    assert flipper.outcome() == SAME


def test_a_silent_flip_would_be_seen(flipper: Flipper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: without the CRCs, flipped bits change pixels."""
    monkeypatch.setattr("penstock.loaders.data.cache.hdf5_cache._check_crc", lambda data, before, expected: data)
    draw, outcomes = random.Random(3), set()
    for _ in range(20):
        with flipper.flipped(draw.choice(flipper.payload), draw.randrange(8)):
            outcomes.add(flipper.outcome())
    assert SILENT in outcomes


def test_a_loader_names_or_replaces_the_damaged_image(cached: Path, tmp_path: Path) -> None:
    flipper = Flipper(Path(shutil.copy(cached / "x.h5", tmp_path)))
    settings = {"pipeline": imagenet_eval(32), "batch_size": 4, "dtype": torch.uint8, "workers": 0}
    draw = random.Random(8)
    for index in range(0, len(flipper.records), 3):
        record = flipper.records[index]
        at = flipper.payload.start + record.offset + draw.randrange(record.head)  # every crop needs the head
        with flipper.flipped(at, draw.randrange(8)):
            report = verify_cache(open_cache(flipper.path), workers=1)
            assert [(found.sample, "CRC" in found.cause) for found in report.damaged] == [(index, True)]
            with create_loader(flipper.path, **settings) as loader, pytest.raises(LoaderError) as caught:
                list(loader)
            assert (caught.value.code, caught.value.exit_code, caught.value.sample) == ("E-CACHE", 4, index)
            with create_loader(flipper.path, on_bad_sample="replace", max_bad=1, shuffle=True, **settings) as loader:
                list(loader)
                assert [(bad.sample, bad.code) for bad in loader.ledger().bad] == [(index, "E-CACHE")]


# ---- bytes


def damages(size: int) -> Iterator[tuple[set[str], Callable[[bytearray], object]]]:
    """Yield larger damages to a file of `size` bytes, each with its allowed outcomes."""
    draw = random.Random(4)
    for cut in (0, 1, 8, PAGE - 1, PAGE, size - 1, size - 32, *(draw.randrange(size) for _ in range(6))):
        yield {REPORTED}, lambda content, cut=cut: content.__delitem__(slice(cut, None))
    for at in (draw.randrange(size - 600) for _ in range(5)):
        yield {REPORTED}, lambda content, at=at: content.__delitem__(slice(at, at + 512))
        yield {REPORTED}, lambda content, at=at: content.insert(at, 0)
    for more in (b"\0", b"x", bytes(PAGE)):
        yield {SAME, REPORTED}, lambda content, more=more: content.extend(more)
    starts = list(range(0, size, PAGE))
    for start in draw.sample(starts, min(15, len(starts))) + starts[:2] + starts[-6:]:
        end = min(start + PAGE, size)  # a file system returns zeros for a lost block
        yield (
            {SAME, REPORTED},
            lambda content, start=start, end=end: content.__setitem__(slice(start, end), bytes(end - start)),
        )


def test_cuts_gaps_insertions_and_lost_pages_are_reported(flipper: Flipper, tmp_path: Path) -> None:
    other, outcomes = tmp_path / "damaged.h5", []
    for expected, change in damages(flipper.path.stat().st_size):
        content = bytearray(flipper.path.read_bytes())
        change(content)
        other.write_bytes(content)
        other.chmod(0o600)
        outcomes.append(outcome_of(other, flipper.everything))
        assert outcomes[-1] in expected
    assert outcomes.count(REPORTED) > 30


def test_swapped_images_are_reported(tmp_path: Path) -> None:
    """The images have the same size: only their bytes differ."""
    pixels = np.random.default_rng(0).integers(0, 256, (6, 20, 30, 3), np.uint8)
    path = tmp_path / "x.h5"
    build_cache(ArraySource(pixels, np.zeros(6, np.int64)), path, Encoding(kind="raw"), workers=0)
    flipper = Flipper(path)
    size = flipper.records[0].length
    one, other = (flipper.payload.start + flipper.records[index].offset for index in (1, 4))
    content = path.read_bytes()
    assert flipper.outcome() == SAME
    first, second = content[one : one + size], content[other : other + size]
    path.write_bytes(content[:one] + second + content[one + size : other] + first + content[other + size :])
    assert flipper.outcome() == REPORTED


def test_swapped_shards_are_reported(tmp_path: Path) -> None:
    """Within one set, and between sets of two folders with the same number of images and the same names."""
    write_folder(tmp_path / "a", 12)
    for path in sorted((tmp_path / "a").rglob("*.jpg")):
        copy = tmp_path / "b" / path.relative_to(tmp_path / "a")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(photo(100 + int(path.stem)))
    for name in "ab":
        build_cache(ImageFolder(tmp_path / name), tmp_path / f"set-{name}", workers=0, shards=3)
    first, second, third = sorted((tmp_path / "set-a").glob("shard-*"))
    for one, other in ((first, third), (second, tmp_path / "set-b" / second.name)):
        assert len(open_cache(tmp_path / "set-a")) == 12
        swap_names(one, other)
        with pytest.raises(LoaderError, match=r"E-CACHE.*another set") as caught:
            open_cache(tmp_path / "set-a")
        assert caught.value.exit_code == 4
        swap_names(one, other)
