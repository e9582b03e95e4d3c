"""The protocol of torchdata: objects that keep their own place, by state_dict() and load_state_dict()."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from penstock.pipelines.errors import LoaderError


def keeps_place(candidate: object) -> bool:
    """Say whether the object follows the protocol."""
    kind = type(candidate)  # not the object: a data pipe has attributes for whatever it is asked
    return callable(getattr(kind, "state_dict", None)) and callable(getattr(kind, "load_state_dict", None))


def save_places(keepers: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the state of each of `keepers` that follows the protocol, by name."""
    # A copy: what the object goes on to change is pickled, or saved, later.
    return {name: copy.deepcopy(keeper.state_dict()) for name, keeper in keepers.items() if keeps_place(keeper)}


def load_place(keeper: Any, name: str, states: Mapping[str, Any]) -> None:
    """Hand `keeper` its part of `states`, if there is one. Raises LoaderError E-STATE if it takes none."""
    if name not in states:
        return
    if not keeps_place(keeper):
        cause = f"the state holds one of the {name}, whose class {type(keeper).__name__} has no load_state_dict"
        raise LoaderError("E-STATE", cause)
    keeper.load_state_dict(copy.deepcopy(states[name]))
