"""A made-up kind of data, opened in one function: an index of offsets into one blob, labels, and masks."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
from photo_folder import photo
from PIL import Image

from penstock.loaders import Masks, create_loader, with_fields
from penstock.loaders.data.files.contract import Source
from penstock.loaders.data.files.indexed_source import IndexedSource
from penstock.loaders.data.samples.samples_writer import SamplesWriter
from penstock.loaders.data.samples.version import Container
from penstock.pipelines import imagenet_eval


def open_blob(folder: Path) -> Source:
    """Open `blob`, whose parts `index.json` lists as (start, bytes, label), with the mask files next to it."""
    rows, blob = json.loads((folder / "index.json").read_bytes()), folder / "blob"
    writer = SamplesWriter()
    number = writer.add_container(Container.of_file(os.fsencode(blob), blob.stat()))
    starts, sizes, labels = np.array(rows).T
    writer.add_samples(np.full(len(rows), number), starts, sizes, [b"%d" % row for row in range(len(rows))])
    writer.classes, writer.labels = [b"cat", b"dog"], labels.astype(np.int32)
    images = IndexedSource(writer.save())
    return with_fields(images, mask=Masks(str(folder / "{name}.png")))


def test_a_new_kind_of_data_takes_one_function(tmp_path: Path) -> None:
    rows, blob = [], b""
    for row in range(6):
        data = photo(row)
        rows.append((len(blob), len(data), row % 2))
        blob += data
        width, height = Image.open(io.BytesIO(data)).size
        Image.new("L", (width, height), row).save(tmp_path / f"{row}.png")
    (tmp_path / "blob").write_bytes(blob)
    (tmp_path / "index.json").write_text(json.dumps(rows))
    with create_loader(open_blob(tmp_path), pipeline=imagenet_eval(16), batch_size=6, workers=0) as loader:
        (batch,) = loader.batches()
        assert batch.labels.tolist() == [0, 1, 0, 1, 0, 1]
        assert [int(mask.min()) for mask in batch.fields["mask"]] == list(range(6))
