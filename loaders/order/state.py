"""Saved states: which stream a loader serves, and the place in it."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch

from penstock.loaders.order.bad_samples import BadSamplePolicy
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.ledger import EpochLedger
from penstock.loaders.order.order import SAMPLER
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.spec import ImagePipeline

NUM_EPOCHS = 1 << 32  # the random generator takes the epoch as 32 bits
# Settings of pipelines that every state has; one that is named here once stays.
_OF_VERSION_1 = (
    *("size", "crop", "scale", "ratio", "center_fraction", "flip", "mean", "std", "exif", "resample", "augment"),
    *("auto_augment", "rand_ops", "rand_magnitude", "color_jitter", "erasing", "mixup", "cutmix"),
)
_SHOWN = 12  # characters of a digest that an error shows


@dataclass(frozen=True, kw_only=True)
class StreamIdentity:
    """Describe a stream apart from the place in it: a state is only loaded into a loader of an equal stream."""

    kind: ClassVar[str]  # of loader, in error texts
    fix: ClassVar[str | None] = None
    later: ClassVar[frozenset[str]] = frozenset()  # keys that some states have and others lack

    def _place(self, state: object, limits: Mapping[str, int]) -> list[int]:
        """Return the fields of `state` that `limits` names, each from 0 to below its limit.

        Raises LoaderError E-STATE if the state is of another stream, or if it makes no sense.
        """
        expected = asdict(self)
        if not isinstance(state, dict) or set(state) | self.later != {*expected, *limits} | self.later:
            raise LoaderError("E-STATE", f"not a valid state of a {self.kind}{_part_of(state)}", fix=self.fix)
        for name, mine in expected.items():
            if name not in self.later and (type(state[name]) is not type(mine) or state[name] != mine):
                raise LoaderError("E-STATE", _difference(name, state[name], mine), fix=self.fix)
        for name, limit in limits.items():
            if type(state[name]) is not int or not 0 <= state[name] < limit:
                cause = f"the state has {name}={state[name]!r}, which lies outside [0, {limit})"
                raise LoaderError("E-STATE", cause, fix=self.fix)
        return [state[name] for name in limits]


def _part_of(state: object) -> str:
    """Say what was given in place of a state."""
    if not isinstance(state, dict):
        return f", got {shown(state)}: pass what state_dict() returned"
    inside = [name for name, part in state.items() if isinstance(part, dict) and "epoch" in part and "version" in part]
    return f": pass its part {inside[0]!r}" if inside else f", got a dict of {shown(sorted(map(str, state)))}"


def _difference(name: str, saved: object, mine: object) -> str:
    if name == "samples" and type(saved) is int:
        return f"the state is of other data: {saved:,} samples then, {mine:,} now"
    if name == "fingerprint" and isinstance(saved, str):
        digests = f"digest {saved[:_SHOWN]}... then, {str(mine)[:_SHOWN]}... now"
        return f"the state is of other data: as many samples, but other images, sizes or labels ({digests})"
    return f"the state has {name}={saved!r}, this loader {mine!r}"


def pipeline_settings(
    pipelines: Sequence[ImagePipeline], dtype: torch.dtype, policy: BadSamplePolicy
) -> dict[str, object]:
    """Return by name all settings, as JSON holds them, that decide which pixels a sample has.

    Not max_pixels and max_bad, which only say when to stop: to raise them is the cure of E-BOMB and E-MAXBAD. Settings
    that states from before did not have are left out where they are as they were.
    """
    views = [_view_settings(pipeline) for pipeline in pipelines]
    settings: dict[str, object] = views[0] if len(views) == 1 else {"views": views}
    settings |= {"dtype": str(dtype).rpartition(".")[2], "on_bad_sample": policy.on_bad_sample}
    settings["on_repaired"] = "count" if policy.on_repaired == "ignore" else policy.on_repaired  # the same pixels
    return dict(json.loads(json.dumps(settings, default=str)))


def _view_settings(pipeline: ImagePipeline) -> dict[str, object]:
    settings, usual = asdict(pipeline), asdict(ImagePipeline())
    del settings["max_pixels"]
    settings["augment"] = _changed(settings["augment"], usual["augment"]) if pipeline.augment.active else None
    return _changed(settings, usual)


def _changed(settings: dict[str, object], usual: dict[str, object]) -> dict[str, object]:
    """Return the settings that version 1 had, and of the others those that differ from the usual ones."""
    return {name: value for name, value in settings.items() if name in _OF_VERSION_1 or value != usual[name]}


@dataclass(frozen=True, kw_only=True)
class LoaderState(StreamIdentity):
    """Identify the stream of a Loader.

    Attributes:
        samples: number of samples in the data set.
        fingerprint: hex digest of the images and labels.
        seed: seed of order, crops, flips and augmentations.
        shuffle: whether the order is shuffled.
        pipeline: as pipeline_settings returns them.
        sampler: name of the order.
        version: of the state's format.
    """

    kind: ClassVar[str] = "Penstock loader"
    # "outline" is of states that development versions saved; it is ignored.
    later: ClassVar[frozenset[str]] = frozenset({"pipeline", "ledgers", "global_batch", "outline"})
    samples: int  # compared first, because a number says more than a digest
    fingerprint: str
    seed: int
    shuffle: bool
    pipeline: dict[str, Any] = field(default_factory=dict)
    sampler: str = SAMPLER
    version: int = 1

    def save(self, cursor: Cursor) -> dict[str, Any]:
        """Return the identity, `epoch`, and `position` (samples served by all ranks in that epoch)."""
        return {**asdict(self), **cursor._asdict()}

    def restore(self, state: object, *, strict: bool = True, epoch_samples: int | None = None) -> Cursor:
        """Return the place that `state` names; `strict` refuses one of another pipeline. Raises LoaderError E-STATE.

        epoch_samples: samples in an epoch, where it is not those of the data set.
        """
        if isinstance(state, dict) and type(state.get("shuffle")) is int:
            state = {**state, "shuffle": bool(state["shuffle"])}  # create_loader once took 0 and 1
        cursor = Cursor(*self._place(state, {"epoch": NUM_EPOCHS, "position": (epoch_samples or self.samples) + 1}))
        assert isinstance(state, dict)
        if strict and "pipeline" in state:
            self._refuse_other_pipeline(state["pipeline"])
        return cursor

    def _refuse_other_pipeline(self, saved: object) -> None:
        if not isinstance(saved, dict):
            raise LoaderError("E-STATE", f"not a valid state of a {self.kind}")
        for name in self.pipeline | saved:
            mine = self.pipeline.get(name)
            # What "raise" has served, any other policy would have served, and another one is its errors' cure.
            if saved.get(name) != mine and not (
                name in ("on_bad_sample", "on_repaired") and saved.get(name) == "raise"
            ):
                cause = f"the state has {name}={saved.get(name)!r}, this loader {mine!r}"
                fix = "make the loader as the saved one was made, or pass strict=False (--no-strict) to go on like this"
                raise LoaderError("E-STATE", cause, fix=fix)


def saved_ledger(state: Mapping[str, Any], rank: int, world_size: int) -> EpochLedger | None:
    """Return the ledger that `rank` carries on: its own in `state`, and those of ranks that are no more.

    Returns None where it has none. Raises LoaderError E-STATE for what is no ledger.
    """
    ledger = None
    try:
        for saved in state.get("ledgers", []):
            if saved["rank"] % world_size == rank:
                ledger = ledger or EpochLedger(operator.index(saved["epoch"]))
                ledger.add_saved(saved)
    except (KeyError, TypeError, ValueError) as error:
        raise LoaderError("E-STATE", f"the state has a ledger that cannot be read ({error})") from None
    return ledger


@dataclass(frozen=True, kw_only=True)
class DataLoaderState(StreamIdentity):
    """Identify the stream of the drop-in DataLoader.

    Attributes:
        order: what decides it: "sequential", the permutation's name (by `seed`), "random" (torch's generator),
            "generator", "sampler", "batch_sampler" or "iterable".
        seed: seed of the order, if it has one.
        samples: number of samples in the dataset, None without a length.
        batch_size: samples per batch, None where a batch sampler decides.
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
        return {**asdict(self), "epoch": epoch, "batches": batches}

    def restore(self, state: object) -> tuple[int, int]:
        """Return (epoch, batches) of `state`. Raises LoaderError E-STATE."""
        # A sampler of the user's may serve a sample more than once: its epoch has no bound that is known here.
        limit = (self.samples or 0) + 1 if self.order in (SAMPLER, "sequential", "random") else 1 << 62
        epoch, batches = self._place(state, {"epoch": NUM_EPOCHS, "batches": limit})
        return epoch, batches
