"""The sizes of all images: equal to the decoded sizes, and read once per content of the data."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from odd_images import encoded
from photo_folder import photo, write_folder
from PIL import Image

from penstock.loaders import LoaderError, open_source
from penstock.loaders.cache_build.open_or_build import prepare_source
from penstock.loaders.make import native_rows
from penstock.loaders.make.sizes import read_sizes
from penstock.loaders.make.sizes.read_sizes import image_sizes
from penstock.pipelines import imagenet_train
from penstock.pipelines.spec import ImagePipeline

PLAIN, UPRIGHT = ImagePipeline(), ImagePipeline(exif="apply")


def known(source: Any, pipeline: ImagePipeline = PLAIN) -> list[tuple[int, int]]:
    sizes = image_sizes(source, pipeline)
    return list(zip(sizes.widths.tolist(), sizes.heights.tolist(), strict=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Photos, one with a long header and one rotated by EXIF, a PNG, and a file that is not an image."""
    root = write_folder(tmp_path / "photos", 9, classes=1) / "class0"
    turned = Image.Exif()
    turned[0x0112] = 6
    picture = Image.new("RGB", (70, 30))
    picture.save(root / "0100.jpg", exif=turned)
    picture.save(root / "0101.jpg", icc_profile=bytes(100_000))
    picture.resize((70_000, 3)).save(root / "0102.png")  # more than 16 bits
    (root / "0103.jpg").write_bytes(b"no image at all")
    return root.parent


def true_sizes(folder: Path, *, upright: bool = False) -> list[tuple[int, int]]:
    sizes = []
    for path in sorted(folder.glob("*/*")):
        if path.name == "0103.jpg":
            sizes.append((0, 0))
            continue
        with Image.open(path) as image:
            sizes.append(image.size[:: -1 if upright and path.name == "0100.jpg" else 1])
    return sizes


@pytest.mark.parametrize("native", [True, False])
def test_sizes_are_of_the_upright_images(folder: Path, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_sizes, "_CHUNK", 5)
    if not native:
        monkeypatch.setattr(native_rows, "native_library", lambda: None)
    assert known(open_source(folder)) == true_sizes(folder)
    assert known(open_source(folder), UPRIGHT) == true_sizes(folder, upright=True) != true_sizes(folder)


def test_only_headers_of_photos_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A photo with damage behind its header has a size; no photo is left to Python."""
    write_folder(tmp_path, 5)
    (tmp_path / "class0" / "0000.jpg").write_bytes(photo(0)[:-100])
    monkeypatch.setattr(read_sizes.SampleReader, "load", lambda *_: pytest.fail("Python read a photo"))
    assert 0 not in np.array(known(open_source(tmp_path)))


def test_arrays_caches_and_views_have_the_same_sizes(folder: Path) -> None:
    (folder / "class0" / "0103.jpg").unlink()
    source = open_source(folder)
    cache = prepare_source(source, folder.with_suffix(".h5"))
    assert known(cache) == known(source) == true_sizes(folder)
    assert known(cache, UPRIGHT) == true_sizes(folder, upright=True)
    assert known(open_source(folder, subset=[3, 1])) == [true_sizes(folder)[3], true_sizes(folder)[1]]
    for channels in (1, 3):
        pixels = np.zeros((4, 20, 30, channels), np.uint8)
        assert known(open_source((pixels, np.zeros(4, np.int64)))) == [(30, 20)] * 4


def test_sizes_are_read_once_and_again_when_the_data_has_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the file that is not an image is tried again."""
    reads, whole = [], read_sizes.read_sizes

    def read(source: Any, pipeline: ImagePipeline, samples: Any = None) -> Any:
        if samples is None or samples.tolist() != [len(source) - 1]:
            reads.append(len(source))
        return whole(source, pipeline, samples)

    monkeypatch.setattr(read_sizes, "read_sizes", read)
    first = known(open_source(folder))
    assert known(open_source(folder)) == first
    assert reads == [13]
    known(open_source(folder), UPRIGHT)  # other sizes, saved in another file
    known(open_source(folder), imagenet_train(32, auto_augment="rand"))  # the same sizes
    assert reads == [13, 13]
    shutil.copy(folder / "class0" / "0001.jpg", folder / "class0" / "0000.jpg")
    again = known(open_source(folder, rescan=True))
    assert again == [first[1], *first[1:]]
    assert reads == [13, 13, 13]


def test_an_image_beyond_max_pixels_has_a_size_for_other_pipelines(folder: Path) -> None:
    """Whichever pipeline came first."""
    pixels = [width * height for width, height in known(open_source(folder))]
    few = ImagePipeline(max_pixels=5000)
    assert 0 < sum(count > 5000 for count in pixels) < len(pixels)
    for pipeline in (few, PLAIN, few):
        found = [width * height for width, height in known(open_source(folder), pipeline)]
        assert found == [count if count <= pipeline.max_pixels else 0 for count in pixels]


@pytest.mark.parametrize("fault", [MemoryError(), LoaderError("E-FD", "no descriptors left")], ids=repr)
def test_a_fault_that_is_not_of_an_image_is_raised(
    folder: Path, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(self: Any, index: int) -> bytes:
        raise fault

    source = open_source(folder)
    monkeypatch.setattr(type(source), "read", read)
    with pytest.raises(type(fault)):
        known(source)


def test_a_damaged_file_of_sizes_is_replaced(folder: Path) -> None:
    first = known(open_source(folder))
    source = open_source(folder)
    for path in saved_files():
        if b"image sizes" in path.read_bytes()[:4096]:
            path.write_bytes(path.read_bytes()[:-1])
    assert known(source) == first


def saved_files() -> list[Path]:
    from penstock.loaders.system.saved_columns import cache_folder

    found = cache_folder()
    assert found is not None
    return list(Path(found.decode()).iterdir())


def test_photos_in_tables_have_sizes_too(tmp_path: Path) -> None:
    datasets = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    files = [encoded(Image.new("RGB", (10 + number, 20)), "JPEG") for number in range(3)]
    parquet.write_table(datasets.table({"image": files, "label": [0, 1, 0]}), tmp_path / "a.parquet")
    assert known(open_source(tmp_path / "a.parquet")) == [(10, 20), (11, 20), (12, 20)]


def test_unreadable_images_are_tried_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fixed permission leaves no trace in sizes and times of the files."""
    source, load = open_source(folder), read_sizes.SampleReader.load

    def refuse(reader: Any, sample: int) -> Any:
        if sample == 2:
            raise LoaderError("E-ACCESS", "no permission")
        return load(reader, sample)

    with monkeypatch.context() as patched:
        patched.setattr(read_sizes.SampleReader, "load", refuse)
        patched.setattr(native_rows, "native_library", lambda: None)
        assert known(source)[2] == (0, 0)
    assert known(source) == true_sizes(folder)
    with monkeypatch.context() as patched:
        patched.setattr(read_sizes, "read_sizes", lambda *about: np.zeros((len(about[2]), 2), np.int32))
        assert known(source) == true_sizes(folder), "the sizes were not saved"


def test_a_fingerprint_may_be_any_text(tmp_path: Path) -> None:
    source = open_source(write_folder(tmp_path, 3))
    own = type("Own", (), {"fingerprint": "größe", "__len__": lambda _: 3, "read": lambda _, at: source.read(at)})
    assert known(own()) == known(source)
