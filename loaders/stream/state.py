"""Saved states: which stream a loader serves, and the place in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from penstock.loaders.stream.contract import Cursor
from penstock.loaders.stream.order import SAMPLER
from penstock.pipelines.errors import LoaderError

_EPOCHS = 1 << 32  # the random generator takes the epoch as 32 bits


@dataclass(frozen=True, kw_only=True)
class StreamIdentity:
    """Describe a stream apart from the place in it: a state is only loaded into a loader of an equal stream."""

    kind: ClassVar[str]  # of loader, in error texts
    fix: ClassVar[str | None] = None

    def _saved(self, **place: int) -> dict[str, Any]:
        """Return the identity and the place as a JSON-serialisable dict."""
        return {**asdict(self), **place}

    def _place(self, state: object, limits: Mapping[str, int]) -> list[int]:
        """Return the fields of `state` that `limits` names, each from 0 to below its limit.

        Raises LoaderError E-STATE if the state is of another stream, or if it makes no sense.
        """
        expected = asdict(self)
        if not isinstance(state, dict) or set(state) != {*expected, *limits}:
            raise LoaderError("E-STATE", f"this is no state of a {self.kind}", fix=self.fix)
        for name, mine in expected.items():
            if type(state[name]) is not type(mine) or state[name] != mine:
                raise LoaderError(
                    "E-STATE", f"the state has {name}={state[name]!r}, this loader {mine!r}", fix=self.fix
                )
        for name, limit in limits.items():
            if type(state[name]) is not int or not 0 <= state[name] < limit:
                cause = f"the state has {name}={state[name]!r}, which lies outside [0, {limit})"
                raise LoaderError("E-STATE", cause, fix=self.fix)
        return [state[name] for name in limits]


@dataclass(frozen=True, kw_only=True)
class LoaderState(StreamIdentity):
    """Identify the stream of a Loader.

    Attributes:
        fingerprint: hex digest of the images and labels.
        samples: number of samples in the data set.
        seed: seed of order, crops, flips and augmentations.
        shuffle: whether the order is shuffled.
        sampler: name of the permutation.
        version: of the state's format.
    """

    kind: ClassVar[str] = "Penstock loader"
    fingerprint: str
    samples: int
    seed: int
    shuffle: bool
    sampler: str = SAMPLER
    version: int = 1

    def save(self, cursor: Cursor) -> dict[str, Any]:
        """Return the identity, `epoch`, and `position` (samples served by all ranks in that epoch)."""
        return self._saved(epoch=cursor.epoch, position=cursor.position)

    def restore(self, state: object) -> Cursor:
        """Return the place that `state` names. Raises LoaderError E-STATE."""
        return Cursor(*self._place(state, {"epoch": _EPOCHS, "position": self.samples + 1}))


@dataclass(frozen=True, kw_only=True)
class DataLoaderState(StreamIdentity):
    """Identify the stream of the drop-in DataLoader.

    Attributes:
        order: what decides it: "sequential", the permutation's name (by `seed`), "random" (torch's generator),
            "generator", "sampler", "batch_sampler" or "iterable".
        seed: seed of the order, if it has one.
        samples: number of samples in the dataset, None without a length.
        batch_size: samples a batch, None where a batch sampler decides.
        drop_last: whether an incomplete last batch is dropped.
        version: of the state's format.
    """

    kind: ClassVar[str] = "penstock DataLoader"
    fix: ClassVar[str | None] = "load the state into a DataLoader with the dataset and arguments that it was saved from"
    order: str
    seed: int | None
    samples: int | None
    batch_size: int | None
    drop_last: bool
    version: int = 1

    def save(self, epoch: int, batches: int) -> dict[str, Any]:
        """Return the identity, `epoch`, and `batches` (how many batches of it were delivered)."""
        return self._saved(epoch=epoch, batches=batches)

    def restore(self, state: object) -> tuple[int, int]:
        """Return (epoch, batches) of `state`. Raises LoaderError E-STATE."""
        # A sampler of the user's may serve a sample more than once: its epoch has no bound that is known here.
        limit = (self.samples or 0) + 1 if self.order in (SAMPLER, "sequential", "random") else 1 << 62
        epoch, batches = self._place(state, {"epoch": _EPOCHS, "batches": limit})
        return epoch, batches
