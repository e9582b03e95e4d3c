"""A source of images that are pixels in memory, such as CIFAR or MNIST."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.samples.columns import ArrayColumn
from penstock.loaders.data.sources.sample import BySample, out_of_range
from penstock.pipelines.errors import LoaderError, count_text
from penstock.pipelines.image_types import Levels
from penstock.pipelines.native.rows import MEMORY, NO_NAMES, Names, Rows
from penstock.pipelines.spec import MAX_CHANNELS

# Up to this size the fingerprint is a digest of every byte (0.3 s); above it, of the CRC-32 of every image.
HASHED_BYTES = 256 * 1024 * 1024
_THREADS = 8
_USUAL = (1, 3)


class ArraySource(BySample):
    """A source of pixels and labels in shared memory: copied there once, mapped by each worker.

    images: uint8 [n, h, w, 3], or grey as [n, h, w, 1] or [n, h, w]; numpy array or torch tensor; up to 64 channels for
    pipelines with as many; uint16 for pipelines with depth=16, float32 with depth=32. Channels first ([n, 3, h, w]) is
    accepted if the shape is unambiguous. labels: integers [n], at least 0. `classes` are the class names; the default
    is b"0", b"1", ... up to the highest label.

    Raises ValueError for other arrays, with a fix; LoaderError E-NODATA without images, E-SHM if memory is short.
    Pickles only while a process is being started, as SharedArray does.
    """

    def __init__(self, images: object, labels: object, *, classes: Sequence[str | bytes] | None = None) -> None:
        pixels = _move_channels_last(_as_numpy(images), is_tensor=hasattr(images, "detach"))
        numbers = _check_labels(_as_numpy(labels), len(pixels))
        self.classes = name_classes(classes, int(numbers.max()) + 1)
        self.skipped: dict[str, int] = {}
        self.retries = 0
        self._images, self._labels = ArrayColumn(pixels), ArrayColumn(numbers.astype(np.int64, copy=False))
        self.fingerprint = _digest(self._images.array, self._labels.array)

    def __len__(self) -> int:
        return len(self._images.array)

    def read(self, index: int) -> Levels:
        """Return the pixels of image `index`, in shared memory: never write to them; grey as [h, w, 3].

        Raises IndexError.
        """
        if not 0 <= index < len(self):
            raise out_of_range(index, len(self))
        image: Levels = self._images.array[index]
        return image if image.shape[2] != 1 else np.broadcast_to(image, (*image.shape[:2], 3))

    @property
    def images(self) -> Levels:
        """All images, [n, h, w, channels], in shared memory: never write to them."""
        images: Levels = self._images.array
        return images

    def locate(self, indices: npt.NDArray[np.int64], rows: Rows) -> Names:
        """Fill `rows` with the places of images `indices`; others than uint8 [h, w, 3] stay ELSEWHERE."""
        images = self._images.array
        if images.shape[3] == 3 and images.dtype == np.uint8:
            _, rows["height"], rows["width"], _ = images.shape
            rows["orientation"], rows["kind"] = 1, MEMORY
            rows["offset"] = images.ctypes.data + indices * images[0].nbytes
        return NO_NAMES

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._labels.take(indices)

    def path(self, index: int) -> bytes:
        return b"array[%d]" % index

    def describe(self) -> str:
        """Return one line with images, their shape, classes and bytes."""
        images = self._images.array
        n, height, width, channels = images.shape
        classes = count_text(len(self.classes), "class")
        shape = f"{height}x{width}x{channels}"
        return f"{count_text(n, 'image')} in memory ({shape}), {classes}, {images.nbytes / 1e6:,.1f} MB"


def _as_numpy(data: object) -> npt.NDArray[Any]:
    if hasattr(data, "detach"):  # numpy converts torch tensors only on the CPU and without a gradient
        data = data.detach().cpu()
    return np.asarray(data)


def _move_channels_last(images: npt.NDArray[Any], *, is_tensor: bool) -> Levels:
    """Return a view [n, h, w, channels]. Raises ValueError, LoaderError E-NODATA."""
    if images.dtype not in (np.uint8, np.uint16, np.float32):
        fix = "convert them, for values from 0 to 1 with (images * 255).round().astype('uint8')"
        fix += ", or for depth=32 with images.astype('float32')" if images.dtype.kind == "f" else ""
        raise ValueError(
            f"images must be uint8 from 0 to 255 (uint16 for depth=16, float32 for depth=32), got {images.dtype}: {fix}"
        )
    if images.ndim not in (3, 4):
        raise ValueError(f"images must have shape [n, h, w, 3], or [n, h, w] for grey, got {list(images.shape)}")
    if len(images) == 0:
        raise LoaderError("E-NODATA", "no images in the array", fix="pass at least one image")
    if images.ndim == 3:
        images = images[..., np.newaxis]
    if 0 in images.shape:
        raise ValueError(f"height and width of images must be at least 1, got {list(images.shape)}")
    first, last = images.shape[1] in _USUAL, images.shape[3] in _USUAL
    if not first and not last:  # other channels
        first, last = images.shape[1] <= MAX_CHANNELS, images.shape[3] <= MAX_CHANNELS
        if first and last and not is_tensor:  # square images decide, otherwise numpy's usual order
            first = images.shape[1] != images.shape[2] == images.shape[3]
            last = not first
        if not first and not last:
            raise ValueError(
                f"images must have 1 to {MAX_CHANNELS} channels, with shape [n, h, w, channels], got "
                f"{list(images.shape)}"
            )
    if first and last and is_tensor and images.shape[2] not in _USUAL:
        raise ValueError(
            f"a tensor of shape {list(images.shape)} may have its channels first or last: "
            "pass [n, h, w, channels] as a numpy array"
        )
    return images if last else images.transpose(0, 2, 3, 1)


def _check_labels(labels: npt.NDArray[np.integer], num_images: int) -> npt.NDArray[np.integer]:
    if labels.shape != (num_images,):
        raise ValueError(f"labels must have shape [{num_images}], one per image, got {list(labels.shape)}")
    if labels.dtype.kind not in "iu":
        raise ValueError(
            f"labels must be integers (class numbers), got {labels.dtype}: with_labels(source, labels) accepts others"
        )
    if int(labels.min()) < 0 or int(labels.max()) >= 2**31:
        raise ValueError(
            "labels must be class numbers from 0 (-1 is reserved for padding): drop or renumber those images"
        )
    return labels


def name_classes(names: Sequence[str | bytes] | None, num_classes: int) -> tuple[bytes, ...]:
    """Return class names by class number: `names`, or b"0", b"1", ... Raises ValueError for too few."""
    if names is None:
        return tuple(b"%d" % number for number in range(num_classes))
    if len(names) < num_classes:
        raise ValueError(f"classes must name every label up to {num_classes - 1}, got {len(names)} names")
    return tuple(name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape") for name in names)


def _digest(images: Levels, labels: npt.NDArray[np.int64]) -> str:
    """Return a digest of shape, labels and pixels; above HASHED_BYTES of pixels, of the checksums of the images."""
    digest = hashlib.blake2b(b"penstock arrays 1", digest_size=32)
    digest.update(np.array(images.shape, "<i8").tobytes())
    digest.update(b"" if images.dtype == np.uint8 else images.dtype.name.encode())
    digest.update(labels.data)
    if images.nbytes <= HASHED_BYTES:
        digest.update(images.data)
    else:
        with ThreadPoolExecutor(_THREADS) as pool:  # zlib releases the interpreter lock
            checksums = pool.map(lambda image: zlib.crc32(image.data), images)
            digest.update(np.fromiter(checksums, np.uint32, len(images)).data)
    return digest.hexdigest()
