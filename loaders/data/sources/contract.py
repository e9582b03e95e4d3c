"""Protocols of sources: an encoded image and its label for each index."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeGuard, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.native.rows import Names, Rows
from penstock.pipelines.targets import Targets

if TYPE_CHECKING:
    from penstock.loaders.data.sources.sample import Sample

Opened = TypeVar("Opened")
ONE_CLASS = b"."  # the class of images without labels, such as those of a flat folder
_READING = ("read", "path")  # methods that decide what is read


@runtime_checkable
class Source(Protocol):
    """Images numbered from 0, in a fixed order, for one process or many.

    It must be safe to read from several threads. If workers are processes, the source is pickled into each at its
    start, so large data should be in shared memory or in a file that is opened again.

    Workers are threads unless the source has a true attribute `holds_interpreter_lock`: its read() computes in Python,
    or in a package that keeps the lock. docs/guides/own-source.md has the rule and examples.

    Exceptions in read() become a LoaderError of that sample: on_bad_sample="raise" raises it, "replace" replaces the
    sample. Transient OSErrors and HTTP errors are retried first; see source_faults. MemoryError, and LoaderErrors for
    faults of the machine, are always raised.
    """

    @property
    def classes(self) -> tuple[bytes, ...]:
        """Class names, by class number, as bytes: names of folders need not be valid text. A loader has them as str."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hex digest that identifies the images and labels; a copy of the data set has the same digest."""
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
        """Return the name of image `index` in error texts, which leave out the user and query of a URL."""
        ...

    def describe(self) -> str:
        """Return one line for users: images, classes, bytes."""
        ...


class SampledSource(Source, Protocol):
    """A source of this package, with its samples by number."""

    def __getitem__(self, index: int) -> Sample:
        """Return sample `index` as it is stored; see Sample."""
        ...


@runtime_checkable
class LocatedSource(Source, Protocol):
    """A source that locates its encoded images, so that the native library can read them."""

    def locate(self, indices: npt.NDArray[np.int64], rows: Rows) -> Names:
        """Fill `rows` (ROW [n], zeroed) with the places of images `indices` (int64 [n]); a row may stay ELSEWHERE."""
        ...


@runtime_checkable
class FetchingSource(Source, Protocol):
    """A source that fetches samples ahead of use."""

    @property
    def has_room(self) -> bool:
        """Whether more samples may be announced."""
        ...

    def announce(self, indices: npt.NDArray[np.int64]) -> None:
        """Begin to fetch images `indices` (int64 [n]) and return at once; each is then read once."""
        ...

    def forget(self) -> None:
        """Forget images that were announced and not read."""
        ...


@runtime_checkable
class BlockSource(FetchingSource, Protocol):
    """A source that fetches neighbouring samples in few large requests, if they are announced together."""

    def make_room(self, num_samples: int) -> bool:
        """Make room for `num_samples` announced before they are needed; return whether there is enough."""
        ...

    def announce_blocks(self, indices: npt.NDArray[np.int64]) -> None:
        """Begin to fetch images `indices` (int64 [n]) and return at once; each is read once, much later."""
        ...


@runtime_checkable
class BlockwiseSource(Source, Protocol):
    """A source that reads neighbouring samples together, such as a row group, and keeps some of these blocks."""

    @property
    def num_kept_blocks(self) -> int:
        """Number of blocks to mix, at least 1, so that each block is read only once while it is kept."""
        ...

    def block_sizes(self) -> npt.NDArray[np.int64]:
        """Return the number of samples in each block, int64, in the order of the samples."""
        ...


@runtime_checkable
class TargetSource(Source, Protocol):
    """A source with labels that are not class numbers, or with several labels; labels() then returns zeros."""

    def targets(self, indices: npt.NDArray[np.int64]) -> Targets:
        """Return the labels of images `indices`, one row per image: an array, or a dict of arrays by name."""
        ...


@runtime_checkable
class FieldSource(Source, Protocol):
    """A source with fields besides image and label."""

    @property
    def field_kinds(self) -> dict[str, FieldKind]:
        """Name -> kind of the field."""
        ...

    def fields(self, indices: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Return the fields of images `indices` by name, except masks and image targets.

        Boxes are a Ragged of float32 [4] (left, top, right, bottom), int64 class numbers and, if known, int32 [2], the
        width and height of the annotated image; keypoints are float32 [n, k, 3], or a Ragged of [k, 3] for boxes;
        integers are int64 [n]; text, bytes and json are lists. Coordinates are pixels of the image as it is read.
        """
        ...

    def mask(self, name: str, index: int) -> bytes | npt.NDArray[Any]:
        """Return mask or image target `name` of image `index`: an encoded file, or an array.

        A mask is integers [height, width]; a target is [height, width] or [height, width, channels].
        """
        ...


class Abilities(NamedTuple):
    """The results of is_located, is_fetching and has_targets, which Data computes once for its parts."""

    locates: bool
    fetches: bool
    has_targets: bool


def _can(source: Source, ability: str, protocol: type) -> bool:
    known = getattr(source, "abilities", None)
    return bool(getattr(known, ability)) if isinstance(known, Abilities) else isinstance(source, protocol)


def is_located(source: Source) -> bool:
    """Return whether `source` locates its images; a subclass that overrides read() or path() does not."""
    if not _can(source, "locates", LocatedSource):
        return False
    own = [getattr(source, "__dict__", {}), *map(vars, type(source).__mro__)]  # the first definition counts
    located = next((at for at, names in enumerate(own) if "locate" in names), None)
    if located is None:  # it forwards the attributes of another source
        return False
    return not any(name in names for names in own[:located] for name in _READING)


def is_cache(source: Source) -> bool:
    """Return whether all images of `source` are in caches."""
    return getattr(source, "is_cache", False)


def is_fetching(source: Source) -> TypeGuard[FetchingSource]:
    """Return whether `source` fetches samples ahead of use."""
    return _can(source, "fetches", FetchingSource)


def has_targets(source: Source) -> TypeGuard[TargetSource]:
    """Return whether `source` has labels that are not class numbers, or several labels."""
    return _can(source, "has_targets", TargetSource)


def has_fields(source: Source) -> TypeGuard[FieldSource]:
    """Return whether `source` has more than images and labels."""
    return isinstance(source, FieldSource) and bool(source.field_kinds)


def field_kinds_of(source: Source) -> dict[str, FieldKind]:
    """Return the kinds of the fields of `source`, by name."""
    return source.field_kinds if has_fields(source) else {}


def has_moving_fields(source: Source) -> bool:
    """Return whether `source` has fields that follow the crop of their image, such as boxes."""
    return any(kind.rules.moves for kind in field_kinds_of(source).values())


def content_of(source: Source) -> str:
    """Return the source's digest that also covers the times of files, or else its fingerprint."""
    content: str = getattr(source, "content", source.fingerprint)
    return content


def refresh_source(source: Source) -> Source:
    """Return the source with the current state of its files, if it can check them again."""
    refresh: Callable[[], Source] | None = getattr(source, "refreshed", None)
    return source if refresh is None else refresh()


class Reopening(Generic[Opened]):
    """Calls `open_again`; pickles without it: workers never call it, and it may contain large tables or signed URLs."""

    def __init__(self, open_again: Callable[..., Opened] | None = None) -> None:
        self._open_again = open_again

    def __call__(self, **options: Any) -> Opened:
        """Open the data again; `options` are passed to the function. Raises LoaderError E-STALE in a worker."""
        if self._open_again is None:
            cause = "the data has changed since it was indexed by another process"
            raise LoaderError("E-STALE", cause, fix="create the loader again")
        return self._open_again(**options)

    def __reduce__(self) -> tuple[object, ...]:
        return Reopening, ()


def has_labels(source: Source) -> bool:
    """Return whether `source` has labels of any kind; without them all images are in ONE_CLASS."""
    return tuple(source.classes) != (ONE_CLASS,) or has_targets(source)


def refuse_targets(source: Source, what: str) -> None:
    """Raise ValueError if `what`, which needs classes, is applied to a source without class numbers."""
    if has_targets(source):
        raise ValueError(f"{what} needs labels that are class numbers, but these are not")


def require_labels(source: Source, what: str) -> None:
    """Raise ValueError if `what` is applied to a source without labels."""
    if not has_labels(source):
        texts = "texts and " if "text" in field_kinds_of(source) else ""
        raise ValueError(
            f"{what} needs labels, but the data has {texts}no labels: pass label= with their place in the data, or "
            "with_labels(data, labels)"
        )


def require_classes(source: Source, what: str) -> None:
    """Raise ValueError if `what` is applied to a source without labels that are class numbers."""
    refuse_targets(source, what)
    require_labels(source, what)


def refuse_mixture(source: Source, what: str, cure: str = "apply it to each source, then mix") -> None:
    """Raise ValueError if `what`, which cannot keep shares, is applied to a mix(...)."""
    mixture = getattr(source, "mixture", None)
    if mixture is not None:
        names = ", ".join(map(repr, mixture.names[:3])) + ", ..." * (len(mixture.names) > 3)
        raise ValueError(f"{what} would lose the shares of the mix(...) of {names}: {cure}")


def sample_name(source: Source, index: int) -> bytes:
    """Return a name of image `index` that does not depend on the data set's place.

    It is the source's own name, the path relative to the source's root, or the name in error texts.
    """
    name = getattr(source, "name", None)
    if callable(name):
        named: bytes = name(index)
        return named
    root: bytes | None = getattr(source, "root", None)
    path = source.path(index)
    return path if root is None else path.removeprefix(root.rstrip(b"/") + b"/")
