"""A state is loaded only with the user functions that it was saved with."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from transform_functions import jitter, mean, roll

from penstock.loaders import LoaderError, create_loader
from penstock.loaders.front.loader import Loader
from penstock.pipelines.spec import ImagePipeline

DATA = (np.zeros((12, 8, 8, 3), np.uint8), np.arange(12))
TINY = ImagePipeline(size=(8, 8))


def open_loader(**options: Any) -> Loader:
    return create_loader(DATA, batch_size=4, workers=0, **{"pipeline": TINY} | options)


def save(options: dict[str, Any]) -> Any:
    with open_loader(**options) as loader:
        next(iter(loader))
        return json.loads(json.dumps(loader.state_dict()))


def load(state: Any, options: dict[str, Any], **how: Any) -> int:
    with open_loader(**options) as loader:
        loader.load_state_dict(state, **how)
        return len(list(loader))


class Brighter:
    def __init__(self, levels: int) -> None:
        self._levels = levels
        self.calls = 0
        self.state = np.random.default_rng(0)

    def __call__(self, image: Any) -> Any:
        self.calls += 1
        return image + np.uint8(self._levels)

    def method(self, image: Any) -> Any:
        return self(image)


class Plain:
    def __init__(self, levels: int) -> None:
        self.levels = levels

    def __call__(self, image: Any) -> Any:
        return image + np.uint8(self.levels)


@dataclass
class Printed:
    levels: int

    def __call__(self, image: Any) -> Any:
        return image + np.uint8(self.levels)


class Steps:
    """Prints its steps as torchvision's Compose does, without what they contain."""

    def __init__(self, *steps: Callable[[Any], Any]) -> None:
        self.steps = list(steps)
        self.by_name = {"image": self.run}  # as albumentations' transforms do

    def run(self, image: Any) -> Any:
        for step in self.steps:
            image = step(image)
        return image

    def __call__(self, image: Any) -> Any:
        return self.by_name["image"](image)

    def __repr__(self) -> str:
        return f"Steps({self.steps})"


class Chain:
    """Has steps and no repr of its own."""

    def __init__(self, *steps: Callable[[Any], Any]) -> None:
        self.steps = steps

    def __call__(self, image: Any) -> Any:
        for step in self.steps:
            image = step(image)
        return image


class Choosing:
    """Records what it draws from its own generator, as MONAI's transforms do."""

    def __init__(self, share: float) -> None:
        self.generator = np.random.default_rng()
        self.share, self.is_applied = share, False

    def draw(self) -> None:
        self.is_applied = bool(self.generator.random() < self.share)

    def __call__(self, image: Any) -> Any:
        self.draw()
        return image


class MoreChoosing(Choosing):
    def draw(self) -> None:
        super().draw()


class Quiet:
    """Prints only its class, as torchvision's Lambda does."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, image: Any) -> Any:
        return self.function(image)

    def __repr__(self) -> str:
        return "Quiet()"


class Table(torch.nn.Module):
    """Has a table, weights that train, and attributes that its repr does not show."""

    def __init__(self, top: int, share: float = 1.0) -> None:
        super().__init__()
        self.levels = np.linspace(0, top, 256).astype(np.float32)
        self.share = share
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, image: Any) -> Any:
        return self.levels[image][..., 0] * np.float32(self.share)


def brighten(image: Any, by: int) -> Any:
    return image + np.uint8(by)


def closure(by: int) -> Callable[[Any], Any]:
    def inner(image: Any) -> Any:
        return brighten(image, by)

    return inner


def counting(by: int) -> Callable[[Any], Any]:
    seen = {"by": by, "calls": 0}

    def inner(image: Any) -> Any:
        seen["calls"] += 1
        return brighten(image, seen["by"])

    return inner


def default(by: int) -> Callable[[Any], Any]:
    return lambda image, by=by: brighten(image, by)


def in_list(names: set[str]) -> Callable[[Any], Any]:
    return lambda image: image + np.uint8(len(names & {"a", "b", "c", "d"}))


KINDS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "function": (lambda: mean, lambda: roll),
    "lambda": (lambda: lambda image: image + 1, lambda: lambda image: image + 2),
    "closure": (lambda: closure(1), lambda: closure(2)),
    "default": (lambda: default(1), lambda: default(2)),
    "counting closure": (lambda: counting(1), lambda: counting(2)),
    "captured set": (lambda: in_list({"a", "b", "c"}), lambda: in_list({"a", "b"})),
    "partial": (lambda: functools.partial(brighten, by=1), lambda: functools.partial(brighten, by=2)),
    "object": (lambda: Brighter(1), lambda: Brighter(2)),
    "method": (lambda: Brighter(1).method, lambda: Brighter(2).method),
    "dataclass": (lambda: Printed(1), lambda: Printed(2)),
    "steps of objects": (lambda: Steps(Plain(1)), lambda: Steps(Plain(2))),
    "steps of functions": (lambda: Steps(lambda image: image + 1), lambda: Steps(lambda image: image + 2)),
    "steps of steps": (lambda: Steps(Steps(Quiet(closure(1)))), lambda: Steps(Steps(Quiet(closure(2))))),
    "steps that count": (lambda: Chain(Brighter(1)), lambda: Chain(Brighter(2))),
    "method of steps that count": (lambda: Chain(Brighter(1)).__call__, lambda: Chain(Brighter(2)).__call__),
    "printed steps that count": (lambda: Steps(Brighter(1)), lambda: Steps(Brighter(2))),
    "partial of steps": (
        lambda: functools.partial(Chain(Brighter(1), counting(1))),
        lambda: functools.partial(Chain(Brighter(1), counting(2))),
    ),
    "quiet": (lambda: Quiet(lambda image: image + 1), lambda: Quiet(lambda image: image + 2)),
    "module": (lambda: Table(255), lambda: Table(254)),
    "nested": (lambda: torch.nn.Sequential(Table(255)), lambda: torch.nn.Sequential(Table(255, share=0.5))),
    "kind": (lambda: mean, lambda: Printed(1)),
}
BATCH: dict[str, tuple[Any, Any]] = {
    "lambda": (lambda images, labels: (-images, labels), lambda images, labels: (images * 2, labels)),
    "partial": (
        functools.partial(lambda images, labels, by: (images * by, labels), by=1),
        functools.partial(lambda images, labels, by: (images * by, labels), by=3),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_transform_is_accepted_and_another_one_refused(kind: str) -> None:
    """With new objects, as in another run, and with the same object after calls."""
    one, other = KINDS[kind]
    function = one()
    plain, state = save({}), save({"transform": function})
    assert load(state, {"transform": function}) == 2
    assert load(state, {"transform": one()}) == 2
    assert load(plain, {}) == 2
    for saved, now in ((state, other()), (state, None), (plain, function)):
        with pytest.raises(LoaderError, match=r"E-STATE.*the state has transform=.*this loader.*strict=False"):
            load(saved, {"transform": now})
    assert load(state, {"transform": other()}, strict=False) == 2


@pytest.mark.parametrize("kind", BATCH)
def test_the_same_batch_transform_is_accepted_and_another_one_refused(kind: str) -> None:
    one, other = BATCH[kind]
    plain, state = save({}), save({"batch_transform": one})
    assert load(state, {"batch_transform": one}) == 2
    for saved, now in ((state, other), (state, None), (plain, one)):
        with pytest.raises(LoaderError, match=r"E-STATE.*the state has batch_transform="):
            load(saved, {"batch_transform": now})


@pytest.mark.parametrize("kind", [Choosing, MoreChoosing])
@pytest.mark.parametrize("form", [lambda step: step, Chain, Steps, lambda step: step.__call__])
def test_random_attributes_set_by_calls_are_not_parameters(
    kind: Callable[[float], Any], form: Callable[[Any], Any]
) -> None:
    states = [save({"transform": form(kind(0.5))}) for _ in range(8)]
    assert len({state["pipeline"]["transform"] for state in states}) == 1
    with pytest.raises(LoaderError, match="the state has transform="):
        load(states[0], {"transform": form(kind(0.25))})


def test_a_table_that_contains_itself_is_handled() -> None:
    table: list[Any] = [1]
    table.append(table)
    function = Quiet(mean)
    function.table = table  # type: ignore[attr-defined]
    assert load(save({"transform": function}), {"transform": function}) == 2


def test_transforms_of_views_are_compared_one_by_one() -> None:
    views = [TINY, TINY]
    state = save({"pipeline": views, "transform": [mean, mean]})
    assert load(state, {"pipeline": views, "transform": mean}) == 2
    for transform in ([mean, None], [None, mean], [mean, roll]):
        with pytest.raises(LoaderError, match="the state has transform="):
            load(state, {"pipeline": views, "transform": transform})


SCRIPT = """
import dataclasses, functools, json, sys
sys.path.append(sys.argv[1])
import numpy as np, torch
from penstock.loaders import create_loader
from penstock.pipelines.spec import ImagePipeline
{lines}
class Twice:
    def __init__(self, names): self.names, self.table = names, np.arange(5)
    def __call__(self, image): return image * 2
@dataclasses.dataclass
class Printed:
    names: frozenset
    def __call__(self, image): return image
def make(names):
    def inner(image): return image if len(names) > 9 or "x" in {{"p", "q", "r", "s"}} else image + 1
    return inner
def own(image, generator): return image + {by}
names = {{"a", "b", "c", "d"}}
compiled = torch.compile(torch.nn.Sequential(torch.nn.ReLU()), backend="eager")
functions = [own, make(names), Twice(names), functools.partial(own), lambda image: image, Printed(frozenset(names))]
for function in functions:
    data = (np.zeros((4, 8, 8, 3), np.uint8), np.arange(4))
    pipeline = ImagePipeline(size=(8, 8))
    with create_loader(data, pipeline=pipeline, batch_size=4, workers=0, transform=function) as loader:
        print(loader.state_dict()["pipeline"]["transform"])
for function in [compiled, torch.compile(own, backend="eager")]:
    with create_loader(data, pipeline=pipeline, batch_size=4, workers=0, batch_transform=function) as loader:
        print(loader.state_dict()["pipeline"]["batch_transform"])
"""


def start_script(script: str, seed: int) -> subprocess.Popen[str]:
    environment = {"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join(filter(None, sys.path))}
    return subprocess.Popen([sys.executable, "-c", script, "."], stdout=subprocess.PIPE, text=True, env=environment)


def test_functions_of_a_script_have_the_same_names_in_another_process() -> None:
    """Independent of their addresses and the order of sets; other code gives another name."""
    changed = start_script(SCRIPT.format(by=1, lines="import os\n\n\n"), seed=7)
    both = start_script(SCRIPT.format(by=1, lines="") + SCRIPT.format(by=2, lines=""), seed=0)
    again, names = (script.communicate(timeout=100)[0].splitlines() for script in (changed, both))
    first, other = names[:8], names[8:]
    assert len(set(first)) == 7
    assert again == first
    assert [one == two for one, two in zip(first, other, strict=True)] == [
        False,
        True,
        True,
        False,
        True,
        True,
        True,
        False,
    ]


def test_names_do_not_depend_on_how_arrays_are_printed() -> None:
    class Shown:
        def __init__(self) -> None:
            self.levels = np.linspace(0, 1, 7)

        def __repr__(self) -> str:
            return f"Shown({self.levels})"

        def __call__(self, image: Any) -> Any:
            return image

    state = save({"transform": Shown()})
    with np.printoptions(precision=1, threshold=2):
        assert load(state, {"transform": Shown()}) == 2


def test_a_state_of_version_0_2_0_has_no_functions() -> None:
    """It is accepted without functions. With one it is refused, because it does not contain the function's name."""
    state = save({})
    assert "transform" not in state["pipeline"]
    assert "batch_transform" not in state["pipeline"]
    with pytest.raises(LoaderError, match="transform=None"):
        load(state, {"transform": jitter})
