"""Compares, at the beginning of each iteration, what the ranks of a run are about to serve."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import torch.distributed as dist

from penstock.loaders.stream.engine_contract import Cursor
from penstock.loaders.stream.ranks import joined
from penstock.pipelines.errors import LoaderError

_SHOWN = 40  # characters of a value that an error still shows
_LONE_FIX = "a loader that one rank uses alone takes rank=0, world_size=1"
_NO_STORE = (RuntimeError, AttributeError)  # no store, one without such an operation, or gone with its rank

_iterated: Counter[str] = Counter()  # digest -> loaders of that identity that were iterated in this process
_passed: Counter[str] = Counter()  # line of code -> loaders in the store from that line, all of them iterated here


def line_of(caller: FrameType) -> str:
    """Name a line of code, as every rank names it."""
    return f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"


class RankAgreement:
    """Compares one loader with its counterparts on the other ranks, through the store of torch.distributed.

    Nobody waits: of two ranks that differ, the later one raises LoaderError E-STATE, which names both. Loaders are
    counterparts if their identities are equal, in whatever order a rank makes them. Where another rank has iterated
    over a loader from the same line of code that this rank neither has iterated over nor could (it has no such loader),
    the two ranks differ. Without torch.distributed nothing is compared.

    Args:
        line: the line of code that makes the loader, on every rank.
        identity: by name, JSON-serialisable, what the loader has in common with its counterparts.
    """

    def __init__(self, line: str, identity: Mapping[str, Any]) -> None:
        self.line, self._identity = line, dict(identity)
        self._digest = _digest(self._identity)
        self._name = ""  # of the loader in the store, from its first iteration on
        self._begun = 0  # iterations, without those that were begun again
        self._warned = False
        _agreements.add(self)

    def begin(self, place: Cursor, left: Cursor | None, *, again: bool = False) -> None:
        """Compare the beginning of an iteration at `place` with the one that another rank began there.

        Args:
            place: where the iteration begins.
            left: where the iteration before it ended or was left; None if the loader was then sent to another place.
            again: the iteration before it began here, too, and was left.

        Raises LoaderError E-STATE if that rank serves other data or began elsewhere.
        """
        if (again and self._begun) or not _has_other_ranks():
            return
        try:
            store = _store()
            if not self._name:
                self._name = self._find_name(store)
            self._warn_if_alone(store)
            self._begun += 1
            store.add(f"{self._key()}/ranks", 1)
            about = {"epoch": place.epoch, "position": place.position, "the place left before": left and list(left)}
            first, expected = _post(store, self._key(), about)
            refuse_disagreement({first: expected, dist.get_rank(): about})
        except LoaderError:
            raise
        except _NO_STORE:
            pass

    def check_progress(self, steps: int, place: Cursor) -> None:
        """Compare `place`, `steps` steps after the beginning, with where another rank has left this iteration.

        It asks the store after 2, 4, 8 and so on steps. Raises LoaderError E-STATE if the other rank has left this
        epoch earlier, for example by a `break`, and begun another one.
        """
        if not self._begun or steps < 2 or steps & (steps - 1) or not _has_other_ranks():
            return
        try:
            store = _store()
            for other in tuple(_unaccompanied):
                other._warn_if_alone(store)
            key = self._key(self._begun + 1)
            if not store.check([key]):
                return
            rank, about = json.loads(store.get(key))
        except _NO_STORE:
            return
        left = about["the place left before"]
        if left and left[0] == place.epoch and left[1] < place.position:
            places = {rank: {"position": left[1]}, dist.get_rank(): {"position": place.position}}
            refuse_disagreement(places)

    def end(self) -> None:
        """Note that an epoch was served to its end: if no other rank turns out to have begun it, warn once."""
        if self._begun and not self._warned:
            _unaccompanied.add(self)

    def close(self) -> None:
        """Note that this rank will not iterate over the loader any more."""
        _agreements.discard(self)

    def _key(self, number: int | None = None) -> str:
        return f"{self._name}/{number or self._begun}"

    def _find_name(self, store: Any) -> str:
        """Return the name of this loader on every rank. Raises LoaderError E-STATE where another rank has another."""
        mine = [self._digest, _iterated[self._digest] + 1]  # the second number tells loaders of one identity apart
        slot = _passed[self.line]  # in the store, for a loader of this line, in the order in which any rank comes
        while True:
            first, (digest, number, expected) = _post(
                store, f"penstock/line/{self.line}/{slot}", [*mine, self._identity]
            )
            if [digest, number] == mine:
                break
            if number <= _iterated[digest]:
                _passed[self.line] += slot == _passed[self.line]
            elif not any(each._digest == digest and not each._name for each in _agreements):
                refuse_disagreement({first: expected, dist.get_rank(): self._identity})
            slot += 1
        _iterated[self._digest] += 1
        return f"penstock/loader/{mine[0]}/{mine[1]}"

    def _warn_if_alone(self, store: Any) -> None:
        """Warn if this loader's latest iteration, served to its end, is one that no other rank has begun."""
        if self not in _unaccompanied:
            return
        _unaccompanied.discard(self)
        if store.add(f"{self._key()}/ranks", 0) == 1:
            self._warned = True
            warnings.warn(
                f"rank {dist.get_rank()} alone iterates over the loader made at {self.line}, and it serves this rank's "
                f"share of the samples only: {_LONE_FIX}",
                stacklevel=2,
            )


_agreements: weakref.WeakSet[RankAgreement] = weakref.WeakSet()  # of this process's loaders that are not closed
_unaccompanied: set[RankAgreement] = set()  # of those served to the end by this rank, perhaps by no other


def _has_other_ranks() -> bool:
    return joined() and dist.get_world_size() > 1


def _store() -> Any:
    return getattr(dist.distributed_c10d, "_get_default_store")()  # noqa: B009


def _digest(identity: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=16).hexdigest()


def _post(store: Any, key: str, said: Any) -> tuple[int, Any]:
    """Store what this rank says, unless another one was first; return the rank that was first, and what it said."""
    rank, words = json.loads(store.compare_set(key, "", json.dumps([dist.get_rank(), said])))
    return int(rank), words


def refuse_disagreement(abouts: Mapping[int, Mapping[str, Any]]) -> None:
    """Raise LoaderError E-STATE where ranks (rank -> name -> value) differ from the first of them, naming all."""
    (first, expected), *others = abouts.items()
    differing = [rank for rank, about in others if about != expected]
    if not differing:
        return
    found = _differences([expected, *(abouts[rank] for rank in differing)])
    plural = "s" * (len(differing) > 1)
    raise LoaderError(
        "E-STATE",
        f"rank{plural} {', '.join(map(str, differing))} and rank {first} would not train on the same: "
        f"they differ in {', '.join(found)}",
        fix=f"give all ranks the same data, settings, state and epoch; {_LONE_FIX}",
        rank=dist.get_rank(),
    )


def _differences(abouts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name what is not the same everywhere, with the values where they are short."""
    found = []
    for name in dict.fromkeys(name for about in abouts for name in about):
        values = [about.get(name) for about in abouts]
        if any(value != values[0] for value in values):
            shown = " and ".join(dict.fromkeys(map(repr, values)))
            found.append(f"{name} ({shown})" if len(shown) <= 2 * _SHOWN else name)
    return found
