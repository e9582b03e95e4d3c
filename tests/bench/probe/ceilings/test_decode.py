"""Decode ceilings: the stream's windows, whole files or parts of a cache, without bad files."""

from __future__ import annotations

from pathlib import Path

import native_tests
import pytest
import simplejpeg
from broken_scans import KINDS, make_undecodable
from odd_images import encoded, textured
from photo_folder import photo, write_folder

from penstock.bench.probe.ceilings import decode as module
from penstock.bench.probe.ceilings.decode import DecodeCeiling, ceiling_of
from penstock.bench.run.run_probes import cached_sample
from penstock.loaders import open_source
from penstock.loaders.make.sample_reader import SampleReader
from penstock.pipelines import LoaderError, imagenet_train


def test_cache_ceiling_is_measured_in_memory(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    source, pipeline = open_source(photos), imagenet_train(32)
    with cached_sample(source, 0) as (_, cache):
        ceiling = ceiling_of(cache, pipeline, "auto", 0)
    assert list(tmp_path.iterdir()) == []
    assert ceiling.largest == DecodeCeiling(source, pipeline, "auto", 0).largest
    monkeypatch.setattr(type(source), "read", lambda *_: pytest.fail("a file was read"))
    assert ceiling.measure(0.05).images > 0


def test_decode_ceiling_skips_bad_files(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path, 6, classes=1)
    (tmp_path / "class0" / "0001.jpg").write_bytes(b"not an image")
    source = open_source(tmp_path)
    ceiling = DecodeCeiling(source, imagenet_train(32), "auto", 0)
    sizes = [simplejpeg.decode_jpeg_header(photo(number))[1::-1] for number in (0, 2, 3, 4, 5)]
    assert ceiling.largest == max(sizes, key=lambda size: size[0] * size[1])
    monkeypatch.setattr(type(source), "read", lambda *_: pytest.fail("the ceiling read a file"))
    assert ceiling.measure(0.05).images % 5 == 0
    assert ceiling.measure(0.05, resize=False).median > 0
    assert ceiling.decode(0.05).median > 0
    assert ceiling.resize(0.05).median > 0


def test_a_file_that_turns_out_bad_is_left_out_while_measuring(tmp_path: Path) -> None:
    write_folder(tmp_path, 6, classes=1)
    broken = tmp_path / "class0" / "0001.jpg"
    broken.write_bytes(make_undecodable(broken.read_bytes(), KINDS[2]))
    ceiling = DecodeCeiling(open_source(tmp_path), imagenet_train(32), "simplejpeg", 0)
    assert len(ceiling.loaded) == 6  # its header is sound
    assert ceiling.measure(0.05).median > 0
    assert len(ceiling._samples) == 5
    broken.unlink()
    for path in tmp_path.glob("*/*.jpg"):
        path.write_bytes(make_undecodable(path.read_bytes(), KINDS[2]))
    with pytest.raises(LoaderError, match="E-NODATA"):
        DecodeCeiling(open_source(tmp_path), imagenet_train(32), "simplejpeg", 0).measure(0.05)


def test_few_samples_are_read_from_slow_storage(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MIN_SAMPLES", 5)
    monkeypatch.setattr(module, "_LOAD_S", -1.0)
    ceiling = DecodeCeiling(open_source(photos), imagenet_train(32), "simplejpeg", 0)
    assert len(ceiling.loaded) == 5
    assert [item.sample for item in ceiling.loaded] != [0, 1, 2, 3, 4]  # from all parts of the data


def test_native_ceiling_needs_plain_files(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(photos)
    monkeypatch.setattr(source, "read", source.read)
    with pytest.raises(LoaderError, match="the native library reads plain files") as caught:
        ceiling_of(source, imagenet_train(32), "native", 0)
    assert caught.value.code == "E-MISUSE"
    assert caught.value.fix == "name another decoder, or 'auto'"
    assert ceiling_of(source, imagenet_train(32), "auto", 0).measure(0.01).images > 0


@pytest.fixture
def python_loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The samples loaded by the Python path."""
    loads: list[int] = []
    load = SampleReader.load
    monkeypatch.setattr(SampleReader, "load", lambda self, sample: (loads.append(sample), load(self, sample))[1])
    return loads


def test_the_ceiling_of_the_native_library_counts_the_images_that_it_leaves_to_python(
    tmp_path: Path, python_loads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    native_tests.native()
    write_folder(tmp_path, 10, classes=1)
    paths = sorted(tmp_path.glob("*/*.jpg"))
    for number in (1, 4):  # whole PNGs
        paths[number].write_bytes(encoded(textured(60, 80), "PNG"))
    ceiling = ceiling_of(open_source(tmp_path), imagenet_train(32), "native", 0)
    assert sorted(python_loads) == list(range(10))
    del python_loads[:]
    with monkeypatch.context() as patch:
        patch.setattr(module, "on_one_thread", lambda step, seconds: [step(), step()])
        assert ceiling.measure(1) == [module.STEP, 10 - module.STEP]
    assert sorted(python_loads) == [1, 4]
    for path in paths:
        path.write_bytes(encoded(textured(60, 80), "PNG"))
    ceiling = ceiling_of(open_source(tmp_path), imagenet_train(32), "native", 0)
    assert ceiling.measure(0.05).median > 0
    assert ceiling.decode(0.05).median > 0


def test_the_ceiling_of_the_native_library_leaves_bad_images_out(tmp_path: Path, python_loads: list[int]) -> None:
    native_tests.native()
    write_folder(tmp_path, 5, classes=1)
    paths = sorted(tmp_path.glob("*/*.jpg"))
    paths[2].write_bytes(make_undecodable(paths[2].read_bytes(), KINDS[2]))
    ceiling = ceiling_of(open_source(tmp_path), imagenet_train(32), "native", 0)
    del python_loads[:]
    assert ceiling.measure(0.05).images % 4 == 0
    assert python_loads == [2]
    for path in paths:
        path.write_bytes(make_undecodable(path.read_bytes(), KINDS[2]))
    with pytest.raises(LoaderError, match="E-NODATA"):
        ceiling_of(open_source(tmp_path), imagenet_train(32), "native", 0).measure(0.05)
