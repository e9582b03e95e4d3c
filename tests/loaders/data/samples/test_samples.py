"""The index of samples: round trip, damaged files, size for many images."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from array import array
from pathlib import Path

import numpy as np
import pytest

from penstock.loaders.data.samples.file_stats import is_unchanged
from penstock.loaders.data.samples.samples import Samples
from penstock.loaders.data.samples.samples_writer import FOLDER_RULES, ContainerTable, SamplesWriter
from penstock.loaders.data.samples.version import Container, Version
from penstock.loaders.system import saved_columns
from penstock.loaders.system.saved_columns import DIGEST_BYTES, DamagedIndexError

ROOT = b"/data/\xff odd\nroot"


def table(*files: tuple[bytes, int, int, int]) -> ContainerTable:
    found = ContainerTable()
    for file in files:
        found.add(*file)
    return found


def example_builder(**changes: int) -> SamplesWriter:
    builder = SamplesWriter(root=ROOT, rules=FOLDER_RULES)
    builder.left_out.add("hidden", b".a", 3)
    for name in (b"ant", b"", b"b\xe9"):  # the middle class is empty
        builder.classes.append(name)
    builder.add_folder(b"", 0, (10, 11, 1))
    builder.add_folder(b"ant", 0, (-20, 0, 2))
    builder.add_folder(b"ant/deep", 0, (30, 0, 2**64 - 1))
    builder.add_folder(b"b\xe9", 2, (40, 0, 4))
    builder.add_files(table((b"ant/deep/\n.jpg", 2, changes.get("size", 200), -6), (b"ant/a.jpg", 1, 100, 5)))
    builder.add_files(table((b"b\xe9/\xff.png", 3, 0, changes.get("mtime_ns", 7))))
    return builder


def write(builder: SamplesWriter, path: Path) -> Samples:
    with path.open("wb") as file:
        builder.write(file)
    return Samples(os.fsencode(path))


def test_an_index_is_read_back_as_written(tmp_path: Path) -> None:
    index = write(example_builder(), tmp_path / "index")
    assert [index.container_name(i) for i in range(len(index))] == [b"ant/a.jpg", b"ant/deep/\n.jpg", b"b\xe9/\xff.png"]
    assert [index.folder(i) for i in range(index.num_folders)] == [b"", b"ant", b"ant/deep", b"b\xe9"]
    assert index.sizes.tolist() == [100, 200, 0]
    assert index.versions.tolist() == [5, -6, 7]
    assert index.labels_of(np.array([2, 0, 1, 2])).tolist() == [2, 0, 0, 2]
    assert index.labels_of(np.array([0])).dtype == np.int64
    assert index.classes == (b"ant", b"", b"b\xe9")
    assert index.class_counts.tolist() == [2, 0, 1]
    assert [stamps for _, stamps in index.folder_stamps()] == [(10, 11, 1), (-20, 0, 2), (30, 0, 2**64 - 1), (40, 0, 4)]
    assert (index.root, index.header.num_bytes, index.header.skipped, index.header.flat) == (
        ROOT,
        300,
        {"hidden": 3},
        False,
    )


def test_containers_of_unknown_version_are_never_unchanged(tmp_path: Path) -> None:
    builder = SamplesWriter(kind="tar files")
    for name, etag in ((b"http://host/a.tar", "tag"), (b"http://host/b.tar", None)):
        builder.add_container(Container(name, 9, Version.of_object(etag, None, 9)))
    builder.add_samples([0, 1, 1], [512, 0, 4], [1, 3, 5], [b"x.jpg", b"", b"z"])
    builder.keep(np.array([2, 0]))
    builder.classes, builder.labels = [b"no", b"yes"], np.array([1, 0], np.int32)
    index = builder.save()
    assert [index.place(i) for i in range(2)] == [(1, 4, 5), (0, 512, 1)]
    assert [index.key(i) for i in range(2)] == [b"z", b"x.jpg"]
    assert index.labels_of(np.arange(2)).tolist() == [1, 0]
    assert (index.starts(np.arange(2)).tolist(), index.sizes.tolist(), index.class_counts.tolist()) == (
        [4, 512],
        [5, 1],
        [1, 1],
    )
    assert index.container(0) == Container(b"http://host/a.tar", 9, Version.of_object("tag", None, 9))
    assert index.find_unknown() == 1
    found = array("Q", [9, 9]), array("q", index.versions.tolist())
    assert not is_unchanged(index, stat=lambda prefix, chunks: found)  # an unknown version proves nothing


def test_large_files_and_many_folders_widen_their_columns(tmp_path: Path) -> None:
    builder = SamplesWriter(root=ROOT, rules=FOLDER_RULES)
    builder.classes.append(b"c")
    for number in range(70_000):
        builder.add_folder(b"c/%d" % number, 0)
    builder.add_files(table((b"c/69999/a.jpg", 69_999, 2**40, 0)))
    index = write(builder, tmp_path / "index")
    assert index.container_name(0) == b"c/69999/a.jpg"
    assert index.sizes[0] == 2**40


def test_the_index_cannot_be_written_to(tmp_path: Path) -> None:
    index = write(example_builder(), tmp_path / "index")
    with pytest.raises(ValueError, match="read-only"):
        index.class_counts[0] = 9


def test_fingerprints_differ_for_names_that_join_to_the_same_text(tmp_path: Path) -> None:
    prints = set()
    for number, names in enumerate([(b"ab", b"c"), (b"a", b"bc")]):
        builder = SamplesWriter(root=ROOT, rules=FOLDER_RULES)
        builder.classes.append(b".")
        builder.add_folder(b"", 0)
        builder.add_files(table(*((name, 0, 1, 1) for name in names)))
        prints.add(write(builder, tmp_path / str(number)).header.fingerprint)
    assert len(prints) == 2


def test_a_flipped_byte_anywhere_is_detected(tmp_path: Path) -> None:
    write(example_builder(), tmp_path / "index")
    whole = (tmp_path / "index").read_bytes()
    damaged = tmp_path / "damaged"
    for position in (*range(0, len(whole) - DIGEST_BYTES, 29), *range(len(whole) - DIGEST_BYTES, len(whole), 5)):
        damaged.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        with pytest.raises(DamagedIndexError):
            Samples(os.fsencode(damaged))


@pytest.mark.parametrize("verify", [True, False])
def test_a_changed_length_is_detected(tmp_path: Path, verify: bool) -> None:
    write(example_builder(), tmp_path / "index")
    whole = (tmp_path / "index").read_bytes()
    damaged = tmp_path / "damaged"
    # Around the digest, and around numpy's headers and arrays, which begin and end at multiples of 8.
    for length in {*range(0, len(whole), 8), *range(0, len(whole), 61), *range(len(whole) - 3, len(whole))}:
        damaged.write_bytes(whole[:length])
        with pytest.raises(DamagedIndexError):
            Samples(os.fsencode(damaged), verify=verify)
    damaged.write_bytes(whole + b"\0")
    with pytest.raises(DamagedIndexError):
        Samples(os.fsencode(damaged), verify=verify)


def forge(index: Samples, path: Path, header: object = None, **columns: np.ndarray) -> bytes:
    """Write an index with other arrays and a correct digest; return its path."""
    document = {**vars(index.header), **header} if isinstance(header, dict) else header or vars(index.header)
    with path.open("wb") as file:
        Samples.write(file, document, {**index._columns, **columns})
    return os.fsencode(path)


@pytest.mark.parametrize(
    ("header", "columns", "message"),
    [
        (["a list"], {}, "Expected `object`"),
        ({"num_bytes": "300"}, {}, "Expected `int`"),
        ({"format": 2}, {}, "not an index of this version"),
        ({}, {"container_versions": np.zeros(3)}, "array of <f8"),
        ({}, {"container_versions": np.zeros((3, 1), np.int64)}, "array of <i8"),
        ({}, {"container_versions": np.zeros(2, np.int64)}, "differ in length"),
        ({}, {"folder_labels": np.zeros(5, np.int32)}, "differ in length"),
    ],
)
def test_a_forged_index_is_refused_even_with_a_correct_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: object, columns: dict[str, np.ndarray], message: str
) -> None:
    index = write(example_builder(), tmp_path / "index")
    monkeypatch.setattr(saved_columns, "asdict", lambda document: document)
    with pytest.raises(DamagedIndexError, match=message):
        Samples(forge(index, tmp_path / "forged", header, **columns))


@pytest.mark.parametrize("length", [b"30", b"1" + b"0" * 17])
def test_an_array_longer_than_the_file_is_refused(tmp_path: Path, length: bytes) -> None:
    write(example_builder(), tmp_path / "index")
    whole = (tmp_path / "index").read_bytes()[:-DIGEST_BYTES]
    shape = b"(3,), }"
    forged = whole.replace(shape + b" " * (len(length) - 1), b"(%s,), }" % length, 1)
    assert len(forged) == len(whole)
    assert forged != whole
    (tmp_path / "forged").write_bytes(forged + hashlib.blake2b(forged, digest_size=DIGEST_BYTES).digest())
    with pytest.raises(DamagedIndexError, match="not an index of this version"):
        Samples(os.fsencode(tmp_path / "forged"))


def test_a_missing_file_and_another_format_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DamagedIndexError, match="No such file"):
        Samples(os.fsencode(tmp_path / "absent"))
    before = b"penstock index 2" + bytes(1000)  # the start of the format before numpy's
    (tmp_path / "index").write_bytes(before + hashlib.blake2b(before, digest_size=DIGEST_BYTES).digest())
    with pytest.raises(DamagedIndexError, match="not an index of this version"):
        Samples(os.fsencode(tmp_path / "index"))


MANY_IMAGES = """
import os, sys
import numpy as np
import psutil
from penstock.loaders.data.samples.samples import Samples
from penstock.loaders.data.samples.samples_writer import FOLDER_RULES, ContainerTable, SamplesWriter

def resident():
    return psutil.Process().memory_info().rss

def own():  # without pages of the mapped file, which all processes share
    return int(open("/proc/self/status").read().partition("RssAnon:")[2].split()[0]) * 1024

path, NUM_IMAGES = sys.argv[1], 250_000
SamplesWriter(), Samples  # import these and warm up numpy
np.unique(np.linspace(0, 1, 5))
before = resident()
builder = SamplesWriter(root=b'/data', rules=FOLDER_RULES)
root = builder.add_folder(b"", 0)
builder.classes.append(b".")
files = ContainerTable()
for k in range(NUM_IMAGES):
    name = b"ILSVRC2012_%08d.JPEG" % (k * 7_654_321 % 100_000_000)
    files.add(name, root, 110_000 + k, 1_700_000_000_000_000_000 + k)
builder.add_files(files)
del files
with open(path, "wb") as file:
    builder.write(file)
del builder
index = Samples(os.fsencode(path))
assert len(index) == NUM_IMAGES
index.labels_of(np.arange(256)), index.container_name(0)
opened = own()
for step in range(0, len(index), 256):  # touches every page
    index.labels_of(np.arange(step, min(step + 256, len(index))))
    for i in range(step, min(step + 256, len(index)), 8):
        index.container_name(i), index.container(i)
print((resident() - before) / 2**20, (own() - opened) / 2**20, os.path.getsize(path) / 2**20)
"""
# glibc's initial limits; after it has freed a large block it keeps up to 64 MiB for later allocations.
RELEASES_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}


def test_the_index_of_250_000_images_takes_little_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MANY_IMAGES, str(tmp_path / "index")]
    environment = {**os.environ, **RELEASES_MEMORY}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    resident_MiB, worker_MiB, file_MiB = map(float, done.stdout.split())
    assert file_MiB < 11.25  # 45 bytes per image
    assert resident_MiB <= 16
    assert worker_MiB < 0.75
