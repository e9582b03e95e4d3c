"""The same rows as data of every kind: how each kind is written, its image files, its missing abilities.

A new kind of data is one more entry in KINDS; the test suites for all kinds then include it.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from folder_trees import settle
from memory_source import MemorySource
from photo_tables import write_arrow, write_parquet, write_saved
from PIL import Image
from range_server import RangeServer, s3_environment, serve_ranges
from tar_files import write_tar

from penstock.loaders import open_source
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.data.remote import clients
from penstock.loaders.data.requests import request_retries

OpenArguments = tuple[Any, dict[str, Any]]  # source and options of open_source
Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class Rows:
    """Images with their columns; "label" is read unless another column is requested.

    Attributes:
        images: encoded.
        columns: by name; None for a missing value.
        names: file names of the images; sorted if folders must serve them in order.
        parts: number of files for kinds with several images per file.
        declared: column of sets -> its classes; Arrow and Parquet store their numbers, as declared by Hugging Face.
    """

    images: list[bytes]
    columns: Columns
    names: list[str]
    parts: int = 1
    declared: Mapping[str, list[str]] = field(default_factory=dict)

    @staticmethod
    def of(images: list[bytes], labels: list[Any], suffix: str = "jpg", parts: int = 1) -> Rows:
        """Return rows with one label each; text labels are also the folders of the names."""
        names = [f"{label}/" * isinstance(label, str) + f"{n:04}.{suffix}" for n, label in enumerate(labels)]
        return Rows(images, {"label": labels}, names, parts)

    def spread(self) -> list[range]:
        """Return the rows of each file."""
        ends = [len(self.images) * part // self.parts for part in range(self.parts + 1)]
        return [range(a, b) for a, b in itertools.pairwise(ends)]

    def cut(self, part: range) -> Rows:
        """Return some rows, for one file."""
        some = slice(part.start, part.stop)
        columns = {name: values[some] for name, values in self.columns.items()}
        return Rows(self.images[some], columns, self.names[some], declared=self.declared)

    def table(self, **first: list[Any]) -> pa.Table:
        """Return a table of the columns `first`, then those of the rows."""
        columns, features = first | self.columns, {}
        has_images = any(isinstance(values[0], bytes) for values in first.values())
        for name, classes in self.declared.items() if has_images else ():
            columns[name] = [[classes.index(member) for member in members] for members in columns[name]]
            features[name] = {"_type": "Sequence", "feature": {"_type": "ClassLabel", "names": classes}}
        metadata = json.dumps({"info": {"features": features}}) if features else ""
        return pa.table(columns).replace_schema_metadata({"huggingface": metadata} if metadata else None)

    def place(self, folder: Path) -> list[Path]:
        """Write missing or changed images as files below `folder`; return their paths."""
        paths = [folder / name for name in self.names]
        for path, data in zip(paths, self.images, strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_bytes() != data:
                path.write_bytes(data)
        return paths


class Where(NamedTuple):
    """A folder, and its URL if a server serves it."""

    folder: Path
    url: str = ""

    def address(self, path: str | Path) -> str:
        return f"{self.url}/{os.path.relpath(path, self.folder)}"


@dataclass(frozen=True)
class Kind:
    """Describe a kind of data to the suites.

    Attributes:
        write: writes rows; returns the arguments that open them.
        files: pattern below the folder for the files that contain the images, in order.
        cannot: missing ability, by its name in the test suites -> reason.
    """

    write: Callable[[Where, Rows], OpenArguments]
    files: str = "data/*/*.jpg"
    cannot: Mapping[str, str] = field(default_factory=dict)


def _folder(where: Where, rows: Rows) -> OpenArguments:
    rows.place(where.folder / "data")
    return where.folder / "data", {}


def _pattern(where: Where, rows: Rows) -> OpenArguments:
    rows.place(where.folder / "data")
    return f"{where.folder}/data/*/*.*", {}


def _values(rows: Rows) -> list[Any]:
    """Return the label of each row; a dict if there are several columns."""
    if len(rows.columns) == 1:
        return next(iter(rows.columns.values()))
    return [dict(zip(rows.columns, row, strict=True)) for row in zip(*rows.columns.values(), strict=True)]


def _list(where: Where, rows: Rows) -> OpenArguments:
    return list(zip(map(str, rows.place(where.folder / "data")), _values(rows), strict=True)), {}


def _names(where: Where, rows: Rows) -> list[str]:
    """Return the paths of the images, relative as in tables of the folder."""
    return [os.path.relpath(path, where.folder) for path in rows.place(where.folder / "data")]


def text_table(suffix: str, delimiter: str, style: Callable[[Any], str]) -> Callable[[Where, Rows], OpenArguments]:
    """Return a writer of rows as a text table; `style` formats lists and objects."""

    def cell(value: Any) -> Any:
        if isinstance(value, (list, dict)):
            return style(value)
        return "" if value is None or value != value else value

    def write(where: Where, rows: Rows) -> OpenArguments:
        table = {"path": _names(where, rows)} | rows.columns
        with open(where.folder / f"t.{suffix}", "w", newline="", encoding="utf-8") as file:
            lines = ([cell(value) for value in row] for row in zip(*table.values(), strict=True))
            csv.writer(file, delimiter=delimiter).writerows([table, *lines])
        return where.folder / f"t.{suffix}", {}

    return write


def _json_lines(where: Where, rows: Rows) -> OpenArguments:
    table = {"path": _names(where, rows)} | rows.columns
    lines = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    for line in lines[1:]:
        if line.get("label", 0) is None:
            del line["label"]
    (where.folder / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return where.folder / "t.jsonl", {}


def _parquet_of_paths(where: Where, rows: Rows) -> OpenArguments:
    return write_parquet(where.folder / "t.parquet", rows.table(path=_names(where, rows)), rows=3), {}


def _frame(where: Where, rows: Rows) -> OpenArguments:
    columns = {name: pd.Series(values, dtype=object) for name, values in rows.columns.items()}
    return pd.DataFrame({"path": list(map(str, rows.place(where.folder / "data"))), **columns}), {}


def _spec(where: Where, stem: str, suffix: str, parts: int) -> str:
    return f"{where.folder}/{stem}-{{0..{parts - 1}}}.{suffix}" if parts > 1 else f"{where.folder}/{stem}-0.{suffix}"


def _feather(where: Where, rows: Rows) -> OpenArguments:
    """Arrow files of image paths."""
    table = rows.table(image=list(map(str, rows.place(where.folder / "data"))))
    return write_arrow(where.folder / "t.feather", table, stream=False, rows=3), {}


def _arrow(where: Where, rows: Rows) -> OpenArguments:
    for number, part in enumerate(rows.spread()):
        table = rows.table(image=rows.images).slice(part[0], len(part))
        write_arrow(where.folder / f"a-{number}.arrow", table, stream=False, rows=3)
    return _spec(where, "a", "arrow", rows.parts), {}


def _parquet(where: Where, rows: Rows) -> OpenArguments:
    for number, part in enumerate(rows.spread()):
        table = rows.table(image=rows.images).slice(part[0], len(part))
        write_parquet(where.folder / f"p-{number}.parquet", table, rows=5, compression="none", use_dictionary=False)
    return _spec(where, "p", "parquet", rows.parts), {}


def _saved(where: Where, rows: Rows) -> OpenArguments:
    shutil.rmtree(where.folder / "saved", ignore_errors=True)
    return write_saved(where.folder / "saved", rows.table(image=rows.images), rows.parts), {}


def _dataset(where: Where, rows: Rows) -> OpenArguments:
    import datasets

    return datasets.Dataset(rows.table(image=rows.images)), {}


def _tar(where: Where, rows: Rows) -> OpenArguments:
    """Tars with labels as members; several columns are fields of a .json member."""
    is_one = list(rows.columns) == ["label"]
    for number, part in enumerate(rows.spread()):
        members = list[tuple[str | bytes, bytes]]()
        for row in part:
            values = {name: column[row] for name, column in rows.columns.items()}
            label = str(values["label"]) if is_one and values["label"] is not None else ""
            name = os.path.basename(rows.names[row])
            about = ("cls", label.encode()) if is_one else ("json", json.dumps(values).encode())
            members += [(f"{name.partition('.')[0]}.{about[0]}", about[1])] * bool(about[1])
            members.append((name, rows.images[row]))
        write_tar(where.folder / f"t-{number}.tar", members)
    return _spec(where, "t", "tar", rows.parts), {}


def _arrays(where: Where, rows: Rows) -> OpenArguments:
    """Images of one size."""
    images = [np.asarray(Image.open(io.BytesIO(data)).convert("RGB").resize((9, 8))) for data in rows.images]
    return (np.stack(images), _values(rows)), {}


def _cache(where: Where, rows: Rows) -> OpenArguments:
    path = where.folder / "c.h5"
    if not path.exists():
        build_cache(open_source(_list(where, rows)[0]), path, workers=0)
    return path, {}


class OwnSource(MemorySource):
    """A user-defined source, in memory."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows.images)
        self.classes = tuple(sorted({label.encode() for label in rows.columns["label"]}))
        self._numbers = np.array([self.classes.index(label.encode()) for label in rows.columns["label"]])

    def labels(self, indices: Any) -> Any:
        return self._numbers[indices]


def _own(where: Where, rows: Rows) -> OpenArguments:
    return OwnSource(rows), {}


def _joined(where: Where, rows: Rows) -> OpenArguments:
    """Data of three kinds as one source."""
    writers = itertools.cycle((_arrow, _parquet, _tar))
    return [write(where, rows.cut(part))[0] for write, part in zip(writers, rows.spread(), strict=False)], {}


def _part(where: Where, rows: Rows) -> OpenArguments:
    return _tar(where, rows)[0], {"subset": f":{len(rows.images)}"}


def _at_url(
    write: Callable[[Where, Rows], OpenArguments], *, copied: bool = False
) -> Callable[[Where, Rows], OpenArguments]:
    """Serve a path by URL; `copied`: with a local copy, which some kinds need."""

    def write_and_serve(where: Where, rows: Rows) -> OpenArguments:
        spec, options = write(where, rows)
        return where.address(spec), options | ({"local_cache": where.folder / "copy"} if copied else {})

    return write_and_serve


def _list_of_urls(where: Where, rows: Rows) -> OpenArguments:
    paths = rows.place(where.folder / "data")
    return [(where.address(path), value) for path, value in zip(paths, _values(rows), strict=True)], {}


def _table_of_urls(where: Where, rows: Rows) -> OpenArguments:
    path, _ = text_table("csv", ",", json.dumps)(where, rows)
    return path, {"root": where.url, "local_cache": where.folder / "copy"}


def _bucket(where: Where, rows: Rows) -> OpenArguments:
    rows.place(where.folder / "data")
    return f"s3://{where.folder.name}/data/", {}


def _bucket_pattern(where: Where, rows: Rows) -> OpenArguments:
    return f"{_bucket(where, rows)[0]}*.*", {}


def _saved_at_url(where: Where, rows: Rows) -> OpenArguments:
    return f"{where.address(_saved(where, rows)[0])}/", {"local_cache": where.folder / "copy"}


class Data:
    """Rows as data of a kind, in their own folder, which a server serves."""

    numbers = itertools.count()

    def __init__(self, server: RangeServer, name: str, rows: Rows) -> None:
        folder = server.root / f"data-{next(self.numbers)}"
        folder.mkdir()
        self.kind, self.count = KINDS[name], len(rows.images)
        self.where = Where(folder, f"{server.url}/{folder.name}")
        self.write(rows)
        settle(folder)

    def write(self, rows: Rows) -> None:
        self.spec, self.options = self.kind.write(self.where, rows)

    def open(self, **options: Any) -> Any:
        return open_source(self.spec, **self.options, **options)

    def file_of(self, index: int) -> Path:
        """Return the file that contains image `index`."""
        files = sorted(self.where.folder.glob(self.kind.files))
        return files[index * len(files) // self.count]


@contextlib.contextmanager
def serve_kinds(root: Path) -> Iterator[RangeServer]:
    """Serve folders below `root`, also as S3 buckets for this process and its children."""
    with serve_ranges(root) as server, pytest.MonkeyPatch.context() as environment:
        for name, value in s3_environment(server.url).items():
            environment.setenv(name, value)
        environment.setattr(request_retries, "_LONGEST_PAUSE_S", 0.01)
        clients.open_client.cache_clear()
        yield server
        clients.open_client.cache_clear()


MEMORY = {
    "change": "nothing else writes to rows in memory",
    "touch": "nothing else writes to rows in memory",
    "refresh": "nothing else writes to rows in memory",
    "index": "there is nothing to scan again",
    "rescan": "there is nothing to scan again",
    "path": "no path names the data",
    "files": "no file contains the images",
}
SHARED = {"pickle": "its shared memory can be sent only to a process that is being started"}
VIEW = {
    "index": "its sources have their own indexes",
    "sample": "errors name the sample of its source; loaders replace it",
}
OTHER_PART = {
    "describe": "its description includes the total",
    "refresh": "a part of other images would be another part, which is refused",
}
UNLIMITED = {"limit": "data in memory needs no limit", "locate": "rows in memory have another form"}
NO_FILES = {
    "bytes": "pixels are served, not the bytes of files",
    "relabel": "the labels are those of the rows",
    "describe": "its description has other words",
}
OWN = {
    "pickle": "the source decides how it is pickled",
    "bounds": "the source decides its errors",
    "identity": "the source decides its identity",
}
CACHED = {
    "bounds": "only loaders look up its samples",
    "change": "it has its own CRCs, see test_bit_rot.py",
    "path": "its own file is named, not the images'",
}
GIVEN = {
    "index": "rows of the program may change unnoticed",
    "rescan": "there is no saved index",
    "path": "no path names the rows",
    "relabel": "the labels are those of the rows",
}
NO_RESCAN = {"rescan": "its index is built from a few bytes: it is compared, not trusted"}
COPIED = {"change": "the copy is read, regardless of the original"}
WHOLE = COPIED | {"limit": "the copy is of whole files", "refresh": "the copy is checked, not the original"}
IN_COPY = {"locate": "rows of the copy have another form"}
UNLISTED = {"path": "HTTP does not list folders"}
LISTED = {"index": "it is listed each time", "rescan": "it is listed each time"}
WHOLE_PATHS = {"name": "rows are named by their whole paths"}
BY_NAME = {"relabel": "the classes are the folders", "order": "the names determine the order"}
FOOTERS = {"index": "the footers of its files are as fast to read", "rescan": "there is no saved index"}
ETAG = {
    "touch": "the version of an object is its ETag, here a hash of its content",
    "relabel": "this server reads a file again only if its mtime changed",
}

# Kinds of rows with columns of any values.
TABLES: dict[str, Callable[[Where, Rows], OpenArguments]] = {
    "csv": text_table("csv", ",", json.dumps),
    "tsv": text_table("tsv", "\t", str),  # lists in the format of pandas
    "jsonl": _json_lines,
    "parquet of paths": _parquet_of_paths,
    "feather": _feather,
    "frame": _frame,
    "list": _list,
    "parquet": _parquet,
    "arrow": _arrow,
    "saved": _saved,
    "dataset": _dataset,
    "tar": _tar,
}
KINDS: dict[str, Kind] = {
    "folder": Kind(_folder, cannot=BY_NAME),
    "pattern": Kind(_pattern, cannot=LISTED | WHOLE_PATHS | BY_NAME),
    "list": Kind(_list, cannot=GIVEN | WHOLE_PATHS),
    "frame": Kind(_frame, cannot=GIVEN | WHOLE_PATHS),
    "csv": Kind(TABLES["csv"]),
    "jsonl": Kind(_json_lines),
    "parquet of paths": Kind(_parquet_of_paths),
    "feather": Kind(_feather, cannot=NO_RESCAN),
    "tars": Kind(_tar, "t-?.tar"),
    "arrow": Kind(_arrow, "a-?.arrow", NO_RESCAN),
    "parquet": Kind(_parquet, "p-?.parquet", FOOTERS | SHARED),
    "saved": Kind(_saved, "saved/*.arrow", NO_RESCAN),
    "dataset": Kind(_dataset, cannot=MEMORY | {"relabel": "the labels are those of the rows"}),
    "joined": Kind(_joined, "[apt]-0.*", SHARED | VIEW | NO_RESCAN),
    "part": Kind(_part, "t-?.tar", SHARED | VIEW | OTHER_PART),
    "arrays": Kind(_arrays, cannot={"stream": "all images have one size"} | MEMORY | UNLIMITED | NO_FILES | SHARED),
    "hdf5": Kind(_cache, cannot=MEMORY | UNLIMITED | NO_FILES | CACHED | SHARED),
    "own source": Kind(_own, cannot=MEMORY | UNLIMITED | NO_FILES | OWN),
    "tars by URL": Kind(_at_url(_tar), "t-?.tar", ETAG),
    "tars by URL, copied": Kind(_at_url(_tar, copied=True), "t-?.tar", ETAG | IN_COPY),
    "list by URL": Kind(_list_of_urls, cannot=GIVEN | WHOLE_PATHS | ETAG),
    "csv by URL": Kind(_at_url(TABLES["csv"]), cannot=ETAG),
    "csv of URLs, copied": Kind(_table_of_urls, cannot=ETAG | IN_COPY),
    "folder in S3": Kind(_bucket, cannot=LISTED | ETAG | BY_NAME),
    "pattern in S3": Kind(_bucket_pattern, cannot=LISTED | ETAG | WHOLE_PATHS | BY_NAME),
    "arrow by URL": Kind(_at_url(_arrow, copied=True), "a-?.arrow", NO_RESCAN | WHOLE | ETAG),
    "parquet by URL": Kind(_at_url(_parquet), "p-?.parquet", FOOTERS | SHARED | ETAG),
    "parquet by URL, copied": Kind(_at_url(_parquet, copied=True), "p-?.parquet", FOOTERS | SHARED | COPIED | ETAG),
    "saved by URL": Kind(_saved_at_url, "saved/*.arrow", NO_RESCAN | WHOLE | ETAG | UNLISTED),
    "hdf5 by URL": Kind(_at_url(_cache, copied=True), cannot=MEMORY | UNLIMITED | NO_FILES | CACHED | SHARED),
}


def kinds_that(*abilities: str) -> list[str]:
    """Return the kinds that have all these abilities."""
    return [name for name, kind in KINDS.items() if not set(abilities) & set(kind.cannot)]
