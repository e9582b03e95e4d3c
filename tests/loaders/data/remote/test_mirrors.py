"""Versions of objects at one address of several servers: equal content agrees, a replaced object is refused."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import range_server
from photo_folder import photo
from range_server import RangeServer, serve_ranges
from remote_photos import write_kinds

from penstock.loaders import LoaderError, open_source
from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.samples import version as version_module
from penstock.loaders.data.samples.version import MIRROR_LOOKS, Version

COUNT = 6
OLD = datetime(2024, 5, 1, 12, 30, tzinfo=timezone.utc)
KINDS = ["a.tar", "a.csv", "list"]


@pytest.fixture
def mirrors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    """A server whose answers come from two mirrors in turn: equal files and times, and a tag of each mirror."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "root"
    write_kinds(root, COUNT)
    for path in root.iterdir():
        os.utime(path, (OLD.timestamp(), OLD.timestamp()))
    with serve_ranges(root) as server:
        tag_in_turn(server, lambda path, mirror: f"{mirror}-{path}")
        yield server


def tag_in_turn(server: RangeServer, tag: Callable[[str, int], str]) -> None:
    def answer(path: str, number: int) -> int:
        server.etags[path] = tag(path, number % 2)
        return 0

    server.fault = answer


def open_kind(server: RangeServer, kind: str) -> Any:
    is_list = kind == "list"
    return open_source([(f"{server.url}/{n}.jpg", 0) for n in range(COUNT)] if is_list else f"{server.url}/{kind}")


def read_all(source: Any) -> list[bytes]:
    return [source.read(n) for n in range(COUNT)]


@pytest.mark.parametrize("kind", KINDS)
def test_mirrors_with_tags_of_their_own_are_one_object(mirrors: RangeServer, kind: str) -> None:
    source = open_kind(mirrors, kind)
    for _ in range(2):  # two requests per sample: each mirror answers
        assert read_all(source) == [photo(n) for n in range(COUNT)]
        ObjectStore().stat(f"{mirrors.url}/0.jpg")
    if kind != "a.csv":  # tables are compared by their tags
        assert source.refreshed() is source
    before = mirrors.requests["all"]
    again = open_kind(mirrors, kind)  # by the saved index, if there is one
    if kind == "a.tar":
        assert mirrors.requests["all"] - before <= 3
    assert again.fingerprint == source.fingerprint
    assert read_all(again) == read_all(source)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", ["time", "size", "tag of content", "tag"])
def test_a_replaced_object_is_refused(mirrors: RangeServer, kind: str, change: str) -> None:
    if change == "tag of content":  # with the time of the old one, as programs that copy keep it
        tag_in_turn(mirrors, lambda path, mirror: f"{'a' * 32}")
    source = open_kind(mirrors, kind)
    tag_in_turn(mirrors, lambda path, mirror: "b" * 32 if change == "tag of content" else f"{mirror}-new-{path}")
    before = mirrors.requests["all"]
    for path in mirrors.root.iterdir():
        if change == "size" and path.suffix != ".csv":
            path.write_bytes(path.read_bytes() + b"\0" * 512)
        at = OLD.timestamp() + (60 if change == "time" else 0)
        os.utime(path, (at, at))
    range_server._content.cache_clear()  # it knows files by their times
    with pytest.raises(LoaderError, match="E-CHANGED"):
        read_all(source)
    assert mirrors.requests["all"] - before <= MIRROR_LOOKS + 4
    if kind != "list":
        assert source.refreshed() is not source


def test_an_object_that_was_new_when_it_was_indexed_is_known_by_its_tag_only(mirrors: RangeServer) -> None:
    """It may have been replaced within the same second."""
    for path in mirrors.root.iterdir():
        os.utime(path)
    source = open_kind(mirrors, "list")
    tag_in_turn(mirrors, lambda path, mirror: f"2-{path}")
    with pytest.raises(LoaderError, match="E-CHANGED"):
        read_all(source)


def test_indexes_without_times_stay_valid(mirrors: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes of older versions, and their local copies: numbers are unchanged, and compared as before."""
    tag_in_turn(mirrors, lambda path, mirror: f"1-{path}")
    with monkeypatch.context() as patch:
        patch.setattr(version_module, "_identify_time", lambda modified, size: 0)
        old = open_kind(mirrors, "a.tar")
    assert not len(old.samples.times)
    before = mirrors.requests["all"]
    source = open_kind(mirrors, "a.tar")
    assert mirrors.requests["all"] - before <= 2
    assert source.samples.header.content == old.samples.header.content
    assert read_all(source) == [photo(n) for n in range(COUNT)]
    new = open_source(f"{mirrors.url}/a.tar", rescan=True)
    assert len(new.samples.times)
    assert new.samples.header.content == old.samples.header.content


def test_random_versions_agree_as_their_rule_says() -> None:
    """The rule: equal tags but for weakness and quotes; else equal size and settled time, if no tag is a digest."""
    rng, now = np.random.default_rng(0), datetime.now(timezone.utc)
    tags = ['"a1"', 'W/"a1"', "a1", '"b2"', f'"{"c" * 32}"', f'"{"d" * 32}"', None]
    dates = [OLD, OLD + timedelta(seconds=1), now, datetime(1980, 1, 1, tzinfo=timezone.utc)]
    for _ in range(2000):
        (one_tag, two_tag), (one_date, two_date) = rng.choice(tags, 2), rng.choice(dates, 2)  # type: ignore[arg-type]
        one_size, two_size = rng.integers(5, 7, 2).tolist()
        one = Version.of_object(one_tag, one_date, one_size)
        two = Version.of_object(two_tag, two_date, two_size)
        bare = [tag and tag.removeprefix("W/").strip('"') for tag in (one_tag, two_tag)]
        are_opaque = not any(tag and len(tag) == 32 for tag in bare)
        is_settled = one_date == two_date and time.time() - one_date.timestamp() > 600 and one_date.year > 2000
        expected = bare[0] == bare[1] if all(bare) else not any(bare) and one_date == two_date
        expected = expected or (are_opaque and is_settled and one_size == two_size)
        assert one.agrees(two) is expected, (one_tag, one_date, one_size, two_tag, two_date, two_size)
        assert two.agrees(one) is expected
        assert one.is_same(two) is expected
        stored = Version.of_stored_object(one.number, one.ctime_ns)
        assert (stored, stored.agrees(two)) == (one, expected)
        assert Version.of_stored_object(one.number).agrees(two) is (one.number == two.number)
