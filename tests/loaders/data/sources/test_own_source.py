"""User-defined sources: the examples of the guide, and errors that a source raises."""

from __future__ import annotations

import importlib
import re
import socket
import sqlite3
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import faulty_source
import pytest
import torch
from faulty_source import FaultySource
from forked_commands import Commands
from photo_folder import photo, write_folder
from range_server import CUT, USUAL, RangeServer, serve_ranges

from penstock.loaders import LoaderError, create_loader
from penstock.loaders.data.sources.source_faults import name_sample
from penstock.loaders.front.loader import Loader
from penstock.loaders.system import retries
from penstock.pipelines import imagenet_eval

GUIDE = Path(__file__).resolve().parents[4] / "docs" / "guides" / "own-source.md"
COUNT = 24
THREADS, PROCESSES = {"workers": 2}, {"workers": 2, "workers_are": "processes"}
HERE: dict[str, Any] = {"workers": 0}
TOKEN = "?X-Amz-Signature=deadbeef"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The code of the guide, as a module that workers can import."""
    chapter = GUIDE.read_text("utf-8")
    folder = tmp_path_factory.mktemp("example")
    code = "\n".join(re.findall(r"```python\n(.*?)```", chapter, re.DOTALL))
    (folder / "readme_sources.py").write_text(code)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("readme_sources")
    sys.path.remove(str(folder))
    del sys.modules["readme_sources"]


@pytest.fixture
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "RETRY_DELAYS_S", (0.0, 0.0, 0.0))


def open_loader(source: Any, **settings: Any) -> Loader:
    defaults = {
        "pipeline": imagenet_eval(16),
        "batch_size": 4,
        "dtype": torch.uint8,
        "shuffle": True,
        "drop_last": False,
    }
    return create_loader(source, **{**defaults, **settings})


def stream(source: Any, **settings: Any) -> list[list[Any]]:
    """Return index, label and pixels of every sample of an epoch."""
    with open_loader(source, **settings) as loader:
        return [
            [int(index), int(label), image.tolist()]
            for batch in loader.batches()
            for index, label, image in zip(batch.index, batch.labels, batch.images, strict=True)
        ]


# The examples


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), COUNT)


@pytest.fixture(scope="module")
def tar(folder: Path) -> Path:
    path = folder.parent / f"{folder.name}.tar"
    with tarfile.open(path, "w") as file:
        for image in sorted(folder.rglob("*.jpg")):
            file.add(image, str(image.relative_to(folder)))
    return path


@pytest.fixture(scope="module")
def database(folder: Path) -> Path:
    path = folder.parent / f"{folder.name}.sqlite"
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("CREATE TABLE photos (id INTEGER PRIMARY KEY, class TEXT, image BLOB)")
        rows = [(image.parent.name, image.read_bytes()) for image in sorted(folder.rglob("*.jpg"))]
        made.executemany("INSERT INTO photos (class, image) VALUES (?, ?)", rows)
    return path


class Server:
    """A server of the folder's files. The first answers for a path may be errors; its log must contain the token.

    Attributes:
        errors: path -> statuses of its first answers; the last status repeats.
        asked: path -> number of requests.
    """

    def __init__(self, ranges: RangeServer) -> None:
        self.root, self.url = ranges.root, ranges.url
        self.errors, self.asked = dict[str, list[int]](), Counter[str]()
        ranges.fault, ranges.watch = self._answer, self._note

    def images(self) -> list[tuple[str, str]]:
        images = sorted(self.root.rglob("*.jpg"))
        return [(f"{self.url}/{image.relative_to(self.root)}{TOKEN}", image.parent.name) for image in images]

    def _answer(self, path: str, number: int) -> int:
        errors = self.errors.get(path[1:], [USUAL])
        return errors[0] if len(errors) == 1 else errors.pop(0)

    def _note(self, target: str) -> None:
        assert target.endswith(TOKEN)
        self.asked[target[1:].partition("?")[0]] += 1


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with serve_ranges(folder) as ranges:
        yield Server(ranges)


@pytest.mark.parametrize("options", [THREADS, PROCESSES], ids=["threads", "processes"])
def test_the_examples_serve_what_the_folder_serves(
    example: ModuleType, folder: Path, tar: Path, database: Path, server: Server, options: dict[str, Any]
) -> None:
    expected = stream(folder, **HERE)
    assert len(expected) == COUNT
    sources = (example.Tar(tar), example.Sqlite(database), example.Http(server.images()))
    for source in sources:
        assert stream(source, **options) == expected
        assert source.classes == (b"class0", b"class1", b"class2")
    assert len({source.fingerprint for source in sources}) == 3


def test_the_tar_example_is_read_natively(example: ModuleType, folder: Path, tar: Path) -> None:
    class Located(example.Tar):  # type: ignore[misc, name-defined]
        def locate(self, indices: Any, rows: Any) -> Any:
            self.located = len(indices)
            return super().locate(indices, rows)

    source, expected = Located(tar), stream(folder, **HERE)
    with open_loader(source, **HERE) as loader:
        assert loader.describe()["decoder"] == "native"
    assert stream(source, **HERE) == expected
    assert source.located == 4
    with open(tar, "r+b") as file:  # its mtime changed since it was opened: Python reads it
        file.seek(257)
        file.write(b"ustar")
    read: list[int] = []
    plain = source.read
    Located._noting = lambda self, index: read.append(index) or plain(index)
    Located.read = Located._noting
    Located.locate = example.Tar.locate
    assert stream(source, **HERE) == expected
    assert sorted(read) == list(range(COUNT))


def test_a_signed_url_is_not_part_of_the_fingerprint(example: ModuleType, server: Server) -> None:
    images = server.images()
    again = [(address.replace("deadbeef", "abad1dea"), name) for address, name in images]
    assert example.Http(images).fingerprint == example.Http(again).fingerprint
    assert example.Http(images).fingerprint != example.Http(images[1:]).fingerprint


# Errors


@pytest.mark.usefixtures("no_delays")
def test_requests_to_a_server_that_recovers_are_retried(example: ModuleType, folder: Path, server: Server) -> None:
    server.errors = {"class0/0000.jpg": [503, 429, CUT, USUAL], "class1/0001.jpg": [500, USUAL]}
    assert stream(example.Http(server.images()), **HERE) == stream(folder, **HERE)
    assert (server.asked["class0/0000.jpg"], server.asked["class1/0001.jpg"], server.asked["class2/0002.jpg"]) == (
        4,
        2,
        1,
    )


@pytest.mark.usefixtures("no_delays")
@pytest.mark.parametrize("options", [HERE, PROCESSES], ids=["here", "processes"])
def test_an_image_that_the_server_does_not_have_is_replaced_or_raised(
    example: ModuleType, server: Server, options: dict[str, Any]
) -> None:
    server.errors = {"class0/0000.jpg": [404], "class1/0001.jpg": [403]}
    expected = {"0/0000.jpg": ("E-MISSING", True), "1/0001.jpg": ("E-ACCESS", True)}
    if options is HERE:  # workers use the real delays
        server.errors["class2/0002.jpg"], expected["2/0002.jpg"] = [503], ("E-READ", True)
    source = example.Http(server.images())
    names = [name_sample(source, index).decode().partition("/class")[2] for index in range(COUNT)]
    with open_loader(source, on_bad_sample="replace", pipeline=None, **options) as loader:
        list(loader)
        found = {names[bad.sample]: (bad.code, bad.substitute >= 0) for bad in loader.ledger().bad}
        assert found == expected
        if options is HERE:  # workers continue with the next epoch
            assert (server.asked["class0/0000.jpg"], server.asked["class2/0002.jpg"]) == (1, 4)
        assert "deadbeef" not in str(loader.ledger().as_dict()) + str(loader.state_dict())
    with open_loader(source, **options) as loader, pytest.raises(LoaderError, match="cause=HTTPError: HTTP") as caught:
        list(loader)
    assert caught.value.code in ("E-MISSING", "E-ACCESS", "E-READ")
    assert "/class" in str(caught.value.path)
    assert "deadbeef" not in str(caught.value)
    assert "HTTP Error" in str(caught.value.__cause__)
    assert f"{example.__file__}:" in caught.value.cause
    assert "deadbeef" not in str(caught.value.__cause__)


@pytest.mark.usefixtures("no_delays")
def test_a_row_deleted_from_the_database_is_a_bad_sample(example: ModuleType, database: Path, tmp_path: Path) -> None:
    copy = tmp_path / "photos.sqlite"
    copy.write_bytes(database.read_bytes())
    source = example.Sqlite(copy)
    with closing(sqlite3.connect(copy)) as changed, changed:
        changed.execute("DELETE FROM photos WHERE id = 6")
    with open_loader(source, on_bad_sample="replace", **THREADS) as loader:
        list(loader)
        assert [(bad.sample, bad.code, bad.path) for bad in loader.ledger().bad] == [(5, "E-MISSING", b"photos/6")]


def refuse_connection() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        socket.create_connection(closed.getsockname(), timeout=5)


@pytest.mark.usefixtures("no_delays")
@pytest.mark.parametrize(
    ("options", "fault", "words"),
    [
        (HERE, faulty_source.divide_by_zero, "ZeroDivisionError: "),
        (HERE, refuse_connection, "ConnectionRefusedError: "),
        (THREADS, faulty_source.raise_stop_iteration, "StopIteration: from a generator of the user's"),
        (THREADS, faulty_source.raise_unpicklable_error, "UnpicklableError: holds a lock"),
        (PROCESSES, faulty_source.raise_stop_iteration, "StopIteration: from a generator of the user's"),
        (PROCESSES, faulty_source.raise_unpicklable_error, "UnpicklableError: holds a lock"),
    ],
)
def test_any_exception_of_a_source_becomes_an_error_of_its_sample(
    options: dict[str, Any], fault: Any, words: str
) -> None:
    source = FaultySource(COUNT, {17: fault})
    with open_loader(source, on_bad_sample="replace", **options) as loader:
        served = [index for batch in loader.batches() for index in batch.index.tolist()]
        (bad,) = loader.ledger().bad
    assert (bad.sample, bad.code, bad.path, bad.raised) == (17, "E-READ", b"memory/17.jpg", None)
    assert bad.cause.startswith(words)
    assert sorted(served) == sorted([*range(17), bad.substitute, *range(18, COUNT)])
    with open_loader(source, **options) as loader, pytest.raises(LoaderError) as caught:
        list(loader)
    error = caught.value
    assert (error.code, error.sample, error.path) == ("E-READ", 17, b"memory/17.jpg")
    assert words in error.cause
    assert words.partition(":")[0] in f"{type(error.__cause__).__name__} {error.__cause__}"


def test_a_fault_of_the_machine_is_raised_under_both_policies() -> None:
    source = FaultySource(COUNT, {17: faulty_source.run_out_of_memory})
    with open_loader(source, on_bad_sample="replace", **THREADS) as loader, pytest.raises(LoaderError, match="E-MEM"):
        list(loader)


def test_dead_storage_is_abandoned_after_one_row_without_a_substitute(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []

    class Dead(FaultySource):
        def read(self, index: int) -> bytes:
            reads.append(index)
            raise KeyError(index)

    source = Dead(1000, {})
    loader = open_loader(source, batch_size=32, on_bad_sample="replace", **HERE)
    with loader, pytest.raises(LoaderError, match=r"E-MAXBAD.*no good sample"):
        list(loader)
    assert len(reads) == 32 + 63


# Without a main guard


SCRIPT = """
import sys
from pathlib import Path

import numpy as np

from penstock.loaders import create_loader
from penstock.pipelines import imagenet_train

print("started")


class Own:
    classes, fingerprint, skipped = (b"only",), "0" * 32, {}

    def __len__(self):
        return 8

    def read(self, index):
        return PIXELS if sys.argv[2] == "pixels" else Path(sys.argv[1]).read_bytes()

    def labels(self, indices):
        return np.zeros_like(indices)

    def path(self, index):
        return b"own"

    def describe(self):
        return "own"


PIXELS = np.zeros((8, 8, 3), np.uint8)
with create_loader(Own(), pipeline=imagenet_train(8), batch_size=4, workers=2) as loader:
    print(sum(len(labels) for _, labels in loader))
"""


def test_a_script_needs_no_main_guard(tmp_path: Path, commands: Commands) -> None:
    (tmp_path / "photo.jpg").write_bytes(photo(0))
    (tmp_path / "train.py").write_text(SCRIPT)
    code, run = commands.run(tmp_path / "photo.jpg", "encoded", script=tmp_path / "train.py")
    assert (run.output, run.errors, code) == ("started\n8\n", "", 0)


def test_a_notebook_needs_no_main_guard(tmp_path: Path) -> None:
    """A notebook does not have a file; here the code comes from standard input."""
    command = [sys.executable, "-", "no file", "pixels"]
    run = subprocess.run(command, cwd=tmp_path, input=SCRIPT, capture_output=True, text=True, timeout=600, check=False)
    assert (run.stdout, run.stderr, run.returncode) == ("started\n8\n", "", 0)
