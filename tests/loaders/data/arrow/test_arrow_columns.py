"""The choice of the image and label columns of a table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from photo_folder import photo
from photo_tables import IMAGE, features

from penstock.loaders import concat, open_source
from penstock.loaders.data.arrow.arrow_columns import AUTO, Chosen, choose_typed, holds_bytes, read_features
from penstock.loaders.data.sources.contract import Source
from penstock.pipelines.errors import LoaderError

BYTES, TEXT, NUMBER, PIXELS = pa.binary(), pa.string(), pa.int64(), pa.list_(pa.list_(pa.uint8()))


def choose(columns: dict[str, Any], image: str | None = None, label: str | None = AUTO, **options: Any) -> Chosen:
    schema = pa.schema(list(columns.items()))
    return choose_typed(schema, options.pop("features", {}), image, label, **options)


@pytest.mark.parametrize("kind", [BYTES, pa.large_binary(), IMAGE])
def test_columns_of_bytes_and_of_structs_are_image_columns(kind: pa.DataType) -> None:
    assert holds_bytes(kind)
    assert not any(map(holds_bytes, (TEXT, NUMBER, PIXELS, pa.struct([("bytes", TEXT)]), pa.struct([("a", BYTES)]))))


@pytest.mark.parametrize(
    ("columns", "image", "label"),
    [
        ({"label": NUMBER, "image": IMAGE}, "image", "label"),
        ({"img": IMAGE, "coarse_label": NUMBER, "fine_label": NUMBER}, "img", "fine_label"),
        ({"__key__": TEXT, "jpg": BYTES, "cls": NUMBER}, "jpg", "cls"),
        ({"hash": BYTES, "image": BYTES, "labels": TEXT}, "image", "labels"),
        ({"content": pa.large_binary(), "target": pa.dictionary(pa.int32(), TEXT)}, "content", "target"),
        ({"image": TEXT, "class": pa.bool_()}, "image", "class"),
        ({"Image": IMAGE, "Mask": IMAGE, "Label": NUMBER}, "Image", "Label"),
        ({"Path": TEXT, "IMAGE": TEXT, "Category": TEXT, "Class": NUMBER}, "IMAGE", "Class"),
        ({"Image": IMAGE, "jpg": BYTES, "Label": NUMBER, "target": NUMBER}, "jpg", "target"),  # exact names come first
        ({"path": TEXT, "img": TEXT, "labels": NUMBER, "class": NUMBER}, "img", "labels"),
        ({"path": TEXT, "x": BYTES, "Y": NUMBER}, "x", "Y"),
        ({"id": TEXT, "File_Name": TEXT, "y": NUMBER, "Class": NUMBER}, "File_Name", "Class"),
    ],
)
def test_columns_are_found_by_name_and_type(columns: dict[str, Any], image: str, label: str) -> None:
    assert choose(columns) == Chosen(image, {"": label} if label else {}, {})


def test_features_declared_by_hugging_face_come_first() -> None:
    declared = {"photo_of": {"_type": "Image"}, "species": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    columns = {"image": BYTES, "photo_of": IMAGE, "species": NUMBER}
    assert choose(columns, features=declared) == Chosen("photo_of", {"": "species"}, {"": ("cat", "dog")})
    assert choose(columns, image="image", label=None, features=declared) == Chosen("image", {}, {})
    assert choose({**columns, "image": TEXT}, label="species") == Chosen("image", {"": "species"}, {})


def test_options_override_the_automatic_choice() -> None:
    columns = {"image": BYTES, "mask": BYTES, "label": NUMBER, "other": NUMBER, "file": TEXT}
    assert choose(columns, "mask", "other") == Chosen("mask", {"": "other"}, {})
    assert choose(columns, "file") == Chosen("file", {"": "label"}, {})
    assert choose({"x": BYTES}, label=None) == Chosen("x", {}, {})


@pytest.mark.parametrize(
    ("columns", "image", "label", "text"),
    [
        (
            {"a": BYTES, "b": BYTES},
            None,
            None,
            "image must be .*no single column fits; the columns are a .binary., b .binary.",
        ),
        ({"a": BYTES, "b": BYTES, "path": TEXT}, None, None, "image must be .*no single column fits"),
        ({"image": PIXELS}, None, None, r"image must be .*image \(list<item: list<item: uint8>>\)"),
        ({"image": BYTES}, "img", None, "image must be .*got 'img'"),
        ({"image": BYTES, "score": pa.float32()}, None, AUTO, "label must be .*no column has a known name.*score"),
        ({"image": BYTES, "caption": TEXT}, None, AUTO, "name one with label=, or pass text='caption' for its texts;"),
        ({"image": BYTES, "kind": TEXT}, None, "knd", "label must be .*got 'knd'; perhaps 'kind'; the columns"),
        ({"image": BYTES, "when": pa.date32()}, None, "when", "label must be .*got 'when'"),
        ({"image": BYTES, "a": NUMBER, "b": NUMBER}, None, AUTO, "label must be"),
    ],
)
def test_a_column_that_cannot_be_chosen_is_refused_with_the_list_of_columns(
    columns: dict[str, Any], image: str, label: str, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        choose(columns, image, label)


def test_columns_of_paths_are_refused_where_encoded_images_are_required() -> None:
    assert choose({"image": TEXT}, label=None).image == "image"
    with pytest.raises(ValueError, match=r"encoded images \(binary, or struct with bytes\), but no"):
        choose({"image": TEXT}, label=None, paths=False)


@pytest.mark.parametrize("noise", [b"{", b"[]", b'{"info": 1}', b'{"info": {"features": []}}', b"[" * 100_000, b"\xff"])
def test_features_are_read_from_the_info_or_the_schema(noise: bytes) -> None:
    declared_features = features([b"a"])
    schema = pa.schema([], metadata={"huggingface": json.dumps({"info": {"features": declared_features}})})
    assert read_features(schema) == read_features(schema, noise) == declared_features
    assert read_features(schema, b'{"features": {"x": 1}}') == {"x": 1}
    assert read_features(pa.schema([], metadata={b"huggingface": noise})) == {}


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_files_of_one_data_set_share_one_list_of_classes(tmp_path: Path, suffix: str) -> None:
    """The shards were encoded separately: class 0 is a different animal in each."""
    datasets = pytest.importorskip("datasets")
    images = [photo(n) for n in range(2)]

    def labels(source: Source) -> tuple[list[int], tuple[str, ...]]:
        return source.labels(np.arange(len(source))).tolist(), tuple(map(os.fsdecode, source.classes))

    def write(
        name: str, numbers: list[Any], classes: list[str] | None = None, kind: Any = None, missing_column: str = ""
    ) -> Path:
        table = pa.table({"image": images, "label": pa.array(numbers, kind)})
        table = table.rename_columns(["other" if column == missing_column else column for column in table.column_names])
        if classes is not None:
            declared = datasets.Features(
                {"image": datasets.Value("binary"), "label": datasets.ClassLabel(names=classes)}
            )
            table = table.cast(declared.arrow_schema)
        path = tmp_path / f"{name}.{suffix}"
        if suffix == "parquet":
            pq.write_table(table, path)
        else:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
        return path

    one, same = write("1", [0, 1], ["cat", "dog"]), write("2", [1, 0], ["cat", "dog"])
    other, plain = write("3", [0, 1], ["bird", "cat"]), write("4", [1, 0])
    assert labels(open_source([one, same, plain])) == ([0, 1, 1, 0, 1, 0], ("cat", "dog"))
    for options in {}, {"classes": ["bird", "cat", "dog"]}:
        with pytest.raises(LoaderError, match=r"3.*the classes \['bird', 'cat'\], the first file .*concat"):
            open_source([one, other], **options)
    assert labels(concat([one, other])) == ([1, 2, 0, 1], ("bird", "cat", "dog"))
    floats: Any = open_source([one, other], label="label:float")
    assert floats.targets(np.arange(4)).tolist() == [0, 1, 0, 1]

    empty = write("5", [None, None], kind=pa.null())
    with pytest.raises(LoaderError, match=r"5\..* row 0: no label; 2 of 4 rows have none"):
        open_source([plain, empty])
    with pytest.warns(UserWarning, match="2 rows without a label"):
        assert labels(open_source([plain, empty], missing_labels="leave_out")) == ([1, 0], ("0", "1"))
    for column in "label", "image":
        lacking = write(f"no {column}", [0, 1], missing_column=column)
        with pytest.raises(LoaderError, match=f"it has no column '{column}', or more than one"):
            open_source([one, lacking])
