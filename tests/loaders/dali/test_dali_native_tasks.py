"""Tasks for DALI from the native library: the same bytes, windows, flips and errors as from the Python path."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jpeg_parts as jp
import numpy as np
import pytest
import two_paths
from cache_files import strip_item, write_cache
from native_tests import native
from odd_images import jpeg, scene, textured
from photo_folder import photo

from penstock.loaders.dali.dali_tasks import CropTaskProducer
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.make import native_rows
from penstock.pipelines.jpeg.header import parse_header
from penstock.pipelines.jpeg.strips import segment_ends
from penstock.pipelines.spec import ImagePipeline

NUM_PHOTOS = 70
check_both = partial(two_paths.check_both, make=CropTaskProducer)
IGNORED: dict[str, Any] = {"on_repaired": "ignore"}


@pytest.fixture(autouse=True)
def _built(monkeypatch: pytest.MonkeyPatch) -> None:
    library = native()
    monkeypatch.setattr(native_rows, "native_library", lambda: library)


@pytest.mark.parametrize("on_repaired", ["count", "replace"])
def test_samples_are_checked_for_repairs_once(photos: Path, on_repaired: str) -> None:
    """The Python path checks them; the library takes over in the next epoch where nothing was repaired."""
    made = check_both(ImageFolder(photos), 10, at_least=60, on_repaired=on_repaired)
    assert made.native <= 10 * two_paths.BATCH - NUM_PHOTOS


def test_strips_that_contradict_their_record_are_refused_or_decoded(tmp_path: Path) -> None:
    """As a faulty or hostile builder may store them, with every CRC correct."""
    kinds = [jpeg(textured(97, 160), subsampling=kind, restart_marker_blocks=2) for kind in (0, 1, 2)]
    kinds.append(jpeg(scene(97, 160)[..., 0], restart_marker_blocks=4))
    sound = [strip_item(data, strip_rows) for data in kinds for strip_rows in (1, 2, 5)]
    data = kinds[2]
    header = parse_header(data)
    scan = data[header.scan_offset : -2]
    end = segment_ends(np.frombuffer(scan, np.uint8)).tolist()[7]
    scans = {
        "renumbered": scan[: end - 1] + b"\xd3" + scan[end:],
        "one marker less": scan[: end - 2] + scan[end:],
        "one more": scan[:end] + b"\xff\xd0" + scan[end:],
        "one more at the end": scan + b"\xff\xd0",
        "a stray one": scan[: end - 9] + b"\xff\xd9" + scan[end - 7 :],
        "cut short": scan[: len(scan) // 2],
        "no markers": bytes(90),
        "nothing": b"",
    }
    fields = ({"segment_mcus": 3}, {"segment_mcus": 5}, {"strip_rows": 1}, {"strip_rows": 7})
    fields += ({"width": 162}, {"width": 320}, {"height": 113}, {"height": 40}, {"mcu_height": 8}, {"height_offset": 9})
    odd = [(strip_item(data, 2, each), {}) for each in scans.values()]
    odd += [(strip_item(data), each) for each in fields]
    whole = {"pipeline": ImagePipeline(crop="full", size=(40, 24), flip=0.0)}
    for changes in ({}, whole):
        made = check_both(open_cache(write_cache(tmp_path / "sound.h5", sound)), 3, at_least=24, **IGNORED, **changes)
        assert made.codes == set()
        codes = set()
        for item, lies in odd:
            cache = open_cache(write_cache(tmp_path / "odd.h5", [*sound, item]))
            for name, value in lies.items():  # opening refuses most of them
                cache.records[name][-1] = value
            for decoder in ("auto", "simplejpeg"):
                settings = two_paths.settings_of(
                    cache, decoder=decoder, on_repaired="ignore", evaluation=True, **changes
                )
                codes |= two_paths.Made(CropTaskProducer, settings, 5).codes
        assert "E-CACHE" in codes


def test_narrow_windows_and_stray_markers_are_left_to_python(tmp_path: Path) -> None:
    """One column of an image, colours that a decoder guesses, markers without an end, damage behind the scan."""
    plain = jpeg(scene(61, 83), subsampling=2)
    restarts = jpeg(scene(61, 83), subsampling=2, restart_marker_blocks=3)
    adobe = [jp.segment(jp.APP14, b"Adobe\0\x64\0\0\0\0" + bytes([transform])) for transform in (0, 1)]
    files = [photo(k) for k in range(8)]
    files += [jpeg(np.ascontiguousarray(textured(48, 48)[:side, :side]), subsampling=2) for side in (1, 2, 2, 3, 3, 3)]
    files += [jp.insert(plain, b"".join(adobe[k] for k in order)) for order in ((0,), (1,), (0, 1), (1, 0))]
    for data in (plain, restarts):
        middle = len(data) - 200
        files += [
            data[:middle] + stray + data[middle + 2 :] for stray in (b"\xff\xd3", b"\xff\xd8", b"\xff\xc4", b"\xff\xff")
        ]
        files += [data[:-2], data[: len(data) // 2], data + b"behind", data[:-2] + b"\xff\xff\xd9"]
    folder = tmp_path / "odd" / "class0"
    folder.mkdir(parents=True)
    for number, data in enumerate(files):
        (folder / f"{number:02d}.jpg").write_bytes(data)
    made = check_both(ImageFolder(tmp_path / "odd"), 8, at_least=32, **IGNORED)
    assert made.native < sum(len(batch[0]) for batch in made.batches)


def test_a_batch_without_memory_is_left_to_python(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = np.empty

    def none_left(shape: Any, *rest: Any) -> Any:
        if isinstance(shape, int) and shape > 100:
            raise MemoryError
        return empty(shape, *rest)

    settings = two_paths.settings_of(ImageFolder(photos), **IGNORED)
    made = two_paths.Made(CropTaskProducer, settings, 2)
    monkeypatch.setattr(native_rows.np, "empty", none_left)
    without = two_paths.Made(CropTaskProducer, settings, 2)
    assert (made.native, without.native) == (2 * two_paths.BATCH, 0)
    assert made.batches == without.batches


def test_repeated_batches_are_left_to_python(photos: Path) -> None:
    assert CropTaskProducer(two_paths.settings_of(ImageFolder(photos)), checked=True)._native is None
