"""A loader's saved state: where in which stream."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from penstock.loaders.stream.contract import Cursor
from penstock.loaders.stream.order import SAMPLER
from penstock.pipelines.errors import LoaderError

_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class LoaderState:
    """What a stream is, apart from the place in it: a state is only loaded into an equal one."""

    fingerprint: str
    samples: int
    seed: int
    shuffle: bool
    sampler: str = SAMPLER
    version: int = _VERSION

    def save(self, cursor: Cursor) -> dict[str, Any]:
        """JSON-serialisable: the identity, `epoch`, and `position` (samples served by all ranks in that epoch)."""
        return {**asdict(self), "epoch": cursor.epoch, "position": cursor.position}

    def restore(self, state: dict[str, Any]) -> Cursor:
        """The place that `state` names. Raises LoaderError E-STATE if it is of another stream or makes no sense."""
        expected = asdict(self)
        if not isinstance(state, dict) or set(state) != {*expected, "epoch", "position"}:
            raise LoaderError("E-STATE", "this is no state of a Penstock loader")
        for name, mine in expected.items():
            if type(state[name]) is not type(mine) or state[name] != mine:
                raise LoaderError("E-STATE", f"the state has {name}={state[name]!r}, this loader {mine!r}")
        epoch, position = state["epoch"], state["position"]
        for name, value, limit in (("epoch", epoch, 1 << 32), ("position", position, self.samples + 1)):
            if type(value) is not int or not 0 <= value < limit:
                raise LoaderError("E-STATE", f"the state has {name}={value!r}, which lies outside [0, {limit})")
        return Cursor(epoch, position)
