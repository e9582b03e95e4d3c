"""Fingerprints of fields, large data, and copies of data by URL; for data itself see data/test_source_contract.py."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from folder_trees import plant, settle
from odd_images import encoded
from range_server import serve_ranges
from tar_files import write_tar

from penstock.loaders import Boxes, Masks, create_loader, open_source, with_fields
from penstock.loaders.data.files import content_probe
from penstock.pipelines import ImagePipeline

N = 6


def bmp(seed: int) -> bytes:
    """A picture of noise; all of them have the same size in bytes."""
    return encoded(np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8), "BMP")


CHANGES: dict[str, Callable[[dict[str, list[Any]]], object]] = {
    "two masks": lambda data: data["masks"].reverse(),
    "a mask": lambda data: data["masks"].__setitem__(3, 201),
    "a box": lambda data: data["boxes"][2][0].__setitem__(3, 5.5),
    "a text": lambda data: data["texts"].__setitem__(4, "another"),
}


def test_a_changed_field_changes_the_fingerprint(tmp_path: Path) -> None:
    """A copy elsewhere, at another time, has the same fingerprint."""

    def write(folder: str, change: Callable[[dict[str, list[Any]]], object] = len) -> str:
        data: dict[str, list[Any]] = {
            "masks": list(range(N)),
            "boxes": [[[0.0, 0.0, 1.0 + n, 2.0]] for n in range(N)],
            "texts": [f"text {n}" for n in range(N)],
        }
        change(data)
        masks = plant(tmp_path / folder, {f"{n}.png": encode(data["masks"][n]) for n in range(N)})
        images = (np.zeros((N, 6, 6, 3), np.uint8), [0] * N)
        fields = {"mask": Masks([masks / f"{n}.png" for n in range(N)]), "boxes": Boxes(data["boxes"])}
        return with_fields(images, **fields, text=data["texts"]).fingerprint

    before = write("a")
    settle(tmp_path)
    assert write("far/away") == before
    for change, apply in CHANGES.items():
        assert write(change, apply) != before, change


def encode(level: int) -> bytes:
    return encoded(np.full((6, 6), level, np.uint8), "PNG")


def test_large_data_is_probed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_probe, "NUM_PROBES", 20)
    monkeypatch.setattr(content_probe, "PROBE_BYTES", 16)
    data, rng = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8), np.random.default_rng(1)
    sizes = rng.integers(0, 400, 500)
    sizes[7] = 30_000
    starts = np.cumsum(sizes) - sizes
    read: list[tuple[int, int]] = []

    def probe(order: np.ndarray) -> bytes:
        def look(name: bytes, start: int, count: int) -> bytes:
            read.append((start, count))
            return data[start : start + count].tobytes()

        return content_probe.probe_ranges([b"x"] * len(order), starts[order], sizes[order], look)

    plain = np.arange(len(sizes))
    assert probe(plain) == probe(plain)
    assert len(read) == 2 * 20
    assert all(0 < count <= 16 for _, count in read)
    assert len({probe(rng.permutation(plain)) for _ in range(20)} | {probe(plain), probe(plain[::-1])}) == 22


def test_a_truncated_local_copy_ends_no_process(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    write_tar(tmp_path / "web" / "a.tar", [(f"{n:04}.bmp", bmp(n)) for n in range(800)])
    pipeline = ImagePipeline(size=(6, 6), crop="full", flip=0.0)
    with serve_ranges(tmp_path / "web") as server:
        options = {"local_cache": tmp_path / "copy", "bytes_ahead": 1 << 16, "label": None}
        with create_loader(f"{server.url}/a.tar", pipeline=pipeline, batch_size=100, workers=0, **options) as loader:
            batches = iter(loader)
            seen = [next(batches)[0]]
            for name, size in (("table", 0), ("samples", 100)):
                for path in (tmp_path / "copy").rglob(name):
                    os.truncate(path, size)
            seen += [images for images, _ in batches]
    with create_loader(tmp_path / "web" / "a.tar", pipeline=pipeline, batch_size=100, workers=0, label=None) as loader:
        assert torch.equal(torch.cat(seen), torch.cat([images for images, _ in loader]))
    shutil.rmtree(tmp_path / "copy")


@pytest.mark.parametrize("local", [False, True])
def test_a_server_without_versions_warns_and_nothing_is_saved(tmp_path: Path, local: bool) -> None:
    (tmp_path / "web").mkdir()
    options: dict[str, Any] = {"local_cache": tmp_path / "copy"} if local else {}
    with serve_ranges(tmp_path / "web") as server:
        server.etags, server.has_dates = {"/a.tar": ""}, False
        for first in (0, 10):
            members = [(f"{n}.bmp", bmp(first + n)) for n in range(3)]
            write_tar(tmp_path / "web" / "a.tar", members)
            with (
                contextlib.nullcontext() if first else pytest.warns(UserWarning, match="neither ETag nor Last-Modified")
            ):
                source = open_source(f"{server.url}/a.tar", label=None, **options)
            assert [source.read(n) for n in range(3)] == [data for _, data in members]
    assert not list((tmp_path / "copy").rglob("samples")) if local else True
