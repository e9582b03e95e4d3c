"""Saves and restores the epochs that samplers count themselves and draw by, such as torch's DistributedSampler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.loaders.drop_in.random_state import walk_samplers
from penstock.loaders.drop_in.shuffled_sampler import ShuffledSampler


def find_counting(loader: Any) -> dict[str, Any]:
    """Return the samplers of a loader, and those within them, that have an epoch of their own, by name."""
    samplers = [sampler for sampler in walk_samplers(loader) if sampler is not loader and _counts(sampler)]
    return {f"sampler{number}": sampler for number, sampler in enumerate(samplers)}


def _counts(sampler: Any) -> bool:
    if isinstance(sampler, ShuffledSampler) or type(getattr(sampler, "epoch", None)) is not int:
        return False  # ours follows the loader
    return callable(getattr(sampler, "set_epoch", None)) or "epoch" in getattr(sampler, "__dict__", {})


def read_epochs(samplers: dict[str, Any]) -> dict[str, int]:
    """Return the epoch of each of `samplers`, by which it draws when it is iterated next."""
    return {name: sampler.epoch for name, sampler in samplers.items()}


def pass_epochs_on(loader: Any, epoch: int, saved: Mapping[str, int | None], *, is_inside: bool) -> None:
    """Give the samplers of a loader the epochs `saved` in a state, by name; others that take one get `epoch`.

    Inside an epoch that is also for None in a state. Between epochs such a sampler stays as it is: a program that
    calls its set_epoch does so for each epoch, and one that never does has the same order in all of them.
    """
    names = {id(sampler): name for name, sampler in find_counting(loader).items()}
    for sampler in walk_samplers(loader)[1:]:
        name, take = names.get(id(sampler), ""), getattr(sampler, "set_epoch", None)
        own = saved.get(name)
        if callable(take) and (name not in saved or is_inside or own is not None):
            take(epoch if own is None else own)
        elif own is not None:
            sampler.epoch = own
