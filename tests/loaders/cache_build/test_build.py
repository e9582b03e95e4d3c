"""A cache in shards: built by several processes, and readable only when all shards exist."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from photo_folder import photo, write_folder
from stored_images import has_images_of

from penstock.loaders.cache_build.build import BuiltCache, build_cache
from penstock.loaders.cache_build.build_ranks import Ranks, array_place, build_ranks
from penstock.loaders.cache_build.verify import refuse_other_source, verify_cache
from penstock.loaders.data.cache.format import Encoding
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.loaders.data.cache.shards import MANIFEST, ShardSet, read_manifest, write_manifest
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.pipelines.errors import LoaderError

COUNT = 11


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "photos", COUNT)


def build(photos: Path, dest: Path, shards: int = 3, encoding: Encoding | None = None, **options: Any) -> BuiltCache:
    source = ImageFolder(photos, rescan=True)
    return build_cache(source, dest, encoding, shards=shards, **{"workers": 0, **options})


def refused(code: str, *arguments: Any, **options: Any) -> None:
    with pytest.raises(LoaderError) as caught:
        build(*arguments, **options)
    assert caught.value.code == code


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def whole(shards: int) -> list[str]:
    return ["penstock-cache.json", *(f"shard-{n:05d}-of-{shards:05d}.h5" for n in range(shards))]


@pytest.mark.parametrize("shards", [2, 3, COUNT])
def test_a_set_of_shards_serves_the_source(photos: Path, tmp_path: Path, shards: int) -> None:
    built = build(photos, tmp_path / "set", shards)
    assert built.complete
    assert names(tmp_path / "set") == whole(shards)
    assert (tmp_path / "set").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "set").iterdir()} == {0o600}
    cache, source = open_cache(tmp_path / "set"), ImageFolder(photos)
    assert verify_cache(cache).sound
    refuse_other_source(cache, source)
    assert has_images_of(cache, source)
    assert [about.shard for about in cache.about] == [
        [n, shards, n * COUNT // shards, (n + 1) * COUNT // shards] for n in range(shards)
    ]
    known = read_manifest(os.fsencode(tmp_path / "set"))
    assert known == ShardSet.of(cache.about)
    assert sum(known.samples) == COUNT
    assert known.fingerprint == source.fingerprint
    built = build(photos, tmp_path / "set", shards)
    assert [file.built for file in built.files] == [0] * shards


def test_tasks_of_an_array_may_run_one_after_another(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    first = build(photos, folder, 5, ranks=Ranks(1, 2))
    assert not first.complete
    assert [os.path.basename(file.path)[:11] for file in first.files] == [b"shard-00001", b"shard-00003"]
    with pytest.raises(LoaderError, match=r"E-CACHE.*not complete"):
        open_cache(folder)
    again = build(photos, folder, 5, ranks=Ranks(1, 2))
    assert sum(file.built for file in again.files) == 0
    assert build(photos, folder, 5, ranks=Ranks(0, 2)).complete
    assert len(open_cache(folder)) == COUNT
    build(photos, tmp_path / "alone", 5)
    assert [(tmp_path / "alone" / name).read_bytes() for name in whole(5)] == [
        (folder / name).read_bytes() for name in whole(5)
    ]


def test_another_number_of_shards(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    build(photos, folder, 3)
    refused("E-STALE", photos, folder, 4)
    assert names(folder) == whole(3)
    build(photos, folder, 4, replace_stale=True)
    assert names(folder) == whole(4)
    assert verify_cache(open_cache(folder)).sound


def test_a_set_that_is_being_replaced_cannot_be_opened(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    build(photos, folder, 4)
    (photos / "class0" / "new.jpg").write_bytes(photo(30))
    assert not build(photos, folder, 4, replace_stale=True, ranks=Ranks(0, 2)).complete
    with pytest.raises(LoaderError, match=r"E-CACHE.*not complete"):
        open_cache(folder)
    # Half of its shards are from the older source.
    refused("E-STALE", photos, folder, 4, ranks=Ranks(1, 2))
    assert build(photos, folder, 4, replace_stale=True, ranks=Ranks(1, 2)).complete
    assert len(open_cache(folder)) == COUNT + 1


@pytest.mark.parametrize("other", ["notes.txt", "shard-1-of-3.h5", ".hidden"])
def test_a_folder_with_other_files_is_left_alone(photos: Path, tmp_path: Path, other: str) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / other).write_text("mine")
    refused("E-CACHE", photos, folder, replace_stale=True)
    assert names(folder) == [other]


def test_a_file_and_a_folder_do_not_replace_each_other(photos: Path, tmp_path: Path) -> None:
    build(photos, tmp_path / "x.h5", 1)
    refused("E-CACHE", photos, tmp_path / "x.h5", 3, replace_stale=True)
    build(photos, tmp_path / "set", 3)
    refused("E-CACHE", photos, tmp_path / "set", 1, replace_stale=True)
    assert len(open_cache(tmp_path / "x.h5")) == len(open_cache(tmp_path / "set")) == COUNT  # both are left alone


@pytest.mark.parametrize("shards", [0, -1, COUNT + 1])
def test_impossible_numbers_of_shards_are_refused(photos: Path, tmp_path: Path, shards: int) -> None:
    with pytest.raises(ValueError, match=r"shards .* must be from 1 to 11"):
        build(photos, tmp_path / "set", shards)


GOOD = {"schema": 1, "encoding": {}, "fingerprint": "f", "samples": [5, 6], "digests": ["a", "b"]}
WRONG_FIELDS: list[dict[str, Any]] = [
    {"samples": [5]},
    {"digests": [], "samples": []},
    {"schema": 2},
    {"digests": None},
    {"schema": True},
    {"samples": "56"},
    {"samples": [5, 6.0]},
    {"samples": [5, -6]},
    {"samples": {"5": 5, "6": 6}},
    {"digests": "ab"},
    {"digests": ["a", 1]},
    {"encoding": None},
    {"encoding": {"kind": ["raw"]}},
    {"fingerprint": 5},
]
NO_OBJECTS = [b"[" * 100_000, b'{"schema": ' + b"[" * 700 + b"]" * 700 + b"}", b"[]", b"{}", b"\xff"]


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    """Truncated, with a flipped bit anywhere, or with impossible values and a correct digest."""
    folder, path = os.fsencode(tmp_path), tmp_path / MANIFEST.decode()
    good = ShardSet(encoding={}, fingerprint="f", samples=[5, 6], digests=["a", "b"])
    write_manifest(folder, good)
    assert read_manifest(folder) == good
    content = path.read_bytes()
    texts = [json.dumps({**GOOD, **fields}).encode() for fields in WRONG_FIELDS] + NO_OBJECTS
    damaged = [content[:place] for place in range(len(content))]
    damaged += [content[:place] + bytes([byte ^ 1]) + content[place + 1 :] for place, byte in enumerate(content)]
    damaged += [text + b"\n" + hashlib.blake2b(text, digest_size=32).hexdigest().encode() + b"\n" for text in texts]
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(LoaderError, match="E-CACHE"):
            read_manifest(folder)


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, None),
        ({"SLURM_ARRAY_TASK_ID": "3"}, None),
        ({"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "4"}, (3, 4)),
        ({"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "1"}, (2, 4)),
        (
            {
                "SLURM_ARRAY_TASK_ID": "14",
                "SLURM_ARRAY_TASK_COUNT": "3",
                "SLURM_ARRAY_TASK_MIN": "10",
                "SLURM_ARRAY_TASK_STEP": "2",
            },
            (2, 3),
        ),
    ],
)
def test_the_place_in_an_array_is_read_from_the_environment(
    variables: dict[str, str], place: tuple[int, int] | None
) -> None:
    assert array_place(variables) == place


def test_an_array_with_gaps_is_refused_unless_torchrun_sets_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    gapped = {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "1"}
    with pytest.raises(ValueError, match="without gaps"):
        array_place(gapped)
    for name, value in {**gapped, "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    with build_ranks(arrays=True) as ranks:
        assert (ranks.rank, ranks.world_size) == (0, 1)
