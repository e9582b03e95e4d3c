"""The protocol of torchdata: objects that keep their own place, by state_dict() and load_state_dict()."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.pipelines.errors import LoaderError


@dataclass(frozen=True)
class Missing:
    """Stand for a state that could not be had, `why`: that is no fault before somebody asks for it."""

    why: str


def keeps_place(candidate: Any) -> bool:
    """Say whether the object follows the protocol."""
    kind = type(candidate)  # not the object: a data pipe has attributes for whatever it is asked
    if not (callable(getattr(kind, "state_dict", None)) and callable(getattr(kind, "load_state_dict", None))):
        return False
    try:
        inspect.signature(candidate.state_dict).bind()
    except TypeError:  # a protocol of its own
        return False
    except ValueError:  # not written in Python
        pass
    return True


def save_places(keepers: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the state of each of `keepers`, which follow the protocol, by name."""
    return {name: _copy_of_state(keeper) for name, keeper in keepers.items()}


def _copy_of_state(keeper: Any) -> Any:
    try:
        return copy.deepcopy(keeper.state_dict())  # the object goes on to change it before it is pickled, or saved
    except Exception as error:  # the object's own
        return Missing(f"{type(error).__name__}: {error}")


def save_starts(keepers: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `save_places` does, without the states that cannot be had before the first sample."""
    return {name: state for name, state in save_places(keepers).items() if not isinstance(state, Missing)}


def refuse_missing(states: Mapping[str, Any]) -> None:
    """Raise LoaderError E-STATE if one of `states` is Missing."""
    for name, state in states.items():
        if isinstance(state, Missing):
            fix = "look at its state_dict(): it is asked for its state after each batch"
            raise LoaderError("E-STATE", f"the {name} has no state that can be copied ({state.why})", fix=fix)


def load_place(keeper: Any, name: str, states: Mapping[str, Any]) -> None:
    """Hand `keeper` its part of `states`, if there is one. Raises LoaderError E-STATE if it takes none."""
    if name not in states:
        return
    if not keeps_place(keeper):
        cause = f"the state holds one of the {name}, whose class {type(keeper).__name__} has no load_state_dict"
        raise LoaderError("E-STATE", cause)
    keeper.load_state_dict(copy.deepcopy(states[name]))
