"""Saved states: the identity of a loader's stream, and the place in it."""

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
from penstock.loaders.order.sampler_text import compare_samplers
from penstock.pipelines.errors import LoaderError, count_text
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.spec import ImagePipeline

NUM_EPOCHS = 1 << 32  # the random generator uses 32 bits for the epoch
# Settings of pipelines that every state has. Never remove one.
_OF_VERSION_1 = (
    *("size", "crop", "scale", "ratio", "center_fraction", "flip", "mean", "std", "exif", "resample", "augment"),
    *("auto_augment", "rand_ops", "rand_magnitude", "color_jitter", "erasing", "mixup", "cutmix"),
)
_SAME_DATA = (
    "load the state into a loader over the data that it was saved from: a copy in another format, in other shards or "
    "under other names counts as other data"
)
_SHOWN = 12  # characters of a digest that an error shows


@dataclass(frozen=True, kw_only=True)
class StreamIdentity:
    """The identity of a stream, without the place in it. A state is only loaded into a loader of an equal stream."""

    kind: ClassVar[str]  # of loader, in error texts
    fix: ClassVar[str | None] = None
    later: ClassVar[frozenset[str]] = frozenset()  # keys that some states have and others lack

    def _place(self, state: object, limits: Mapping[str, int]) -> list[int]:
        """Return the fields of `state` that are named in `limits`, each in [0, limit).

        Raises LoaderError E-STATE if the state is of another stream, or is invalid.
        """
        expected = asdict(self)
        if not isinstance(state, dict) or set(state) | self.later != {*expected, *limits} | self.later:
            raise LoaderError("E-STATE", f"not a valid state of a {self.kind}{_part_of(state)}", fix=self.fix)
        for name, mine in expected.items():
            if name not in self.later and (type(state[name]) is not type(mine) or state[name] != mine):
                cause, fix = self._difference(name, state[name], mine)
                raise LoaderError("E-STATE", cause, fix=fix or self.fix)
        for name, limit in limits.items():
            if type(state[name]) is not int or not 0 <= state[name] < limit:
                cause = f"the state has {name}={state[name]!r}, which is outside [0, {limit})"
                raise LoaderError("E-STATE", cause, fix=self.fix)
        return [state[name] for name in limits]

    def _difference(self, name: str, saved: object, mine: object) -> tuple[str, str | None]:
        """Return the cause and the fix of a key that differs from the state's."""
        if name == "samples" and type(saved) is int:
            return f"the state is of other data: saved {saved:,} samples, now {mine:,}", None
        return f"the state has {name}={saved!r}, this loader has {mine!r}", None


def _part_of(state: object) -> str:
    """Return a description of an object that is not a state."""
    if not isinstance(state, dict):
        return f", got {shown(state)}: pass what state_dict() returned"
    inside = [name for name, part in state.items() if isinstance(part, dict) and "epoch" in part and "version" in part]
    return f": pass its part {inside[0]!r}" if inside else f", got a dict of {shown(sorted(map(str, state)))}"


def pipeline_settings(
    pipelines: Sequence[ImagePipeline], dtype: torch.dtype, policy: BadSamplePolicy
) -> dict[str, object]:
    """Return all settings that affect the pixels of a sample, by name, as JSON values.

    max_pixels, max_output_pixels and max_bad are not included: they only set limits, and raising them is the fix for
    E-BOMB and E-MAXBAD.
    Settings that older states do not have are left out if they have their default values.
    """
    views = [_view_settings(pipeline) for pipeline in pipelines]
    settings: dict[str, object] = views[0] if len(views) == 1 else {"views": views}
    settings |= {"dtype": str(dtype).rpartition(".")[2], "on_bad_sample": policy.on_bad_sample}
    settings["on_repaired"] = "count" if policy.on_repaired == "ignore" else policy.on_repaired  # the same pixels
    return dict(json.loads(json.dumps(settings, default=str)))


def _view_settings(pipeline: ImagePipeline) -> dict[str, object]:
    settings, usual = asdict(pipeline), asdict(ImagePipeline())
    del settings["max_pixels"], settings["max_output_pixels"]
    settings["augment"] = _changed(settings["augment"], usual["augment"]) if pipeline.augment.active else None
    return _changed(settings, usual)


def _changed(settings: dict[str, object], usual: dict[str, object]) -> dict[str, object]:
    """Return the settings of version 1, and the other settings that differ from the defaults."""
    return {name: value for name, value in settings.items() if name in _OF_VERSION_1 or value != usual[name]}


@dataclass(frozen=True, kw_only=True)
class LoaderState(StreamIdentity):
    """The identity of a Loader's stream.

    Attributes:
        samples: number of samples in the data set.
        fingerprint: hex digest of the images and labels.
        seed: seed of order, crops, flips and augmentations.
        shuffle: whether the order is shuffled.
        pipeline: result of pipeline_settings.
        sampler: name of the order.
        version: version of the state's format.
    """

    kind: ClassVar[str] = "Penstock loader"
    # Development versions saved "outline" in states; it is ignored.
    later: ClassVar[frozenset[str]] = frozenset({"pipeline", "ledgers", "global_batch", "indices", "outline"})
    samples: int  # compared first, because a number is more informative than a digest
    fingerprint: str
    seed: int
    shuffle: bool
    pipeline: dict[str, Any] = field(default_factory=dict)
    sampler: str = SAMPLER
    version: int = 1

    def _difference(self, name: str, saved: object, mine: object) -> tuple[str, str | None]:
        again = "or start again without the state"
        if name in ("seed", "shuffle"):
            return super()._difference(name, saved, mine)[0], f"make the loader with {name}={saved!r}, {again}"
        if name == "sampler" and isinstance(saved, str):
            cause = compare_samplers(saved, self.sampler, shuffle=self.shuffle)
            return cause, f"make the loader with the saved settings, {again}"
        if name == "fingerprint" and isinstance(saved, str):
            digests = f"saved digest {saved[:_SHOWN]}..., now {self.fingerprint[:_SHOWN]}..."
            cause = (
                "the state is of other data: same number of samples, but other images, labels or fields, or another "
                f"order of them ({digests})"
            )
            return cause, _SAME_DATA
        return super()._difference(name, saved, mine)

    def save(self, cursor: Cursor) -> dict[str, Any]:
        """Return a state: the identity, `epoch`, and `position` (samples served by all ranks in that epoch)."""
        return {**asdict(self), **cursor._asdict()}

    def restore(self, state: object, *, strict: bool = True, epoch_samples: int | None = None) -> Cursor:
        """Return the place in `state`; `strict` refuses a state of another pipeline. Raises LoaderError E-STATE.

        epoch_samples: samples per epoch, if different from the size of the data set.
        """
        if isinstance(state, dict) and type(state.get("shuffle")) is int:
            state = {**state, "shuffle": bool(state["shuffle"])}  # create_loader used to accept 0 and 1
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
            # Samples served under "raise" are the same under any other policy, and another policy fixes its errors.
            if saved.get(name) != mine and not (
                name in ("on_bad_sample", "on_repaired") and saved.get(name) == "raise"
            ):
                fix = "make the loader with the saved settings, or pass strict=False (--no-strict) to continue anyway"
                raise LoaderError("E-STATE", _compare_settings(saved, self.pipeline, name), fix=fix)


def _compare_settings(saved: Mapping[str, Any], mine: Mapping[str, Any], name: str, where: str = "") -> str:
    """Return how the setting `name` of two pipelines differs, in words; one that is left out has its default."""
    usual = json.loads(json.dumps(asdict(ImagePipeline()), default=str))
    theirs, ours = (settings.get(name, usual.get(name)) for settings in (saved, mine))
    if name == "views" and isinstance(theirs, list | None) and isinstance(ours, list | None):
        one, two = theirs or [{}], ours or [{}]
        if len(one) != len(two):
            return f"the state has {count_text(len(one), 'view')}, this loader has {len(two)}"
        number = next(number for number, view in enumerate(two) if one[number] != view)
        theirs, ours, where = one[number], two[number], f" in view {number}"
    elif name == "augment" and isinstance(theirs, dict | None) and isinstance(ours, dict | None):
        theirs, ours = {**usual[name], **(theirs or {})}, {**usual[name], **(ours or {})}
    if name in ("views", "augment") and isinstance(theirs, dict) and isinstance(ours, dict) and theirs != ours:
        first = next(key for key in ours | theirs if theirs.get(key) != ours.get(key))
        return _compare_settings(theirs, ours, first, where)
    return f"the state has {name}={theirs!r}{where}, this loader has {ours!r}"


def saved_ledger(state: Mapping[str, Any], rank: int, world_size: int) -> EpochLedger | None:
    """Return the ledger that `rank` continues: its own in `state`, and those of ranks that no longer exist.

    Returns None if there is none. Raises LoaderError E-STATE for an invalid ledger.
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
    """The identity of the drop-in DataLoader's stream.

    Attributes:
        order: what decides the order: "sequential", the permutation's name (from `seed`), "random" (torch's generator),
            "generator", "sampler", "batch_sampler" or "iterable".
        seed: seed of the order, if it has one.
        samples: number of samples in the dataset, None without a length.
        batch_size: samples per batch, None if a batch sampler decides.
        drop_last: whether an incomplete last batch is dropped.
        version: version of the state's format.
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
        """Return a state: the identity, `epoch`, and `batches` (number of its batches that were delivered)."""
        return {**asdict(self), "epoch": epoch, "batches": batches}

    def restore(self, state: object) -> tuple[int, int]:
        """Return (epoch, batches) of `state`. Raises LoaderError E-STATE."""
        # A user's sampler may serve a sample more than once, so the length of its epoch is unknown.
        limit = (self.samples or 0) + 1 if self.order in (SAMPLER, "sequential", "random") else 1 << 62
        epoch, batches = self._place(state, {"epoch": NUM_EPOCHS, "batches": limit})
        return epoch, batches
