"""Protocols of a source: for each index an encoded image and its label."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeGuard, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.native.rows import Names, Rows
from penstock.pipelines.targets import Targets

Opened = TypeVar("Opened")
ONE_CLASS = b"."  # the class of images without labels, as of a flat folder
_READING = ("read", "path")  # methods on which it depends what is read


@runtime_checkable
class Source(Protocol):
    """Serve images numbered from 0, in a fixed order, to one process or many.

    It must be safe to read from several threads. Where workers are processes, a source is pickled into each when that
    starts, so large data should be shared memory or a file that is opened again.

    Workers are threads unless the source has a true attribute `holds_interpreter_lock`: its read() computes in Python,
    or in a package that keeps the lock. docs/guides/own-source.md has the rule and examples.

    What read() raises becomes a LoaderError of that sample, which on_bad_sample="raise" raises and "replace" replaces.
    OSErrors and HTTP errors that can heal are retried first; see source_faults.
    MemoryError, and LoaderErrors of a machine's fault, always raise.
    """

    @property
    def classes(self) -> tuple[bytes, ...]:
        """Class names, by class number."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hex digest that identifies the images and labels; a copy of the data set has the same."""
        ...

    @property
    def skipped(self) -> dict[str, int]:
        """Reason -> number of entries that were found but skipped."""
        ...

    def __len__(self) -> int: ...

    def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
        """Read an encoded image, or pixels uint8 [h, w, 3] that the caller must not write to."""
        ...

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the class numbers (int64) of images `indices` (int64)."""
        ...

    def path(self, index: int) -> bytes:
        """Return the name of image `index` in error texts; of an address, user and query are left out there."""
        ...

    def describe(self) -> str:
        """Return one line for people: images, classes, bytes."""
        ...


@runtime_checkable
class LocatedSource(Source, Protocol):
    """Locate the encoded images, so that the native library can read them."""

    def locate(self, indices: npt.NDArray[np.int64], rows: Rows) -> Names:
        """Fill `rows` (ROW [n], zeroed) with where images `indices` (int64 [n]) lie; a row may stay ELSEWHERE."""
        ...


@runtime_checkable
class FetchingSource(Source, Protocol):
    """Fetch samples ahead of their use."""

    @property
    def has_room(self) -> bool:
        """Whether more samples may be announced."""
        ...

    def announce(self, indices: npt.NDArray[np.int64]) -> None:
        """Begin to fetch images `indices` (int64 [n]), each of which is then read once; return at once."""
        ...

    def forget(self) -> None:
        """Forget what was announced and not read."""
        ...


@runtime_checkable
class BlockSource(FetchingSource, Protocol):
    """Fetch neighbouring samples in few large requests, if they are announced together."""

    def make_room(self, num_samples: int) -> bool:
        """Make room for so many samples that are announced before they are needed; return whether there is."""
        ...

    def announce_blocks(self, indices: npt.NDArray[np.int64]) -> None:
        """Begin to fetch images `indices` (int64 [n]) long before each is read once; return at once."""
        ...


@runtime_checkable
class BlockwiseSource(Source, Protocol):
    """Read neighbouring samples together, such as the rows of a row group, and keep some of these blocks."""

    @property
    def num_kept_blocks(self) -> int:
        """Number of blocks to mix at a time, at least 1, so that each is read once while it is kept."""
        ...

    def block_sizes(self) -> npt.NDArray[np.int64]:
        """Return the number of samples in each block, int64, in the order of the samples."""
        ...


@runtime_checkable
class TargetSource(Source, Protocol):
    """Serve labels that are no class numbers, or several named ones; labels() then returns zeros."""

    def targets(self, indices: npt.NDArray[np.int64]) -> Targets:
        """Return the labels of images `indices`, one row each: an array, or a dict of arrays by name."""
        ...


@runtime_checkable
class FieldSource(Source, Protocol):
    """Serve fields of a sample next to its image and label."""

    @property
    def field_kinds(self) -> dict[str, FieldKind]:
        """Name -> what the field is."""
        ...

    def fields(self, indices: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Return the fields of images `indices` that are no masks, by name.

        Boxes are a Ragged of float32 [4] (left, top, right, bottom), int64 class numbers and, if they are known, int32
        [2], width and height of the image that was annotated; keypoints float32 [n, k, 3], or of boxes a Ragged of [k,
        3]; an integer is int64 [n]; text, bytes and json are lists. Pixels are those of the image as it is read.
        """
        ...

    def mask(self, name: str, index: int) -> bytes | npt.NDArray[Any]:
        """Return mask `name` of image `index`: an encoded file, or integers [height, width]."""
        ...


class Abilities(NamedTuple):
    """Hold what is_located, is_fetching and has_targets say: Data asks its parts once."""

    locates: bool
    fetches: bool
    has_targets: bool


def _can(source: Source, ability: str, protocol: type) -> bool:
    known = getattr(source, "abilities", None)
    return bool(getattr(known, ability)) if isinstance(known, Abilities) else isinstance(source, protocol)


def is_located(source: Source) -> bool:
    """Say whether `source` locates its images, and does not read them in its own way, as a subclass may."""
    if not _can(source, "locates", LocatedSource):
        return False
    own = [getattr(source, "__dict__", {}), *map(vars, type(source).__mro__)]  # what comes first counts
    located = next((at for at, names in enumerate(own) if "locate" in names), None)
    if located is None:  # it passes on the attributes of another source
        return False
    return not any(name in names for names in own[:located] for name in _READING)


def is_cache(source: Source) -> bool:
    """Return whether all images of `source` lie in caches."""
    return getattr(source, "is_cache", False)


def is_fetching(source: Source) -> TypeGuard[FetchingSource]:
    """Return whether `source` fetches samples ahead of their use."""
    return _can(source, "fetches", FetchingSource)


def has_targets(source: Source) -> TypeGuard[TargetSource]:
    """Return whether the labels of `source` are no class numbers, or several named ones."""
    return _can(source, "has_targets", TargetSource)


def has_fields(source: Source) -> TypeGuard[FieldSource]:
    """Return whether `source` has more than images and labels."""
    return isinstance(source, FieldSource) and bool(source.field_kinds)


def field_kinds_of(source: Source) -> dict[str, FieldKind]:
    """Return what the fields of `source` are, by name."""
    return source.field_kinds if has_fields(source) else {}


def has_moving_fields(source: Source) -> bool:
    """Return whether `source` has fields that follow the crop of their image, such as boxes."""
    return any(kind.rules.moves for kind in field_kinds_of(source).values())


def content_of(source: Source) -> str:
    """Return a digest that covers the times of files as well, where a source has one, or its fingerprint."""
    content: str = getattr(source, "content", source.fingerprint)
    return content


def refresh_source(source: Source) -> Source:
    """Return the source with its files as they are now, if it can look at them again."""
    refresh: Callable[[], Source] | None = getattr(source, "refreshed", None)
    return source if refresh is None else refresh()


class Reopening(Generic[Opened]):
    """Call `open_again`; pickles as nothing, because workers never do, and it may hold large tables or signed URLs."""

    def __init__(self, open_again: Callable[..., Opened] | None = None) -> None:
        self._open_again = open_again

    def __call__(self, **options: Any) -> Opened:
        """Open the data again; `options` as the function takes them. Raises LoaderError E-STALE in a worker."""
        if self._open_again is None:
            cause = "the data has changed since it was indexed by another process"
            raise LoaderError("E-STALE", cause, fix="create the loader again")
        return self._open_again(**options)

    def __reduce__(self) -> tuple[object, ...]:
        return Reopening, ()


def refuse_targets(source: Source, what: str) -> None:
    """Raise ValueError if `what`, which goes by class, is asked of a source without class numbers."""
    if has_targets(source):
        raise ValueError(f"{what} needs labels that are class numbers, and these are not")


def refuse_mixture(source: Source, what: str, cure: str = "apply it to each source, then mix") -> None:
    """Raise ValueError if `what`, which cannot keep shares, is asked of a mix(...)."""
    mixture = getattr(source, "mixture", None)
    if mixture is not None:
        names = ", ".join(map(repr, mixture.names[:3])) + ", ..." * (len(mixture.names) > 3)
        raise ValueError(f"{what} would lose the shares of the mix(...) of {names}: {cure}")


def sample_name(source: Source, index: int) -> bytes:
    """Return what image `index` is called wherever its data set lies.

    That is the source's own name of it, its path relative to the source's root, or what error texts call it.
    """
    name = getattr(source, "name", None)
    if callable(name):
        named: bytes = name(index)
        return named
    root: bytes | None = getattr(source, "root", None)
    path = source.path(index)
    return path if root is None else path.removeprefix(root.rstrip(b"/") + b"/")
