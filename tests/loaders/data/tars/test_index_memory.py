"""Memory that indexing tars takes, and the packed arrays that hold their samples, against lists and dicts."""

from __future__ import annotations

import os
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tar_files import END, entry

from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.tars import tar_scan
from penstock.loaders.data.tars.packed_members import ImageNames, KeyNumbers, PlacedTexts
from penstock.loaders.data.tars.tar_labels import label_places
from penstock.loaders.data.tars.tar_scan import scan_tars
from penstock.loaders.data.tars.tar_source import open_tars

TARS, SAMPLES = 8, 1000


@pytest.fixture(scope="module", params=["together", "apart"])
def tiny_tars(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Paths of tars with many samples of a few bytes; "apart": the images of a tar precede its labels."""
    folder, paths = tmp_path_factory.mktemp("tiny"), []
    for tar in range(TARS):
        parts: list[list[bytes]] = [[], [], []]
        for sample in range(SAMPLES):
            key = b"%08d" % (tar * SAMPLES + sample)
            members = (b".jpg", b"\xff\xd8"), (b".cls", b"%d" % (sample % 100)), (b".txt", b"photo %d" % sample)
            for part, (suffix, content) in zip(parts, members, strict=True):
                part.append(entry(key + suffix, content))
        together = [member for members in zip(*parts, strict=True) for member in members]
        ordered = together if request.param == "together" else [member for part in parts for member in part]
        (folder / f"{tar}.tar").write_bytes(b"".join(ordered) + END)
        paths.append(os.fsencode(folder / f"{tar}.tar"))
    return paths


@pytest.mark.parametrize("options", [{}, {"text": "txt"}])
def test_indexing_takes_at_most_100_bytes_per_sample_besides_the_index(
    tiny_tars: list[bytes], options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tar_scan, "many_workers", lambda cpus: 8)
    open_tars(tiny_tars, **options)  # imports and caches
    tracemalloc.start()
    try:
        source = open_tars(tiny_tars, rescan=True, **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(source) == TARS * SAMPLES
    written = sum(path.stat().st_size for path in tmp_path.rglob("*.index"))
    assert (peak - written) / len(source) < 100


def test_only_some_tars_are_scanned_ahead(tiny_tars: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    plain = tar_scan.open_tar
    monkeypatch.setattr(tar_scan, "_AHEAD", 1)
    monkeypatch.setattr(tar_scan, "many_workers", lambda cpus: 2)
    monkeypatch.setattr(tar_scan, "open_tar", lambda path, store: (opened.append(path), plain(path, store))[1])
    many = 2 * tiny_tars
    for number, _ in enumerate(scan_tars(many, (), label_places("shard"), ObjectStore(), lambda done, total: None)):
        assert len(opened) <= number + 3
    assert opened == many


def test_names_keys_and_texts_are_packed_as_lists_and_dicts_hold_them() -> None:
    draw = random.Random(5)
    for trial in range(60):
        names, packed = list[bytes](), ImageNames()
        numbers, table = dict[bytes, int](), KeyNumbers(packed, lambda name: name.partition(b".")[0])
        texts, placed = dict[int, bytes](), PlacedTexts()
        for _ in range(draw.choice([1, 30, 3000])):
            key = b"%d" % draw.randrange(draw.choice([3, 10_000]))
            name = key + b"." + draw.choice([b"j", b"jpeg", b"a.png"])
            number = table.find(key)
            assert number == numbers.setdefault(key, len(numbers)), trial
            if number == len(names):
                names.append(name)
                packed.append(name)
            elif draw.random() < 0.5:
                names[number] = packed[number] = name
            text = draw.choice([b"", b"text", key])
            if draw.random() < 0.5:
                assert placed.add(number, text) == (number not in texts)
                texts.setdefault(number, text)
            assert placed.has(number) == (number in texts)
        assert [packed[number] for number in range(len(packed))] == names
        kept = np.array([draw.random() < draw.choice([0.5, 2]) for _ in names])
        which = np.flatnonzero(kept).tolist()
        assert list(packed.pack(kept)) == [names[number] for number in which]
        assert list(ImageNames().pack(kept[:0])) == []
        placed.keep(kept)
        expected = [texts.get(number) for number in which] if texts else []
        assert list(placed) == expected
        assert placed.find_missing(len(which)).tolist() == [
            at for at, number in enumerate(which) if not texts.get(number)
        ]
