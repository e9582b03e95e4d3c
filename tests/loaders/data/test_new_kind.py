"""A made-up kind of data, opened by one function: a blob with offsets, a column of labels and one of masks."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from odd_images import encoded
from photo_folder import write_folder
from PIL import Image

from penstock.loaders import LoaderError, create_loader, open_source, split
from penstock.loaders.data.fields.field_specs import add_fields
from penstock.loaders.data.fields.picture_files import PictureSource
from penstock.loaders.data.files.indexed_source import IndexedSource
from penstock.loaders.data.labels.label_rows import LabelRows
from penstock.loaders.data.labels.row_errors import RowOrigin
from penstock.loaders.data.labels.stored_labels import take_labels
from penstock.loaders.data.samples.samples_writer import SamplesWriter
from penstock.loaders.data.samples.version import Container
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.data.sources.step import Field
from penstock.loaders.front import open_source as front
from penstock.pipelines import imagenet_train
from penstock.pipelines.fields.field_kinds import FieldKind


def open_blob(paths: list[bytes], *, classes: Any = None, missing_labels: str = "raise") -> Source:
    """Open x.blob.json: for each sample in x.blob, its name, label, and offset and bytes of image and mask."""
    (path,) = paths
    rows = json.loads(Path(os.fsdecode(path)).read_bytes())
    blob = path.removesuffix(b".json")
    labels, fail = LabelRows(classes, missing_labels=missing_labels), RowOrigin(path)
    for number, row in enumerate(rows):
        labels.add(row["label"], fail, number)
    found, kept = labels.finish(), np.flatnonzero(~labels.left_out)
    parts = []
    for part in ("image", "mask"):
        writer = SamplesWriter(kind="blobs")
        container = writer.add_container(Container.of_file(blob, os.stat(blob)))
        starts, sizes = np.array([row[part] for row in rows]).T
        writer.add_samples(np.full(len(rows), container), starts, sizes, [row["name"].encode() for row in rows])
        take_labels(writer, found, kept)
        parts.append(IndexedSource(writer.save()))
    images, masks = parts
    return add_fields(images, {"mask": Field(FieldKind(kind="mask"), PictureSource(masks, np.arange(len(masks))))})


BLOB = front.Kind(front.FILES, "blobs", lambda *_: True, open_blob, ("missing_labels",), (".blob.json",))


@pytest.fixture
def blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the photos of a folder as a blob, each with a mask of its number; register the kind."""
    monkeypatch.setattr(front, "KINDS", (BLOB, *front.KINDS))
    monkeypatch.setattr(front, "SOURCE_OPTIONS", front.SOURCE_OPTIONS | set(BLOB.options))
    source = open_source(write_folder(tmp_path / "photos", 12))
    rows, data = [], b""
    for number in range(len(source)):
        image = source.read(number)
        label = os.fsdecode(source.classes[int(source.labels(np.array([number]))[0])])
        assert isinstance(image, bytes)
        mask = encoded(Image.new("L", Image.open(io.BytesIO(image)).size, number), "PNG")
        places = {"image": (len(data), len(image)), "mask": (len(data) + len(image), len(mask))}
        rows.append({"name": os.path.basename(os.fsdecode(source.path(number))), "label": label, **places})
        data += image + mask
    (tmp_path / "photos.blob").write_bytes(data)
    (tmp_path / "photos.blob.json").write_text(json.dumps(rows))
    return tmp_path / "photos.blob.json"


def batches(source: Any, **options: Any) -> list[Any]:
    with create_loader(source, pipeline=imagenet_train(32), batch_size=4, seed=3, workers=2, **options) as loader:
        return list(loader.batches())


def test_a_new_kind_serves_the_stream_of_the_folder(blob: Path) -> None:
    for made, known in zip(batches(blob), batches(blob.parent / "photos"), strict=True):
        assert made.images.equal(known.images)
        assert made.labels.equal(known.labels)
        for index, mask in zip(made.index.tolist(), made.fields["mask"], strict=True):
            assert mask.unique().tolist() == [index]


def test_a_new_kind_has_views_errors_and_states(blob: Path) -> None:
    train, _ = split(open_source(blob), 0.5, by_class=True)
    served = {index for batch in batches(train) for index in batch.fields["mask"].flatten(1)[:, 0].tolist()}
    assert len(served) == 4  # six samples give one full batch of four
    rows = json.loads(blob.read_text())
    rows[3]["label"] = None
    blob.write_text(json.dumps(rows))
    with pytest.raises(LoaderError, match="row 3"):
        open_source(blob)
    assert len(open_source(blob, missing_labels="leave_out")) == 11
    rows[3]["label"] = rows[2]["label"]
    blob.write_text(json.dumps(rows))
    source = open_source(blob)
    with open(blob.with_suffix(""), "ab") as file:
        file.write(b"more")
    with pytest.raises(LoaderError, match="E-CHANGED"):
        source.read(0)
