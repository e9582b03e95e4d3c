"""The drop-in DataLoader's saved state: which stream, and how far into it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from penstock.loaders.stream.order import SAMPLER
from penstock.pipelines.errors import LoaderError

_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class DataLoaderState:
    """What a stream is, apart from the place in it: a state is only loaded into an equal one.

    order: the permutation's name, "sequential", or what else decides. samples: of the dataset, None without a length.
    """

    order: str
    seed: int
    samples: int | None
    batch_size: int | None
    drop_last: bool
    version: int = _VERSION

    def save(self, epoch: int, batches: int) -> dict[str, Any]:
        """JSON-serialisable: the identity, `epoch`, and `batches` (those of it that were delivered)."""
        return {**asdict(self), "epoch": epoch, "batches": batches}

    def restore(self, state: dict[str, Any]) -> tuple[int, int]:
        """(epoch, batches). Raises LoaderError E-STATE if `state` was saved from another stream or makes no sense."""
        fix = "load the state into a DataLoader with the dataset and arguments that it was saved from"
        expected = asdict(self)
        if not isinstance(state, dict) or set(state) != {*expected, "epoch", "batches"}:
            raise LoaderError("E-STATE", "this is no state of a penstock DataLoader", fix=fix)
        for name, mine in expected.items():
            if type(state[name]) is not type(mine) or state[name] != mine:
                raise LoaderError("E-STATE", f"the state has {name}={state[name]!r}, this loader {mine!r}", fix=fix)
        epoch, batches = state["epoch"], state["batches"]
        # A sampler of the user's may serve a sample more than once: its epoch has no bound that is known here.
        limit = (self.samples or 0) + 1 if self.order in (SAMPLER, "sequential") else 1 << 62
        for name, value, bound in (("epoch", epoch, 1 << 32), ("batches", batches, limit)):
            if type(value) is not int or not 0 <= value < bound:
                raise LoaderError("E-STATE", f"the state has {name}={value!r}, outside [0, {bound})", fix=fix)
        return epoch, batches
