"""Stacked sources: each sample is made of one image of every source, whose channels are put together."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.fields.join import find_partners
from penstock.loaders.data.files.left_out import NO_ROW_IMAGE
from penstock.loaders.data.samples.columns import ArrayColumn
from penstock.loaders.data.sources.contract import (
    Abilities,
    Source,
    content_of,
    has_fields,
    has_targets,
    is_fetching,
    refresh_source,
    refuse_mixture,
    sample_name,
)
from penstock.loaders.data.sources.sample import BySample, out_of_range
from penstock.pipelines.errors import LoaderError, count_text, printable
from penstock.pipelines.messages.checked import checked_choice
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.sample.decode_bands import pack_array, pack_stack
from penstock.pipelines.spec import MAX_CHANNELS
from penstock.pipelines.targets import Targets

Indices = npt.NDArray[np.int64]


class StackedSource(BySample):
    """A source of samples with one image of each of several sources; names and labels are those of the first.

    Args:
        parts: the sources.
        by: "name" or "position": how a sample's images are found in the other sources.

    Raises ValueError if a sample lacks an image in one of the sources.
    """

    def __init__(self, parts: Sequence[Source], by: str = "name") -> None:
        self.parts, self._by = tuple(parts), checked_choice("by", by, ("name", "position"))
        if not 2 <= len(parts) <= MAX_CHANNELS:
            raise ValueError(f"a stack must have 2 to {MAX_CHANNELS} sources, got {len(parts)}")
        for part in parts:
            refuse_mixture(part, "a stack", "stack the bands of each source, then mix")
            if has_fields(part):
                raise ValueError("a stack would lose fields of its sources: add them to it, with_fields(stack(...))")
        first, *others = self.parts
        find = _find_by_name if by == "name" else _find_by_position
        self._rows = [ArrayColumn(find(first, other, number)) for number, other in enumerate(others, 2)]
        self.classes, self.skipped = tuple(first.classes), dict(first.skipped)
        self.label_classes: dict[str, tuple[bytes, ...]] = getattr(first, "label_classes", {})
        self.holds_interpreter_lock = any(getattr(part, "holds_interpreter_lock", False) for part in parts)
        self.abilities = Abilities(False, any(map(is_fetching, parts)), has_targets(first))
        self.fingerprint = self._identify([part.fingerprint + _probe(part) for part in parts])

    def _identify(self, of_parts: Sequence[str]) -> str:
        digest = hashlib.blake2b("\n".join(["penstock stack 1", *of_parts]).encode(), digest_size=32)
        for rows in self._rows:
            digest.update(rows.digest())
        return digest.hexdigest()

    @property
    def content(self) -> str:
        """Hex digest that also covers the times of files."""
        return self._identify(list(map(content_of, self.parts)))

    def refreshed(self) -> StackedSource:
        """Return this source if the data is unchanged, otherwise a source of the current data."""
        now = list(map(refresh_source, self.parts))
        is_same = all(a is b for a, b in zip(now, self.parts, strict=True))
        return self if is_same else StackedSource(now, self._by)

    def __len__(self) -> int:
        return len(self.parts[0])

    def _places(self, indices: Any) -> list[tuple[Any, Any]]:
        """Return each source, and the numbers of the images of samples `indices` in it."""
        rows = [indices, *(each.take(indices) for each in self._rows)]
        return list(zip(self.parts, rows, strict=True))

    def read(self, index: int) -> bytes:
        """Read the images of sample `index` as one stack, see pack_stack. Raises IndexError, and as its sources do."""
        if not 0 <= index < len(self):
            raise out_of_range(index, len(self))
        found = [part.read(int(row)) for part, row in self._places(index)]
        return pack_stack([data if isinstance(data, bytes) else _pack_pixels(data) for data in found])

    def labels(self, indices: Indices) -> Indices:
        return self.parts[0].labels(indices)

    def targets(self, indices: Indices) -> Targets:
        first: Any = self.parts[0]
        found: Targets = first.targets(indices)
        return found

    def path(self, index: int) -> bytes:
        return self.parts[0].path(index)

    def name(self, index: int) -> bytes:
        """Return the name of the first image of sample `index`."""
        return sample_name(self.parts[0], index)

    @property
    def has_room(self) -> bool:
        return all(part.has_room for part in self.parts if is_fetching(part))

    def announce(self, indices: Indices) -> None:
        for part, rows in self._places(indices):
            if is_fetching(part):
                part.announce(rows)

    def forget(self) -> None:
        for part in filter(is_fetching, self.parts):
            part.forget()

    def describe(self) -> str:
        """Return one line: the first source, and the number of all."""
        return f"{self.parts[0].describe()}, the first of {len(self.parts)} stacked"


def _probe(part: Source) -> str:
    """Return a digest of two images: the names and sizes of files may be the same in all bands."""
    digest = hashlib.blake2b(digest_size=16)
    for index in (0, len(part) - 1):
        with contextlib.suppress(LoaderError, OSError):  # serving the sample reports it
            data = part.read(index)
            digest.update(data if isinstance(data, bytes) else _pack_pixels(data))
    return digest.hexdigest()


def _pack_pixels(pixels: npt.NDArray[Any]) -> bytes:
    return pack_array(pixels[:, :, :1] if pixels.strides[2] == 0 else pixels)  # grey images have one channel


def _find_by_name(first: Source, other: Source, number: int) -> Indices:
    try:
        found = find_partners(first, other, "band")
    except ValueError as error:
        raise ValueError(f"source {number} of the stack: {error}") from None
    if len(other) > len(first):
        extra = int(np.setdiff1d(np.arange(len(other)), found)[0])
        count = count_text(len(other) - len(first), "image")
        warn_user(
            f"left out: {count} of source {number} of the stack without a sample ({printable(other.path(extra))})"
        )
    return found


def _find_by_position(first: Source, other: Source, number: int) -> Indices:
    for part in (first, other):
        if part.skipped.get(NO_ROW_IMAGE):
            cause = f"{part.skipped[NO_ROW_IMAGE]:,} rows have no image in one of the columns"
            raise ValueError(f"images cannot be stacked by position: {cause}; remove these rows")
    if len(other) != len(first):
        raise ValueError(f"source {number} of the stack has {len(other):,} images, but the first has {len(first):,}")
    return np.arange(len(first), dtype=np.int64)
