"""States of stateful objects, which have state_dict() and load_state_dict(), as in torchdata."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.pipelines.errors import LoaderError

States = dict[str, object]  # by name of the object


@dataclass(frozen=True)
class Missing:
    """A state that could not be copied, with the reason `why`. It is an error only when the state is needed."""

    why: str


def is_stateful(candidate: Any) -> bool:
    """Return whether an object has load_state_dict(), and state_dict() without arguments."""
    kind = type(candidate)  # not the object: a data pipe has attributes of any name
    if not (callable(getattr(kind, "state_dict", None)) and callable(getattr(kind, "load_state_dict", None))):
        return False
    try:
        inspect.signature(candidate.state_dict).bind()
    except TypeError:  # another kind of state_dict
        return False
    except ValueError:  # not written in Python
        pass
    return True


def keep_stateful(objects: Mapping[str, object]) -> dict[str, Any]:
    """Return the stateful ones of `objects`."""
    return {name: owner for name, owner in objects.items() if is_stateful(owner)}


def save_states(objects: Mapping[str, object]) -> States:
    """Return a copy of the state of each stateful object, by name; Missing if there is none."""
    return {name: _copy_state(owner) for name, owner in objects.items()}


def _copy_state(owner: Any) -> object:
    try:
        return copy.deepcopy(owner.state_dict())  # the object may change it before it is pickled or saved
    except Exception as error:  # any error of the object
        return Missing(f"{type(error).__name__}: {error}")


def save_starts(objects: Mapping[str, object]) -> States:
    """Return the states of the stateful ones of `objects` before the first sample, if they have one."""
    states = save_states(keep_stateful(objects))
    return {name: state for name, state in states.items() if not isinstance(state, Missing)}


def refuse_missing(states: Mapping[str, object]) -> None:
    """Raise LoaderError E-STATE if one of `states` is Missing."""
    for name, state in states.items():
        if isinstance(state, Missing):
            fix = "check its state_dict(), which is called after each batch"
            raise LoaderError("E-STATE", f"the state of the {name} cannot be copied ({state.why})", fix=fix)


def load_state(owner: Any, name: str, states: Mapping[str, object]) -> None:
    """Load the state called `name` into `owner`, if there is one. Raises LoaderError E-STATE if it is not stateful."""
    if name not in states:
        return
    if not is_stateful(owner):
        cause = f"the saved state includes the {name}, but its class {type(owner).__name__} has no load_state_dict"
        raise LoaderError("E-STATE", cause)
    owner.load_state_dict(copy.deepcopy(states[name]))
