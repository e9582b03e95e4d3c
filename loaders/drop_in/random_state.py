"""Saved states of random generators as JSON, because an epoch's order may be drawn from them."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.pipelines.errors import LoaderError

TORCH, PYTHON, NUMPY = "torch", "python", "numpy"
_MAX_HOLDERS = 16  # a sampler may contain itself
Generators = Mapping[str, torch.Generator]  # generators that are not global, by name
States = dict[str, Any]  # by name of the generator
Setters = dict[str, Callable[[Any], object]]


def find_generators(loader: object) -> dict[str, torch.Generator]:
    """Return the `generator` attributes of a loader and its (nested) samplers, by name."""
    found: list[torch.Generator] = []
    for holder in walk_samplers(loader):
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator) and all(generator is not known for known in found):
            found.append(generator)
    return {f"generator{number}": generator for number, generator in enumerate(found)}


def walk_samplers(loader: object) -> list[Any]:
    """Return a loader and its (nested) samplers, each once."""
    found: list[Any] = []
    waiting = [loader]
    while waiting and len(found) < _MAX_HOLDERS:
        holder = waiting.pop(0)
        if all(holder is not known for known in found):
            found.append(holder)
            waiting += [
                inner for name in ("sampler", "batch_sampler") if (inner := getattr(holder, name, None)) is not None
            ]
    return found


def capture(generators: Generators) -> States:
    """Return the states of the global generators of torch, Python and NumPy, and of `generators`."""
    version, words, gauss = random.getstate()
    del version
    states: States = {
        TORCH: _encode(torch.get_rng_state().numpy()),
        PYTHON: [_encode(np.array(words, np.uint32)), gauss],
    }
    legacy: Any = np.random.get_state()  # noqa: NPY002
    if isinstance(legacy, tuple):  # otherwise the program has installed another kind of generator
        states[NUMPY] = [_encode(legacy[1]), *legacy[2:]]
    for name, generator in generators.items():
        states[name] = _encode(generator.get_state().numpy())
    return states


def peek_base_seed(generator: torch.Generator | None) -> int:
    """Return the base seed of workers that torch's next iterator will draw, without changing the generator."""
    copy = torch.Generator()
    copy.set_state(torch.get_rng_state() if generator is None else generator.get_state())
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=copy))


def find_changed(before: States, after: States) -> set[str]:
    """Return the names of the generators that were used between two captures."""
    return {name for name in before if before[name] != after.get(name)}


def restore(states: States, generators: Generators) -> None:
    """Set the generators to `states`. Raises LoaderError E-STATE for an invalid state, or one without a generator."""
    setters: Setters = {TORCH: torch.set_rng_state, PYTHON: random.setstate, NUMPY: np.random.set_state}
    setters |= {name: generator.set_state for name, generator in generators.items()}
    if states.keys() - setters.keys():
        cause = "the saved order was drawn from the sampler's or loader's torch.Generator, but this loader has none"
        raise LoaderError("E-STATE", cause, fix="pass generator= as for the saved loader")
    _set(states, setters, "cannot be restored")


def check(states: object) -> States:
    """Return `states` if the global generators accept them, without setting any. Raises LoaderError E-STATE."""
    numpy, python = np.random.RandomState(), random.Random()  # noqa: S311
    trial: Setters = {TORCH: torch.Generator().set_state, PYTHON: python.setstate, NUMPY: numpy.set_state}
    return _set(states, trial, "is invalid")


def _set(states: Any, setters: Setters, fault: str) -> States:
    """Pass each state to its setter, if there is one, and return all. Raises LoaderError E-STATE for invalid ones."""
    try:
        found = dict(states)
        for name, state in found.items():
            decoded = _DECODERS.get(name, _decode_bytes)(state)
            if name in setters:
                setters[name](decoded)
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        raise LoaderError("E-STATE", f"the state of a random generator {fault}: {error}") from error
    return found


def _encode(words: npt.NDArray[np.generic]) -> str:
    return base64.b64encode(words.tobytes()).decode("ascii")


def _decode_bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=torch.uint8)


def _decode_words(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(base64.b64decode(text, validate=True), np.uint32)


def _decode_python(state: Any) -> tuple[object, ...]:
    return 3, tuple(_decode_words(state[0]).tolist()), state[1]


def _decode_numpy(state: Any) -> tuple[object, ...]:
    return "MT19937", _decode_words(state[0]), int(state[1]), int(state[2]), float(state[3])


_DECODERS: Setters = {PYTHON: _decode_python, NUMPY: _decode_numpy}
