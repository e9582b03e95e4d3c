"""Lists of members next to tars: the index is the same, with few headers read, or the list is not used and why."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from range_server import serve_ranges
from tar_files import BLOCK, END, entry, write_tar

from penstock.loaders import open_source
from penstock.loaders.data.tars import member_list

Members = dict[str, tuple[int, int]]


def places(path: Path) -> Members:
    """Return the positions and sizes of the regular files in a tar."""
    with tarfile.open(path) as tar:
        return {member.name: (member.offset_data, member.size) for member in tar if member.isreg()}


def write_dali(path: Path, members: Members, version: str = "v1.2") -> None:
    """Write a list as wds2idx does."""
    samples: dict[str, list[str]] = {}
    for name, (start, size) in members.items():
        stem, _, suffix = name.partition(".")
        samples.setdefault(stem, []).append(f"{suffix} {start} {size} {name}")
    lines = [f"{version} {len(samples)}", *map(" ".join, samples.values())]
    path.with_suffix(".idx").write_text("\n".join(lines) + "\n")


def write_json(path: Path, members: Members, size: str = "size", **more: Any) -> None:
    """Write a list as hfutils does; as webshart does with size="length"."""
    files = {name: {"offset": start, size: count, "sha256": "0"} for name, (start, count) in members.items()}
    path.with_suffix(".json").write_text(json.dumps({"files": files, "hash": "0", **more}))


def digest(path: Path, **options: Any) -> tuple[str, list[str]]:
    """Return the digest of an index made now, and the warnings about lists."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        source = open_source(path, rescan=True, **options)
    return source.content, [str(warning.message) for warning in caught if "list of members" in str(warning.message)]  # type: ignore[attr-defined]


def samples(count: int, size: int = 3000) -> list[tuple[str | bytes, bytes]]:
    return [(f"d/{i:03d}.{s}", b"%d" % (i % 3) if s == "cls" else bytes(size)) for i in range(count) for s in SUFFIXES]


SUFFIXES = ("cls", "jpg", "txt")


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_an_index_by_a_list_equals_one_by_headers(tmp_path: Path, form: int) -> None:
    draw = random.Random(form)
    for trial in range(12):
        files = samples(draw.randrange(1, 20))
        if trial % 3 == 1 and form != tarfile.USTAR_FORMAT:
            files.insert(draw.randrange(len(files)), ("l" * 120 + ".jpg", b""))
            files.append(("l" * 120 + ".cls", b"0"))
        path = write_tar(tmp_path / "a.tar", files, form)
        if trial % 2:  # a folder and a link, which are counted
            others = entry(b"f/", kind=b"5") + entry(b"x.jpg", kind=b"2", linkname=b"y")
            path.write_bytes(others + path.read_bytes())
        members = places(path)
        expected = digest(path)[0]
        write_dali(path, members)
        write_json(path, members, filesize=path.stat().st_size)
        for suffix in ("idx", "json"):
            assert digest(path, member_list=suffix) == (expected, [])
        write_json(path, dict(reversed(members.items())), "length")
        assert digest(path, member_list="json") == (expected, [])


def test_a_list_by_wds2idx_is_used(tmp_path: Path) -> None:
    pytest.importorskip("wds2idx")
    path = write_tar(tmp_path / "a.tar", samples(9))
    subprocess.run([sys.executable, "-m", "wds2idx", path, path.with_suffix(".idx")], check=True, capture_output=True)
    assert digest(path, member_list="idx") == digest(path)


def test_only_some_headers_of_a_listed_tar_are_read(tmp_path: Path) -> None:
    files = [(f"{i}.jpg", bytes(100_000)) for i in range(150)]
    path = write_tar(tmp_path / "a.tar", files)
    write_dali(path, places(path))
    with serve_ranges(tmp_path) as server:
        source = open_source(f"{server.url}/a.tar", member_list="idx", label="shard")
        assert server.requests["all"] < 20
        assert server.num_bytes < 100_000
        assert source.describe().startswith("150 images")


def drop_one(members: Members) -> Members:
    return {name: place for number, (name, place) in enumerate(members.items()) if number != 4}


def move(members: Members, by: int) -> Members:
    return {name: (start + by, size) for name, (start, size) in members.items()}


def drop_last(members: Members) -> Members:
    return dict(list(members.items())[:-1])


def rename(members: Members) -> Members:
    return {name.replace("00", "99"): place for name, place in members.items()}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (drop_one, "the tar differs at"),
        (drop_last, "the tar has more members"),
        (lambda members: move(members, BLOCK), "the tar differs at"),
        (lambda members: move(members, 5), "multiples of 512"),
        (lambda members: move(members, 1 << 20), "more bytes than the tar has"),
        (rename, "the tar differs at"),
        (lambda members: {name: (start, size + 1) for name, (start, size) in members.items()}, "the tar differs at"),
        (lambda members: {name: (start, -size) for name, (start, size) in members.items()}, "overlap"),
        (lambda members: {}, "it has no members"),
    ],
)
def test_a_list_of_another_tar_is_not_used(tmp_path: Path, change: Callable[[Members], Members], why: str) -> None:
    path = write_tar(tmp_path / "a.tar", samples(5))
    expected = digest(path)[0]
    write_json(path, change(places(path)))
    found, said = digest(path, member_list="json")
    assert found == expected
    assert len(said) == 1
    assert why in said[0]
    assert said[0].startswith("the list of members (.json) of 1 of 1 tars was not used, and all headers were read: ")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        (b"", "not a list of"),
        (b"[]", "not a list of"),
        (b'{"files": {"a.jpg": {"offset": 1.5, "size": 1}}}', "whole numbers"),
        (b'{"files": {"a.jpg": {}}}', "not a list of"),
        (b'{"filesize": 7, "files": {"a.jpg": {"offset": 512, "size": 1}}}', "another size"),
        (b"v1.1 1\njpg 512 3\n", "does not list names"),
        (b"v1.2 2\njpg 512 3 a.jpg\n", "number of samples"),
        (b"v1.2 1\njpg 512 3 a b.jpg\n", "has a space"),
        (b"v1.2 1\njpg 512 3 a\\303.jpg\n", "is escaped"),
    ],
)
def test_a_file_that_is_not_a_list_is_not_used(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = write_tar(tmp_path / "a.tar", samples(5))
    if content is not None:
        path.with_suffix(".idx").write_bytes(content)
    found, said = digest(path, member_list="idx")
    assert found == digest(path)[0]
    assert len(said) == 1
    assert why in said[0]


def test_errors_of_the_tar_are_not_those_of_the_list(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(entry(b"a.jpg", b"1") + entry(b"b.jpg", b"2") + END)
    write_json(path, places(path))
    path.write_bytes(entry(b"a.jpg", b"1") + b"damage" * 100 + END)
    with pytest.raises(Exception, match="E-CORRUPT"):
        open_source(path, member_list="json")
    with pytest.raises(ValueError, match="member_list must be a suffix"):
        open_source(path, member_list="/idx")


@pytest.mark.parametrize(("size", "most_requests", "most_bytes"), [(3000, 30, 700_000), (100_000, 90, 400_000)])
def test_labels_of_listed_tars_at_urls_are_read_with_few_requests(
    tmp_path: Path, size: int, most_requests: int, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_list, "_CHECKED", 0)
    path = write_tar(tmp_path / "a.tar", samples(60, size), tarfile.USTAR_FORMAT)
    write_json(path, places(path))
    with serve_ranges(tmp_path) as server:
        source = open_source(f"{server.url}/a.tar", member_list="json")
        assert source.labels(np.arange(60)).tolist() == [i % 3 for i in range(60)]
        assert server.requests["all"] < most_requests
        assert server.num_bytes < most_bytes
