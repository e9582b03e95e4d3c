"""Members that form a sample, compared with webdataset's documented rules; which of them is the image."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest
from tar_files import END, entry, webdataset_samples, write_tar

from penstock.loaders.remote.object_store import ObjectStore
from penstock.loaders.tars.tar_headers import Member, TarReader, open_tar
from penstock.loaders.tars.tar_samples import Sample, choose_image, group_members


def group(path: Path) -> tuple[list[tuple[bytes, Sample]], Counter[str]]:
    with open_tar(os.fsencode(path), ObjectStore()) as tar:
        reader = TarReader(tar)
        return list(group_members(reader)), +reader.skipped


def as_webdataset(path: Path) -> list[dict[str, bytes]]:
    data = path.read_bytes()
    samples = []
    for key, sample in group(path)[0]:
        contents = {os.fsdecode(suffix): data[m.start : m.start + m.size] for suffix, m in sample.items()}
        samples.append({"__key__": key, **contents})
    return samples


def test_samples_are_those_of_webdataset(tmp_path: Path) -> None:
    files = [
        *[
            (f"train/n01/{i:04d}.{suffix}", b"%d %s" % (i, suffix.encode()))
            for i in range(5)
            for suffix in ("cls", "JPG", "json")
        ],
        *[("a.b/c.seg.png", b"1"), ("a.b/c.png", b"2"), ("a.b/d.PNG", b"3")],
        *[("README", b""), ("x.jpg", b"4"), ("LICENSE", b"of another sample"), ("x.cls", b"5")],
        *[("y.jpg", b"6"), ("z.jpg", b"7"), ("y.cls", b"8")],  # y again is a sample of its own
        *[
            ("__meta__", b"no sample"),
            (b"\xff\xe9.jpg", b"9"),
            ("k" * 300 + ".jpg", b"10"),
            ("k" * 300 + ".cls", b"11"),
        ],
    ]
    path = write_tar(tmp_path / "x.tar", files)
    ours = as_webdataset(path)
    assert ours == list(webdataset_samples(path))
    assert [sample["__key__"] for sample in ours][5:10] == [b"a.b/c", b"a.b/d", b"x", b"y", b"z"]
    assert group(path)[1] == {"other suffix": 3}


def test_random_samples_are_those_of_webdataset(tmp_path: Path) -> None:
    random_ = random.Random(3)
    suffixes = ["jpg", "PNG", "cls", "seg.png", "json", "txt", "a.b.c"]
    for trial in range(15):
        files: list[tuple[str, bytes]] = []
        previous = ""
        for number in range(random_.randrange(1, 30)):
            key = random_.choice(["", "a/", "a/b.c/", "./"]) + random_.choice(["k", f"k{number}", f"n-{number}"])
            if key != previous:  # webdataset refuses a suffix that comes again within a sample
                files += [(f"{key}.{s}", s.encode()) for s in random_.sample(suffixes, random_.randrange(1, 6))]
            previous = key
        path = write_tar(tmp_path / f"{trial}.tar", files)
        assert as_webdataset(path) == list(webdataset_samples(path)), trial


def test_a_suffix_that_comes_again_begins_a_sample(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [("a.jpg", b"1"), ("a.cls", b"1"), ("a.jpg", b"2"), ("a.cls", b"2")])
    assert [sorted(sample) for _, sample in group(path)[0]] == [[b"cls", b"jpg"]] * 2


def test_hidden_files_belong_to_no_sample(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    names = [
        b"._a.jpg",
        b"a.jpg",
        b"._a.cls",
        b"a.cls",
        b"b/.hidden.jpg",
        b"__MACOSX/b/c.jpg",
        b".git/x.jpg",
        b"./b/c.jpg",
    ]
    path.write_bytes(b"".join(map(entry, names)) + END)
    samples, skipped = group(path)
    assert [(key, sorted(sample)) for key, sample in samples] == [(b"a", [b"cls", b"jpg"]), (b"./b/c", [b"jpg"])]
    assert skipped == {"hidden": 5}


@pytest.mark.parametrize(
    ("suffixes", "wanted", "chosen"),
    [
        ("cls jpg json", "", "jpg"),
        ("png jpg", "", "jpg"),
        ("png jpeg", "", "jpeg"),
        ("png webp bmp", "", "webp"),
        ("webp jpe", "", "jpe"),
        ("gif bmp png", "", "gif"),
        ("mask.jpg png", "", "png"),
        ("seg.png left.jpg", "", "left.jpg"),
        ("0001.png 0002.png", "", "0001.png"),
        ("png jpg", "png", "png"),
        ("left.jpg right.jpg", "right.jpg", "right.jpg"),
        ("png webp", "jpg png", "png"),
        ("jpg", "png", None),
        ("cls txt ppm npy jpgs", "", None),
    ],
)
def test_the_image_of_a_sample(suffixes: str, wanted: str, chosen: str | None) -> None:
    sample = {suffix: Member(suffix, 0, 1) for suffix in suffixes.encode().split()}
    found = choose_image(sample, wanted.encode().split())
    assert (None if found is None else found.name.decode()) == chosen
