"""ArraySource: pixels and labels from memory, refusals and their advice."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch
from worker_roles import num_open_files, read_everything

from penstock.loaders.data.files import arrays as array_source
from penstock.loaders.data.files.arrays import ArraySource
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.native.rows import ELSEWHERE, ROW


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def test_colour_images_are_read_back_unchanged() -> None:
    images, labels = pixels(5, 4, 6, 3), [3, 0, 1, 0, 2]
    source = ArraySource(images, labels)
    for index in range(5):
        np.testing.assert_array_equal(source.read(index), images[index])
    assert source.classes == (b"0", b"1", b"2", b"3")
    assert source.path(3) == b"array[3]"
    assert source.describe() == "5 images in memory (4x6x3), 4 classes, 0.0 MB"


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("shape", [(5, 4, 6), (5, 4, 6, 1)])
def test_grey_images_get_three_channels(shape: tuple[int, ...], dtype: type) -> None:
    images = pixels(*shape).astype(dtype) * np.array(5, dtype)
    image = ArraySource(images, np.zeros(5, np.uint8)).read(2)
    assert (image.shape, image.dtype) == ((4, 6, 3), dtype)
    for channel in range(3):
        np.testing.assert_array_equal(image[:, :, channel], images[2].reshape(4, 6))


def test_images_of_16_bits_are_kept_and_decoded_in_python() -> None:
    images = pixels(5, 4, 6, 3).astype(np.uint16) * 257
    source = ArraySource(images, np.zeros(5, np.uint8))
    np.testing.assert_array_equal(source.read(3), images[3])
    rows = np.zeros(2, ROW)
    source.locate(np.array([0, 1]), rows)
    assert (rows["kind"] == ELSEWHERE).all()
    assert source.fingerprint != ArraySource(images >> 8, np.zeros(5, np.uint8)).fingerprint


@pytest.mark.parametrize("as_given", [np.asarray, torch.from_numpy])
def test_channels_first_is_transposed_where_it_is_unambiguous(as_given) -> None:
    images = pixels(5, 4, 6, 3)
    source = ArraySource(as_given(np.ascontiguousarray(images.transpose(0, 3, 1, 2))), torch.arange(5))
    np.testing.assert_array_equal(source.read(4), images[4])
    assert source.fingerprint == ArraySource(images, np.arange(5)).fingerprint


def test_channels_first_or_last_of_a_tensor_must_be_unambiguous() -> None:
    images = pixels(5, 3, 6, 3)
    with pytest.raises(ValueError, match=r"first or last: pass \[n, h, w, channels\] as a numpy array"):
        ArraySource(torch.from_numpy(images), [0] * 5)
    np.testing.assert_array_equal(ArraySource(images, [0] * 5).read(0), images[0])


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((2, 4, 4, 3)), [0, 1], r"uint8 .* got float64: convert them.*images \* 255"),
        (np.zeros((2, 4, 4, 3), bool), [0, 1], "uint8 .* got bool"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.int16), [0, 1], "uint8 .* got int16"),
        (pixels(2, 4), [0, 1], r"shape \[n, h, w, 3\]"),
        (pixels(2, 4, 4, 3, 1), [0, 1], r"shape \[n, h, w, 3\]"),
        (np.zeros((2, 70, 8, 70), np.uint8), [0, 1], r"1 to 64 channels, with shape \[n, h, w, channels\]"),
        (np.zeros((2, 0, 4, 3), np.uint8), [0, 1], "at least 1"),
        (pixels(2, 4, 4, 3), [0, 1, 2], r"labels must have shape \[2\].*got \[3\]"),
        (pixels(2, 4, 4, 3), [[0], [1]], r"got \[2, 1\]"),
        (pixels(2, 4, 4, 3), [0.0, 1.0], "labels must be integers.*got float64"),
        (pixels(2, 4, 4, 3), [True, False], "labels must be integers.*got bool"),
        (pixels(2, 4, 4, 3), [0, -1], "-1 is reserved"),
        (pixels(2, 4, 4, 3), np.array([0, 2**63], np.uint64), "class numbers from 0"),
    ],
)
def test_unsupported_arrays_are_refused_with_advice(images, labels, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ArraySource(images, labels)


def test_an_empty_array_is_refused_and_positions_outside_are_index_errors() -> None:
    with pytest.raises(LoaderError, match="E-NODATA"):
        ArraySource(pixels(0, 4, 4, 3), [])
    source = ArraySource(pixels(2, 4, 4, 3), [0, 1])
    for index in (-1, 2):
        with pytest.raises(IndexError, match=f"no sample {index}: the samples are numbered from 0 to 1"):
            source.read(index)


def test_class_names_are_accepted_and_counted() -> None:
    images = pixels(2, 4, 4, 3)
    assert ArraySource(images, [0, 1], classes=["chat", b"\xff", "dog"]).classes == (b"chat", b"\xff", b"dog")
    with pytest.raises(ValueError, match="every label up to 1, got 1 names"):
        ArraySource(images, [0, 1], classes=["cat"])


def test_the_fingerprint_depends_on_pixels_labels_and_shape() -> None:
    images, labels = pixels(4, 6, 6, 3), np.arange(4)
    touched = images.copy()
    touched[3, 5, 5, 2] ^= 1
    prints = [
        ArraySource(images, labels).fingerprint,
        ArraySource(touched, labels).fingerprint,
        ArraySource(images, labels[::-1]).fingerprint,
        ArraySource(images.reshape(4, 3, 12, 3), labels).fingerprint,
        ArraySource(images.reshape(4, 12, 9), labels).fingerprint,
    ]
    assert len(set(prints)) == 5
    assert ArraySource(images.copy(), labels.astype(np.int16)).fingerprint == prints[0]


def test_the_fingerprint_of_large_data_covers_every_image(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = pixels(10, 4, 4, 3), np.arange(10)
    monkeypatch.setattr(array_source, "HASHED_BYTES", images.nbytes // 2)
    found = {ArraySource(images, labels).fingerprint}
    for number in range(10):
        images[number, 1, 2, 0] ^= 1
        found.add(ArraySource(images, labels).fingerprint)
    found.add(ArraySource(images[::-1], labels).fingerprint)
    assert len(found) == 12


def test_a_started_process_reads_the_same_memory() -> None:
    images = pixels(3, 4, 6, 3)
    source = ArraySource(images, [2, 0, 1], classes=["x", "y", "z"])
    expected = [image.tobytes() for image in images]
    images[...] = 0  # the source has its own copy
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=read_everything, args=(source, sender))
    process.start()
    assert receiver.poll(60)
    read, labels, fingerprint, classes, path = receiver.recv()
    process.join()
    assert process.exitcode == 0
    assert (read, labels, classes, path) == (expected, [2, 0, 1], (b"x", b"y", b"z"), b"array[0]")
    assert fingerprint == source.fingerprint


def test_no_descriptor_and_no_memory_is_left() -> None:
    before = num_open_files()
    for _ in range(10):
        ArraySource(pixels(2, 4, 4, 3), [0, 1]).read(0)
        with pytest.raises(ValueError, match="-1 is reserved"):
            ArraySource(pixels(2, 4, 4, 3), [0, -1])
    assert num_open_files() == before
    assert "penstock-images" not in Path("/proc/self/maps").read_text()
