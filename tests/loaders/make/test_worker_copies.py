"""Transforms and tokenizers that keep something of a call serve each sample its own result, with any workers."""

from __future__ import annotations

import functools
import io
import logging
import os
import pickle
import sys
import threading
import time
import types
import zlib
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch

from penstock.loaders import create_loader, with_fields
from penstock.loaders.make.layout import Part
from penstock.loaders.make.own.worker_copies import Sharing, WorkerCopies, always_copied
from penstock.loaders.make.own_tokenizer import OwnTokenizer
from penstock.loaders.make.own_transform import OwnTransform
from penstock.pipelines.spec import ImagePipeline

LEVELS = np.random.default_rng(0).permutation(48).astype(np.uint8)
ARRAYS = np.broadcast_to(LEVELS[:, None, None, None], (48, 6, 6, 3)).copy(), LEVELS.astype(np.int64)
KEPT = np.zeros(4, np.int64)


def number_of(given: Any) -> int:
    """Return a number for an image or a text."""
    return int(given.mean()) if isinstance(given, np.ndarray) else zlib.crc32(given.encode())


def pause() -> None:
    """Let another thread run between the two halves of a call."""
    time.sleep(0.0005)


class Keeping:
    """Returns what it has kept; `keep` stores a value, `kept` is read after other threads have run."""

    def __init__(self) -> None:
        self.value, self.array, self.tensor = 0, np.zeros(4, np.int64), torch.zeros(4, dtype=torch.int64)
        self.values: list[int] = []

    def __call__(self, given: Any) -> Any:
        self.keep(number_of(given))
        pause()
        return self.kept()

    def keep(self, value: int) -> None:
        raise NotImplementedError

    def kept(self) -> Any:
        raise NotImplementedError


class InAttribute(Keeping):
    def keep(self, value: int) -> None:
        self.value = value

    def kept(self) -> Any:
        return np.full(4, self.value)


class InArray(Keeping):
    def keep(self, value: int) -> None:
        self.array[:] = value

    def kept(self) -> Any:
        return self.array


class InTensor(Keeping):
    def keep(self, value: int) -> None:
        self.tensor.fill_(value)

    def kept(self) -> Any:
        return self.tensor


class InList(Keeping):
    def keep(self, value: int) -> None:
        self.values[:] = [value] * 4

    def kept(self) -> Any:
        return np.array(self.values)


class InClass(InArray):
    shared = np.zeros(4, np.int64)

    def __init__(self) -> None:
        super().__init__()
        self.array = self.shared


class WithLock(InAttribute):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class InDictOfClass(Keeping):
    values_of_class: dict[str, int] = {}  # noqa: RUF012

    def keep(self, value: int) -> None:
        self.values_of_class["value"] = value

    def kept(self) -> Any:
        return np.full(4, self.values_of_class["value"])


def in_global(given: Any) -> Any:
    KEPT[:] = number_of(given)
    pause()
    return KEPT


IN_GLOBAL = InAttribute()


def in_global_object(given: Any) -> Any:
    return IN_GLOBAL(given)


class OfGlobalObject:
    def __call__(self, given: Any) -> Any:
        return IN_GLOBAL(given)


def by_another_function(given: Any) -> Any:
    return in_global_object(given)


def in_closure() -> Callable[[Any], Any]:
    kept = np.zeros(4, np.int64)

    def keep(given: Any) -> Any:
        kept[:] = number_of(given)
        pause()
        return kept

    return keep


def in_global_of_inner_code(given: Any) -> Any:
    return [IN_GLOBAL(each) for each in (given,)][0]  # noqa: RUF015


class ByMethod:
    def __call__(self, given: Any) -> Any:
        return self.serve(given)

    def serve(self, given: Any) -> Any:
        return in_global(given)

    @staticmethod
    def alone(given: Any) -> Any:
        return in_global(given)


class Inheriting(ByMethod):
    """Has the methods of its base."""


class InheritingDict(InDictOfClass):
    """Has the dict of its base."""


class InAttributeOfClass(Keeping):
    kept_value = 0

    def keep(self, value: int) -> None:
        InAttributeOfClass.kept_value = value

    def kept(self) -> Any:
        return np.full(4, self.kept_value)


class PickledWithout(InArray):
    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]


class NotPickled(InArray):
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError


class AfterCache(InArray):
    def __init__(self) -> None:
        self.a_cached = functools.lru_cache(lambda value: value)
        super().__init__()


class AfterSparse(InArray):
    def __init__(self) -> None:
        self.a_table = torch.eye(3).to_sparse()
        self.b_table = torch.ones(2, dtype=torch.complex64).conj()
        super().__init__()


class NotCompared(InArray):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError


OF_ANOTHER_MODULE = types.ModuleType("module_of_user")
OF_ANOTHER_MODULE.__dict__.update(np=np, kept=np.zeros(4, np.int64), number_of=number_of, pause=pause)
exec("def serve(given):\n    kept[:] = number_of(given)\n    pause()\n    return kept", vars(OF_ANOTHER_MODULE))


@pytest.fixture(autouse=True)
def _another_module(monkeypatch: pytest.MonkeyPatch) -> None:
    OF_ANOTHER_MODULE.__file__ = "/module_of_user.py"
    monkeypatch.setitem(sys.modules, OF_ANOTHER_MODULE.__name__, OF_ANOTHER_MODULE)


def by_module(given: Any) -> Any:
    return OF_ANOTHER_MODULE.serve(given)


class Chain:
    def __init__(self, *steps: Any) -> None:
        self.steps = steps

    def __call__(self, given: Any) -> Any:
        return [step(given) for step in self.steps][-1]


KINDS: dict[str, Callable[[], Any]] = {
    "attribute": InAttribute,
    "array": InArray,
    "tensor": InTensor,
    "list": InList,
    "array of the class": InClass,
    "dict of the class": InDictOfClass,
    "with a lock": WithLock,
    "global array": lambda: in_global,
    "global object": lambda: in_global_object,
    "global object of another function": lambda: by_another_function,
    "global object of a method": OfGlobalObject,
    "global object of a comprehension": lambda: in_global_of_inner_code,
    "global array of a helper method": ByMethod,
    "global array of a method": lambda: ByMethod().serve,
    "global array of a static method": lambda: Chain(ByMethod().alone, ByMethod()),
    "global array of an inherited method": Inheriting,
    "global array of another module": lambda: by_module,
    "dict of the base": InheritingDict,
    "number of the class": InAttributeOfClass,
    "left out of the pickle": PickledWithout,
    "cannot be pickled": NotPickled,
    "after a function with a cache": AfterCache,
    "after unusual tensors": AfterSparse,
    "cannot be compared": NotCompared,
    "closure": in_closure,
    "nested": lambda: Chain(len, InArray()),
    "partial": lambda: functools.partial(in_closure()),
    "method": lambda: InAttribute().__call__,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("argument", ["transform", "tokenize"])
def test_each_sample_gets_its_own_result(argument: str, kind: str) -> None:
    data_texts = list(map(str, LEVELS.tolist()))
    data = with_fields(ARRAYS, text=data_texts)
    about: dict[str, Any] = {"pipeline": ImagePipeline(size=(6, 6), crop="full", flip=0), "shuffle": False}
    about |= {"batch_size": 48, "workers": 4, "workers_are": "threads", argument: KINDS[kind]()}
    with create_loader(data, **about) as loader:
        (batch,) = loader
    found, givens = (batch["text"], data_texts) if argument == "tokenize" else (batch.images, ARRAYS[0])
    assert found.tolist() == [[number_of(given)] * 4 for given in givens]


class Augmenting:
    """Draws parameters from the generator, keeps them, and reads a table that is larger than what is copied."""

    def __init__(self) -> None:
        self.table = np.ones(1 << 24)

    def __call__(self, image: Any, rng: np.random.Generator) -> Any:
        self.angle = rng.integers(1 << 40)
        pause()
        return np.full(4, self.angle * self.table[0])


class RunningMean:
    """Depends on the images before."""

    def __init__(self) -> None:
        self.mean: float | None = None

    def __call__(self, image: Any) -> Any:
        new = float(image.mean())
        self.mean = new if self.mean is None else 0.9 * self.mean + 0.1 * new
        return np.full(4, self.mean)


class GrowingVocabulary:
    """Numbers words as they come."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}

    def __call__(self, text: str) -> list[int]:
        return [self.words.setdefault(word, len(self.words)) for word in text.split()][:1]


class WordCache(GrowingVocabulary):
    def __call__(self, text: str) -> list[int]:
        return [self.words.setdefault(word, zlib.crc32(word.encode())) for word in text.split()][:1]


def test_functions_of_earlier_samples_are_named() -> None:
    with pytest.warns(UserWarning, match="different results for the same image and random state"):
        OwnTransform(RunningMean(), Part((6, 6, 3)))
    with pytest.warns(UserWarning, match="different results for the same text, at once or after other texts"):
        OwnTokenizer(GrowingVocabulary())
    OwnTokenizer(WordCache())


def test_kept_draws_are_those_of_the_sample() -> None:
    runs = []
    for workers in (0, 4):
        about: dict[str, Any] = {"pipeline": ImagePipeline(size=(6, 6), crop="full", flip=0), "shuffle": True}
        about |= {"batch_size": 48, "workers": workers, "workers_are": "threads", "transform": Augmenting()}
        with create_loader(ARRAYS, **about) as loader:
            (batch,) = loader
            runs.append(batch.images)
    assert len(runs[0].unique()) == 48
    assert torch.equal(*runs)


def test_functions_that_calls_do_not_change_are_shared_and_large_arrays_are_not_copied() -> None:
    class Pure:
        def __init__(self) -> None:
            self.table, self.names, self.generator = np.arange(256), {"a": [1, 2]}, np.random.default_rng(0)

        def __call__(self, image: Any) -> Any:
            return self.table[image]

    def pure(text: str) -> list[int]:
        return [len(text), 1]

    part = Part((6, 6, 3))

    class WithTools(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.lock, self.log = torch.nn.BatchNorm2d(3).eval(), threading.Lock(), logging.getLogger("a")
            self.cached, self.counter = functools.lru_cache(lambda value: value), torch.multiprocessing.Value("i", 3)

        def forward(self, image: Any) -> Any:
            with self.lock, torch.no_grad(), open(os.devnull) as self_file:
                self.log.debug(self_file.name)
                return self.norm(torch.tensor(image).movedim(-1, 0)[None] * self.cached(image.shape)[2] / 255.0)[0]

    assert OwnTransform(WithTools(), part)._copies.sharing is Sharing.SHARED
    assert OwnTransform(Pure(), part)._copies.sharing is Sharing.SHARED
    assert OwnTransform(lambda image: image, part)._copies.sharing is Sharing.SHARED
    assert OwnTokenizer(pure)._copies.sharing is Sharing.SHARED
    augmenting = Augmenting()
    copies = OwnTransform(augmenting, part)._copies
    assert copies.sharing is Sharing.COPIED
    others: list[Any] = []
    thread = threading.Thread(target=lambda: copies.use(others.append))
    thread.start(), thread.join()
    assert others[0] is not augmenting
    assert others[0].table is augmenting.table


def test_another_process_gets_its_own_tensors() -> None:
    sent = io.BytesIO()
    ForkingPickler(sent).dump(always_copied(InTensor()))
    received: WorkerCopies = pickle.loads(sent.getvalue())
    assert not received.function.tensor.is_shared()
