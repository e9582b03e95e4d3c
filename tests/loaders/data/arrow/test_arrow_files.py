"""Arrow files as a source: same bytes, labels and order as the class folder; damage gives an error of one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from forked_commands import Commands
from photo_tables import IMAGE, assert_same_samples, photo_table, write_arrow, write_parquet

from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.files.indexed_source import IndexedSource
from penstock.loaders.front.open_source import open_source
from penstock.pipelines.errors import LoaderError


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", [IMAGE, pa.binary(), pa.large_binary()])
def test_streams_and_files_of_each_image_type_equal_the_folder(
    tmp_path: Path, folder: ImageFolder, stream: bool, kind: pa.DataType
) -> None:
    source = open_source(write_arrow(tmp_path / "photos.arrow", photo_table(folder, kind=kind), stream=stream))
    assert isinstance(source, IndexedSource)
    assert_same_samples(source, folder)
    assert source.num_bytes == folder.num_bytes
    name = " (0030.jpg)" if kind == IMAGE else ""
    assert source.path(10) == os.fsencode(f"{tmp_path}/photos.arrow:row 10{name}")
    assert source.describe() == "61 images, 3 classes, 0.1 MB in 1 Arrow file"


def test_images_without_labels_are_one_class(tmp_path: Path, folder: ImageFolder) -> None:
    source = open_source(write_arrow(tmp_path / "photos.arrow", photo_table(folder)), label=None)
    assert source.classes == (b".",)
    assert source.labels(np.arange(61)).tolist() == [0] * 61
    with pytest.raises(ValueError, match=r"label must be .*the columns are number \(int64\), image \(struct.*label"):
        open_source(tmp_path / "photos.arrow", label="labels")


def test_rows_without_image_or_label_are_skipped_and_counted(tmp_path: Path, folder: ImageFolder) -> None:
    images = [{"bytes": folder.read(0), "path": None}, None, {"bytes": None, "path": None}, {"bytes": folder.read(1)}]
    table = pa.table({"image": pa.array([*images, images[0]], IMAGE), "label": [0, 0, 0, None, 1]})
    path = write_arrow(tmp_path / "some.arrow", table)
    for _ in range(2):  # scanned, then from the saved index
        words = r"2 rows without an image \('row 1'\), 1 row without a label \('row 3'\)"
        with pytest.warns(UserWarning, match=rf"some.arrow': left out: {words}"):
            source = open_source(path, missing_labels="leave_out")
    assert [source.read(0), source.read(1)] == [folder.read(0)] * 2
    assert source.path(1).endswith(b":row 4")
    assert source.skipped == {"row without an image": 2, "row without a label": 1}
    with pytest.raises(LoaderError, match=r"E-FORMAT.*some.arrow row 3: no label: .*missing_labels='leave_out'"):
        open_source(path)
    with pytest.raises(LoaderError, match=r"E-NODATA.*none of the 1 rows has a label: fix=pass label=None"):
        open_source(write_arrow(tmp_path / "none.arrow", table.slice(3, 1)), missing_labels="leave_out")
    with pytest.raises(LoaderError, match="E-NODATA"):
        open_source(write_arrow(tmp_path / "empty.arrow", table.slice(0, 0)))


@pytest.mark.parametrize(
    ("suffix", "write"),
    [("arrows", write_arrow), ("arrow", partial(write_arrow, stream=False)), ("parquet", write_parquet)],
)
def test_an_empty_file_among_others_is_named(
    tmp_path: Path, folder: ImageFolder, suffix: str, write: Callable[..., Path]
) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.{suffix}", photo_table(folder).slice(0, 0 if number == 1 else 9))
    with pytest.raises(LoaderError, match=rf"E-NODATA.*1.{suffix}' cause=the file has no rows"):
        open_source(str(tmp_path / f"*.{suffix}"))


def test_rows_with_paths_of_images_are_read(tmp_path: Path, folder: ImageFolder) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.jpg").write_bytes(folder.read(5))
    absolute = os.fsdecode(folder.path(7))
    rows = [{"path": "sub/a.jpg"}, {"bytes": folder.read(6)}, {"path": absolute}, {"path": "absent.jpg"}]
    table = pa.table({"image": pa.array(rows, IMAGE), "label": [0, 1, 0, 1], "file": ["sub/a.jpg"] * 4})
    path = write_arrow(tmp_path / "mixed.arrow", table)
    source = open_source(path)
    assert [source.read(index) for index in range(3)] == [folder.read(index) for index in (5, 6, 7)]
    assert source.path(0) == os.fsencode(tmp_path / "sub" / "a.jpg") + b":row 0"
    assert source.describe().endswith("in 4 files")
    with pytest.raises(LoaderError, match=r"E-MISSING\] sample=3 .*absent\.jpg:row 3"):
        source.read(3)
    by_name = open_source(path, image="file")
    assert [by_name.read(index) for index in range(4)] == [folder.read(5)] * 4
    (tmp_path / "sub" / "a.jpg").write_bytes(b"other")
    with pytest.raises(LoaderError, match="E-CHANGED"):
        by_name.read(0)
    lost = pa.table({"image": ["gone.jpg", "lost.jpg"], "label": [0, 0]})
    with pytest.raises(LoaderError, match=r"E-MISSING.*gone\.jpg"):
        open_source(write_arrow(tmp_path / "lost.arrow", lost))


@pytest.mark.parametrize(("stream", "compression"), [(True, "lz4"), (False, "zstd")])
def test_compressed_batches_are_refused_with_a_fix(
    tmp_path: Path, folder: ImageFolder, stream: bool, compression: str
) -> None:
    path = write_arrow(tmp_path / "x.feather", photo_table(folder), stream=stream, compression=compression)
    with pytest.raises(LoaderError, match=r"E-UNSUPPORTED.*batches are compressed: fix=write it uncompressed"):
        open_source(path)


@pytest.mark.parametrize(
    ("suffix", "content", "code"),
    [
        ("arrow", b"", "E-EMPTY"),
        ("arrow", b"ARROW1", "E-FORMAT"),
        ("arrow", b"not Arrow" * 99, "E-FORMAT"),
        ("arrow", None, "E-NODATA"),
        ("parquet", b"", "E-FORMAT"),
        ("parquet", b"PAR1" * 9, "E-FORMAT"),
        ("parquet", None, "E-NODATA"),
    ],
)
def test_a_file_of_another_format_is_refused(tmp_path: Path, suffix: str, content: bytes | None, code: str) -> None:
    path = tmp_path / f"x.{suffix}"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LoaderError, match=rf"{code}\] path='.*x\.{suffix}'"):
        open_source(path)


def test_a_stream_cut_between_two_batches_is_noticed(tmp_path: Path, folder: ImageFolder) -> None:
    path = write_arrow(tmp_path / "x.arrow", photo_table(folder))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(LoaderError, match=r"E-TRUNC.*no end mark"):
        open_source(path)


# Opens damaged copies of files and reads every row: each fault must be a LoaderError, never a signal.
DAMAGE = """
import random, sys
from penstock.loaders.front.open_source import open_source
from penstock.pipelines.errors import LoaderError
rng = random.Random(1)
for path in sys.argv[1:]:
    whole, opened, refused = open(path, "rb").read(), 0, 0
    for number in range(100):
        data = bytearray(whole)
        if number % 3 == 0:
            del data[rng.randrange(len(data)):]
        for _ in range(number % 3 * rng.randrange(1, 9)):
            near = rng.choice((rng.randrange(3000), -1 - rng.randrange(3000)))
            data[rng.randrange(len(data)) if number % 2 else near] = rng.randrange(256)
        with open(path, "wb") as file:
            file.write(data)
        try:
            source = open_source(path)
            opened += 1
            for index in range(len(source)):
                source.read(index)
        except (LoaderError, ValueError) as error:
            refused += 1
            assert "\\n" not in str(error), error
    print(opened, refused)
"""


def test_damaged_files_never_kill_the_process(commands: Commands, tmp_path: Path, folder: ImageFolder) -> None:
    table = photo_table(folder).slice(0, 12)
    paths = [
        write_arrow(tmp_path / f"x.{suffix}", table, stream=suffix == "arrows", rows=4)
        for suffix in ("arrow", "arrows")
    ]
    paths.append(write_parquet(tmp_path / "x.parquet", table, rows=4))
    (tmp_path / "damage.py").write_text(DAMAGE)
    code, command = commands.run(*paths, script=tmp_path / "damage.py")
    assert code == 0, command.errors
    for line in command.output.splitlines():
        opened, refused = map(int, line.split())
        assert opened > 12
        assert refused > 25
    assert command.output.count("\n") == 3
