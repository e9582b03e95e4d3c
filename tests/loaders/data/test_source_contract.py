"""The contract of every kind of data: opening, reading, pickling for workers, detecting changes."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from odd_images import encoded
from photo_folder import photo
from range_server import RangeServer
from source_kinds import KINDS, Data, Kind, Rows, kinds_that, serve_kinds

from penstock.loaders import open_source
from penstock.loaders.data.sources.contract import Source, is_located
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.native.rows import ELSEWHERE, ENCODED, FILE, ROW, Names

COUNT, PARTS = 12, 3
PER_PART = COUNT // PARTS
IMAGES = [photo(number) for number in range(COUNT)]
LABELS = [("ant", "bee", "cat")[number // PER_PART] for number in range(COUNT)]
ROWS = Rows.of(IMAGES, LABELS, parts=PARTS)
EVERYTHING = np.arange(COUNT)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RangeServer]:
    with serve_kinds(tmp_path_factory.mktemp("kinds")) as server:
        yield server


@pytest.fixture
def data(request: pytest.FixtureRequest, server: RangeServer, own_cache: Path) -> Data:
    """Data that the test may change."""
    return Data(server, request.param, ROWS)


@pytest.fixture(scope="module")
def kept(server: RangeServer) -> Callable[[str], Data]:
    """Return a function from a kind to data that no test changes."""
    return functools.cache(lambda name: Data(server, name, ROWS))


def every(*abilities: str) -> Any:
    """Run a test for each kind with these abilities, on its own data."""
    return pytest.mark.parametrize("data", kinds_that(*abilities), indirect=True)


def shared(*abilities: str) -> Any:
    """Run a test for each kind with these abilities, on data that it does not change."""
    return pytest.mark.parametrize("name", kinds_that(*abilities))


def read_all(source: Source) -> list[Any]:
    return [source.read(index) for index in range(len(source))]


def error_of(action: Callable[[], object]) -> LoaderError:
    with pytest.raises(LoaderError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return caught.value


def readers(source: Source, kind: Kind) -> list[Any]:
    """Return the source and a worker's copy of it."""
    return [source] if "pickle" in kind.cannot else [source, pickle.loads(pickle.dumps(source))]


# ---- samples ----


@shared()
def test_samples_equal_those_written(kept: Any, name: str) -> None:
    source = kept(name).open()
    assert isinstance(source, Source)
    assert (len(source), source.skipped) == (COUNT, {})
    if name in kinds_that("bytes"):
        assert read_all(source) == IMAGES
        assert source.read(np.int64(7)) == IMAGES[7]
    labels = source.labels(np.array([11, 0, 5, 0]))
    assert (labels.tolist(), labels.dtype) == ([2, 0, 1, 0], np.int64)
    assert source.labels(np.array([], np.int64)).tolist() == []
    assert source.classes == (b"ant", b"bee", b"cat")
    if name in kinds_that("describe"):
        assert source.describe().startswith(f"{COUNT} images, 3 classes")


@shared("bounds")
def test_positions_outside_are_index_errors(kept: Any, name: str) -> None:
    source = kept(name).open()
    for index, look in itertools.product((-1, COUNT), (source.read, source.path)):
        with pytest.raises(IndexError):
            look(index)


@shared("files")
def test_a_path_contains_the_file_and_a_name_does_not_contain_its_location(kept: Any, name: str) -> None:
    data = kept(name)
    source = data.open()
    for index in (0, 5, 11):
        assert os.path.basename(data.file_of(index)) in os.fsdecode(source.path(index))
        assert (os.fsencode(data.where.folder.name) in source.name(index)) == ("name" in data.kind.cannot)
    assert len({source.path(index) for index in range(COUNT)}) == COUNT


@shared("locate")
@pytest.mark.parametrize("limit", [None, sorted(map(len, IMAGES))[5]])
def test_located_rows_give_the_bytes_up_to_the_limit(kept: Any, name: str, limit: int | None) -> None:
    source = kept(name).open(**({} if limit is None else {"max_file_bytes": limit}))
    assert is_located(source)
    order = np.array([7, 0, 11, 4, 3])
    rows = np.zeros(len(order), ROW)
    names = source.locate(order, rows)
    for row, index in zip(rows, order.tolist(), strict=True):
        if limit is not None and len(IMAGES[index]) > limit:
            assert row["kind"] == ELSEWHERE
        else:
            assert bytes_at(row, names) == IMAGES[index]


def bytes_at(row: Any, names: Names) -> bytes:
    """Return the bytes that the native library reads for a row."""
    assert row["kind"] in (FILE, ENCODED)
    if row["kind"] == ENCODED:
        return ctypes.string_at(int(row["offset"]), int(row["size"]))
    folder = names.folders[row["folder"] :][: row["folder_bytes"]].tobytes()
    path = names.root + folder + b"/" * bool(folder) + names.names[row["name"] :][: row["name_bytes"]].tobytes()
    with open(path, "rb") as file:
        assert row["file_size"] == os.fstat(file.fileno()).st_size
        file.seek(row["offset"])
        return file.read(row["size"])


@shared("limit")
def test_a_sample_that_is_too_large_is_refused_before_it_is_read(kept: Any, server: RangeServer, name: str) -> None:
    largest = int(np.argmax(list(map(len, IMAGES))))
    data, size = kept(name), len(IMAGES[largest])
    source = data.open(max_file_bytes=size - 1)
    for again in readers(source, data.kind):
        fetched = server.num_bytes
        error = error_of(lambda again=again: again.read(largest))  # type: ignore[misc]
        assert (error.code, error.sample) == ("E-BOMB", largest)
        assert f"max_file_bytes={size}" in error.fix
        assert server.num_bytes == fetched or "parquet" in name  # row groups are fetched whole
        other = (largest + 1) % COUNT
        assert again.read(other) == IMAGES[other]
    assert data.open(max_file_bytes=size).read(largest) == IMAGES[largest]


@shared("pickle")
def test_a_pickle_is_small_and_serves_the_same(kept: Any, name: str) -> None:
    source = kept(name).open()
    sent = pickle.dumps(source)
    assert len(sent) < 3000
    again = pickle.loads(sent)
    assert list(map(str, read_all(again))) == list(map(str, read_all(source)))
    assert again.labels(EVERYTHING).tolist() == source.labels(EVERYTHING).tolist()
    for attribute in ("classes", "fingerprint", "content", "skipped"):
        assert getattr(again, attribute, None) == getattr(source, attribute, None)
    assert (again.path(5), again.describe()) == (source.path(5), source.describe())


# ---- paths ----


@pytest.mark.parametrize("name", ["tars", "arrow", "parquet"])
def test_files_are_opened_by_path_pattern_and_list(kept: Any, name: str) -> None:
    files = [kept(name).file_of(index) for index in range(0, COUNT, PER_PART)]
    pattern = str(files[0]).replace("-0.", "-{}.")
    forms: list[tuple[Any, list[int]]] = [
        (files[1], [1]),
        (os.fsencode(files[1]), [1]),
        (pattern.format("*"), [0, 1, 2]),
        (pattern.format("?"), [0, 1, 2]),
        (pattern.format("{0..2}"), [0, 1, 2]),
        (pattern.format("{2,0}"), [2, 0]),
        (files, [0, 1, 2]),
        ([str(files[2]), files[0]], [2, 0]),
    ]
    for spec, parts in forms:
        expected = [IMAGES[n] for part in parts for n in range(COUNT)[part * PER_PART :][:PER_PART]]
        assert read_all(open_source(spec)) == expected, spec
    error = error_of(lambda: open_source(pattern.format("{0..3}")))
    assert error.code == "E-NODATA"
    assert pattern.format("3") in error.cause
    assert error_of(lambda: open_source(pattern.format("x*"))).code == "E-NODATA"


@every("path")
def test_missing_data_is_named(data: Data) -> None:
    shutil.rmtree(data.where.folder)
    error = error_of(data.open)
    assert error.code in ("E-NODATA", "E-MISSING")
    assert data.where.folder.name in str(error)


# ---- the saved index ----


def is_same_index(one: Any, other: Any) -> bool:
    return os.path.samestat(os.fstat(one.samples.file.fd), os.fstat(other.samples.file.fd))


@every("index")
def test_an_index_is_reused_only_with_the_same_options(data: Data, server: RangeServer) -> None:
    first = data.open()
    assert first.samples.is_saved
    if "relabel" not in data.kind.cannot:
        named = data.open(classes=["cat", "bee", "ant"])
        assert named.labels(EVERYTHING).tolist() == (2 - first.labels(EVERYTHING)).tolist()
        assert not is_same_index(first, named)
    fetched = server.num_bytes
    again = data.open()
    assert is_same_index(first, again)
    assert server.num_bytes - fetched < len(IMAGES[0])  # only versions are compared and tables read
    assert read_all(again) == IMAGES
    if "rescan" not in data.kind.cannot:
        assert not is_same_index(first, data.open(rescan=True))


@every("index")
def test_a_pickle_that_outlives_its_index_is_stale(data: Data) -> None:
    source = data.open()
    sent, index = pickle.dumps(source), source.samples.file.path
    del source
    os.unlink(index)
    assert error_of(lambda: pickle.loads(sent)).code == "E-STALE"


@pytest.mark.parametrize("how", ["written over", "replaced"])
@every("relabel")
def test_changed_labels_of_equal_size_and_time_are_served(data: Data, how: str) -> None:
    data.open()
    labels = LABELS[::-1]
    before = {path: path.stat() for path in data.where.folder.rglob("*") if path.is_file()}
    contents = {path: path.read_bytes() for path in before}
    data.write(Rows(IMAGES, {"label": labels}, ROWS.names, PARTS))
    for path in before:
        if path.read_bytes() != contents[path]:
            data_now = path.read_bytes()
            assert len(data_now) == len(contents[path])
            if how == "replaced":
                path.unlink()
            path.write_bytes(data_now)
        os.utime(path, ns=(before[path].st_atime_ns, before[path].st_mtime_ns))
    source = data.open()
    assert [source.classes[label].decode() for label in source.labels(EVERYTHING)] == labels


# ---- changes ----


@every("change")
def test_data_that_changed_since_it_was_opened_is_refused(data: Data) -> None:
    source = data.open()
    longer, shorter, gone = (data.file_of(index) for index in (0, PER_PART, 2 * PER_PART))
    with open(longer, "ab") as file:
        file.write(b"more")
    os.truncate(shorter, shorter.stat().st_size // 2)
    gone.unlink()
    for index, code in ((0, "E-CHANGED"), (PER_PART, "E-CHANGED"), (2 * PER_PART, "E-MISSING")):
        for reader in readers(source, data.kind):
            error = error_of(lambda index=index, reader=reader: reader.read(index))  # type: ignore[misc]
            assert error.code == code
            assert error.sample == index or "sample" in data.kind.cannot
            assert os.fsencode(data.where.folder.name) in os.fsencode(error.path or b"")


@every("change", "touch")
def test_a_file_with_another_time_is_a_changed_file(data: Data) -> None:
    source = data.open()
    os.utime(data.file_of(5), (7, 7))
    assert error_of(lambda: source.read(5)).code == "E-CHANGED"
    assert read_all(data.open()) == IMAGES


@pytest.mark.parametrize(
    "data", ["list", "frame", "csv", "jsonl", "parquet of paths", "list by URL", "csv by URL"], indirect=True
)
def test_a_row_with_a_missing_file_is_kept_and_named(data: Data) -> None:
    file = data.file_of(5)
    file.unlink()
    with pytest.warns(
        UserWarning, match=rf"1 of {COUNT} files do not exist, the first is .*{file.name}'; reading them raises"
    ):
        source = data.open()
    assert [source.read(index) for index in (4, 6)] == [IMAGES[4], IMAGES[6]]
    error = error_of(lambda: source.read(5))
    assert (error.code, error.sample) == ("E-MISSING", 5)
    file.write_bytes(b"late")
    assert error_of(lambda: source.read(5)).code == "E-CHANGED"
    again = source.refreshed()
    assert again.read(5) == b"late"
    assert again.fingerprint != source.fingerprint


@every("refresh")
def test_refreshing_detects_every_change(data: Data) -> None:
    source = data.open()
    (*_, worker) = readers(source, data.kind)
    assert source.refreshed() is source
    if "touch" not in data.kind.cannot:
        os.utime(data.file_of(5), (7, 7))
        touched = source.refreshed()
        assert (touched.fingerprint, touched.content == source.content) == (source.fingerprint, False)
        assert read_all(touched) == IMAGES
    images = [photo(100 + number) for number in range(COUNT)]
    data.write(Rows(images, ROWS.columns, ROWS.names, PARTS))
    again = source.refreshed()
    assert read_all(again) == images
    assert again.labels(EVERYTHING).tolist() == source.labels(EVERYTHING).tolist()
    assert again.fingerprint != source.fingerprint
    assert again.classes == source.classes
    if worker is not source:  # a worker's copy cannot open the data again
        assert error_of(worker.refreshed).code == "E-STALE"


# ---- identity ----


def bmp(seed: int) -> bytes:
    """Return a picture of noise; all have the same size in bytes."""
    return encoded(np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8), "BMP")


@shared("identity")
def test_the_fingerprint_depends_on_the_samples_and_not_on_their_location(
    server: RangeServer, own_cache: Path, name: str
) -> None:
    def make(seeds: Sequence[int] = (1, 2, 3, 4), labels: str = "aabc", time: int = 7) -> tuple[str, str]:
        names = [f"{label}/{seed:04}.bmp" for label, seed in zip(labels, seeds, strict=True)]
        data = Data(server, name, Rows(list(map(bmp, seeds)), {"label": list(labels)}, names, parts=2))
        for path in data.where.folder.rglob("*"):
            os.utime(path, (time, time))
        source = data.open()
        return source.fingerprint, getattr(source, "content", "")

    fingerprint, content = make()
    assert make() == (fingerprint, content)  # at another location
    other_time = make(time=8)
    assert other_time[0] == fingerprint
    assert other_time[1] != content or "touch" in KINDS[name].cannot
    assert make((1, 2, 3, 5))[0] != fingerprint
    assert make((1, 3, 2, 4))[0] != fingerprint
    assert make(labels="abac")[0] != fingerprint
    assert (make((2, 1, 3, 4))[0] != fingerprint) == ("order" not in KINDS[name].cannot)


@pytest.mark.parametrize("name", ["tars by URL", "parquet by URL", "csv by URL", "list by URL"])
def test_a_local_copy_belongs_to_its_urls(server: RangeServer, tmp_path: Path, name: str) -> None:
    """Many servers derive a version from a file's time and size, which can be equal for files of several folders."""
    images = [[bmp(first + number) for number in range(4)] for first in (0, 10)]
    both = [Data(server, name, Rows.of(each, list("abca"), "bmp")) for each in images]
    for path in (path for data in both for path in data.where.folder.rglob("*") if path.is_file()):
        server.etags[f"/{path.relative_to(server.root)}"] = f"1600000000-{path.stat().st_size}"
    for data, expected in [*zip(both, images, strict=True)] * 2:
        assert read_all(open_source(data.spec, local_cache=tmp_path / "copy")) == expected
    assert len([copy for copy in (tmp_path / "copy").iterdir() if copy.suffix != ".lock"]) == 2


# ---- abilities that the kinds declare ----


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_does_not_have_the_abilities_it_declares_missing(kept: Any, name: str) -> None:
    cannot, data = KINDS[name].cannot, kept(name)
    assert all(len(why.split()) > 3 for why in cannot.values())
    one, other = data.open(), data.open()
    has_index = hasattr(one, "samples") and one is not other
    assert ("index" in cannot) == (not has_index or not is_same_index(one, other))
    if "rescan" in cannot:
        with pytest.raises((ValueError, TypeError), match="rescan"):
            data.open(rescan=True)
