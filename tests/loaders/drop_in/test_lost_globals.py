"""Module globals that the program sets, and that workers do not see which import its modules anew."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import json
import sys
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from drop_in_streams import run_script
from torch.utils.data import ConcatDataset, Subset

from penstock.loaders.drop_in import globals_read, lost_globals
from penstock.loaders.drop_in.globals_read import GlobalsRead
from penstock.loaders.drop_in.lost_globals import comparable, new_globals, warn_of_lost_globals

SCRIPT = """
import logging
import config, parts.sizes
from penstock.loaders import DataLoader
SIZE, SCALE, TOKEN, FILE, UNUSED, ROOT, CACHE = 1, 1, "", None, 0, "", {{}}
class Defaults: gain = 1
class Scale:
    def __call__(self, number): return number * SCALE * Defaults.gain
def number(index):
    global FILE
    FILE = FILE or object()
    return index + SIZE + config.offset + parts.sizes.more + len(TOKEN)
class Data:
    def __init__(self): self.root, self.transforms = ROOT, [Scale()]
    def __len__(self): return 2
    def __getitem__(self, index):
        logging.getLogger(__name__).debug(__file__)
        if index not in CACHE: CACHE[index] = self.transforms[0](number(index))
        return CACHE[index]
def set_all(worker=0):
    globals().update(SIZE=3, SCALE=5, TOKEN="secret", UNUSED=5, ROOT="there")
    config.offset, parts.sizes.more, Defaults.gain = 6, 1, 2
if __name__ == "__main__":
    set_all()
    data = Data()
    data[0]
    for _ in range(2):
        loader = DataLoader(data, 2, num_workers=2, multiprocessing_context="{method}", worker_init_fn={init})
        print(*[batch.tolist() for batch in loader])
"""
SAID = (
    "since: __main__.Defaults.gain, __main__.SCALE, __main__.SIZE, __main__.TOKEN, config.offset, parts.sizes.more. "
    "Pass such"
)


@pytest.mark.parametrize(
    ("method", "init", "batch", "said"),
    [
        ("spawn", None, [1, 2], 1),
        ("forkserver", None, [1, 2], 1),
        ("spawn", "set_all", [160, 170], 0),
        ("fork", None, [160, 170], 0),
    ],
)
def test_what_workers_do_not_see_is_said_once(method: str, init: str, batch: Any, said: int, tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text("offset = 0\n")
    (tmp_path / "parts").mkdir()  # a package without __init__.py
    (tmp_path / "parts" / "sizes.py").write_text("more = 0\n")
    done = run_script(SCRIPT.format(method=method, init=init), tmp_path)
    assert done.stdout == f"{batch}\n" * 2, done.stderr
    assert done.stderr.count(SAID) == done.stderr.count("Warning") == said
    assert "secret" not in done.stderr


PLAIN, NESTED, OWN, LATE = 1, 2, 3, 4
TABLE, MADE = {"a": 1}, [1]
ARGS = argparse.Namespace(size=1, other=[], unused=2)
module = sys.modules[__name__]


def plain(add: int = 0) -> int:
    return PLAIN + add


def nested() -> Callable[[], int]:
    return lambda: NESTED


def own() -> int:
    global OWN
    OWN += 1
    module.LATE = LATE  # type: ignore[attr-defined]
    MADE.append(OWN)
    return OWN


def decorated(function: Callable[[], int]) -> Callable[[], int]:
    def wrapper() -> int:
        return function() + LATE

    return wrapper


def of_args() -> Any:
    return ARGS.size + len(ARGS.other)


class Owner:
    """Reads PLAIN and TABLE in a worker; the rest is not called there."""

    def __init__(self) -> None:
        self.late = LATE

    def __call__(self) -> Any:
        return self.size, self.table()

    @property
    def size(self) -> int:
        return PLAIN

    @staticmethod
    def table() -> dict[str, int]:
        return TABLE

    def not_called(self) -> int:
        return OWN


class Child(Owner):
    pass


class WithoutGradient:
    @torch.no_grad()
    def __getitem__(self, index: int) -> int:
        return PLAIN


@dataclass(slots=True)
class Slots:
    inner: Any


class Layer(torch.nn.Module):
    def forward(self, image: Any) -> Any:
        return image * PLAIN


@pytest.mark.parametrize(
    ("thing", "read"),
    [
        (plain, {"PLAIN"}),
        (nested, {"NESTED"}),
        (own, set()),
        (decorated(plain), {"PLAIN", "LATE"}),
        (functools.lru_cache(plain), {"PLAIN"}),
        (functools.partial(max, 1, key=plain), {"PLAIN"}),
        (of_args, {"ARGS", "ARGS.size", "ARGS.other"}),
        (Child(), {"PLAIN", "TABLE"}),
        (Child().not_called, {"PLAIN", "TABLE", "OWN"}),
        (WithoutGradient(), {"PLAIN"}),
        (Slots(plain), {"PLAIN"}),
        ({"image": Slots([plain])}, {"PLAIN"}),
        (torch.nn.Sequential(Layer()), {"PLAIN"}),
        (Subset([plain], [0]), {"PLAIN"}),  # type: ignore[arg-type]
        (ConcatDataset([Subset([plain], [0])] * 70), {"PLAIN"}),  # type: ignore[arg-type,list-item]
        ([0] * 64 + [plain], set()),
        (json.dumps, set()),
        (None, set()),
    ],
)
def test_the_globals_that_the_code_of_an_object_reads(thing: Any, read: set[str]) -> None:
    assert {name for place, name in GlobalsRead(thing).values if place == __name__} == read


class Hostile:
    """Fails whenever its attributes or its length are looked at."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __len__(self) -> int:
        raise RuntimeError("its length")


class AttributeDict(dict[str, Any]):
    __slots__ = ()
    __getattr__ = dict.__getitem__


def test_no_code_of_the_objects_runs() -> None:
    class Lazy(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            raise RuntimeError("its items")

    read = GlobalsRead([Hostile(), AttributeDict(a=1), Lazy([1]), torch.ones(2)], plain)
    assert (__name__, "PLAIN") in read.values


def test_whatever_goes_wrong_the_program_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*objects: Any) -> None:
        raise RecursionError

    monkeypatch.setattr(lost_globals, "GlobalsRead", fail)
    assert new_globals(plain, None, None) == {}
    monkeypatch.setattr(lost_globals, "value_at", fail)
    warn_of_lost_globals({(__name__, "PLAIN"): "int 1"})


def test_a_module_that_is_gone_or_is_another_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "settings.py"
    place.write_text("SIZE = 1\ndef read(): return SIZE\n")
    spec = importlib.util.spec_from_file_location("settings", place)
    assert spec is not None
    assert spec.loader is not None
    settings = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(settings)
    assert GlobalsRead(settings.read).values == {}
    monkeypatch.setitem(sys.modules, "settings", ModuleType("settings"))
    assert GlobalsRead(settings.read).values == {}
    monkeypatch.setitem(sys.modules, "settings", settings)
    assert GlobalsRead(settings.read).values == {("settings", "SIZE"): 1}
    warn_of_lost_globals({("not_imported_yet", "SIZE"): "int 1"})


def test_large_objects_are_not_looked_at_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLAIN", "\u20ac" * 100_000_000)
    many = [[[object() for _ in range(60)] for _ in range(60)] for _ in range(60)]
    tracemalloc.start()
    try:
        read = GlobalsRead(Slots(many), plain)
        assert list(map(comparable, read.values.values())) == ["str of 100000000 '" + r"\u20ac" * 64 + "'"]
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert len(read._seen) == globals_read._MOST


@pytest.fixture(autouse=True)
def nothing_sent_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_globals, "_sent", set())


def test_a_value_is_sent_once_for_a_reader_and_again_when_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert new_globals(plain, None, None) == {(__name__, "PLAIN"): "int 1"}
    assert new_globals(plain, None, None) == {}
    assert new_globals(plain, None, own) == {(__name__, "PLAIN"): "int 1"}
    monkeypatch.setattr(module, "PLAIN", 5)
    assert new_globals(plain, None, None) == {(__name__, "PLAIN"): "int 5"}


@pytest.mark.parametrize(
    ("there", "here", "lost"),
    [
        (1, True, True),
        (1 << 100_000, 1 << 100_001, True),
        ((1, "a"), (1, "b"), True),
        ([1], [1, 2], True),
        (None, object(), True),
        ("x" * 1000, "x" * 1001, True),
        (b"a", b"b", True),
        (Path("/a"), Path("/b"), True),
        (ValueError(), KeyError(), True),
        (float("nan"), float("nan"), False),
        (object(), object(), False),
        (Path("/a"), Path("/a"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_are_told_apart(there: Any, here: Any, lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLAIN", there)
    values = new_globals(plain, None, None)
    assert len(values) == 1
    monkeypatch.setattr(module, "PLAIN", here)
    with pytest.warns(UserWarning, match=r"PLAIN\.") if lost else contextlib.nullcontext():
        warn_of_lost_globals(values)
    monkeypatch.delattr(module, "PLAIN")
    with pytest.warns(UserWarning, match=r"PLAIN\."):
        warn_of_lost_globals(values)


def test_a_changed_attribute_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    values = new_globals(of_args, None, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_lost_globals(values)
    monkeypatch.setattr(ARGS, "size", 2)
    with pytest.warns(UserWarning, match=r"since: \S+test_lost_globals.ARGS.size\. Pass"):
        warn_of_lost_globals(values)
    monkeypatch.delattr(ARGS, "size")
    with pytest.warns(UserWarning, match=r"ARGS.size\. Pass"):
        warn_of_lost_globals(values)
