"""RankAgreement: comparison of the streams of a run's ranks, and of their places in them."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.ranks import is_joined
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.user_warnings import warn_user

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_SHOWN = 40  # longest value that an error shows, in characters
_LEFT = "the place left before"
_LONE_FIX = "a loader that only one rank uses needs rank=0, world_size=1"
_NO_STORE = (RuntimeError, AttributeError)  # no store, one without this operation, or one that ended with its rank

# (line of code, digest of the identity) of the loaders that this process has made, and that it has iterated over.
_made: set[tuple[str, str]] = set()
_posted: set[tuple[str, str]] = set()
_named: Counter[str] = Counter()  # digest -> number of loaders with this identity that delivered a second batch


def name_line(caller: FrameType) -> str:
    """Return the name of a line of code, which is the same on every rank."""
    return f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"


class RankAgreement:
    """A comparison of one loader with its counterparts on the other ranks, through the store of torch.distributed.

    No rank waits. If two ranks differ, the later one raises LoaderError E-STATE, which names both. The identities
    are compared before the first batch. They differ if another rank has iterated over a loader from the same line of
    code, and this process has not made a counterpart. The places are compared before the second batch,
    because one rank may look at a batch alone. Loaders with equal identities are matched in the order in which
    their second batches are taken. Without torch.distributed nothing is compared.

    Args:
        line: the line of code that makes the loader, on every rank.
        identity: the settings that the loader has in common with its counterparts, JSON-serialisable.
    """

    def __init__(self, line: str, identity: Mapping[str, object]) -> None:
        self.line, self._identity = line, dict(identity)
        self._digest = hashlib.blake2b(json.dumps(self._identity, sort_keys=True).encode(), digest_size=16).hexdigest()
        self._name = ""  # of the loader in the store, set when a second batch is taken
        self._begun = 0  # iterations that went beyond one batch
        self._warned = False
        self.indices = ""  # digest of the user's own order of the current epoch
        _made.add((line, self._digest))
        _agreements.add(self)

    def begin(self) -> None:
        """Compare identities before the first batch. Raises LoaderError E-STATE if another rank serves other data."""
        if not _has_other_ranks() or (self.line, self._digest) in _posted:
            return
        with _skip_without_store():
            store, mine = _store(), [self._digest, self._identity]
            for slot in itertools.count():  # for each identity of this line, in the order of their arrival on any rank
                first, (digest, expected) = _post(store, f"penstock/line/{self.line}/{slot}", mine)
                if digest == self._digest:
                    break
                if (self.line, digest) not in _made:
                    refuse_disagreement({first: expected, dist.get_rank(): self._identity})
            _posted.add((self.line, self._digest))

    def check_step(self, steps: int, began: Cursor, left: Cursor | None, place: Cursor) -> None:
        """Compare places with the other ranks before another batch is taken.

        Args:
            steps: batches taken since the iteration began.
            began: where it began.
            left: where the previous iteration ended or was left; None if the loader was then moved to another place.
            place: where it is now.

        Before the second batch it compares the beginning with that of the other ranks. After 2, 4, 8 and so on steps it
        checks whether another rank left this epoch earlier, for example by a `break`, and began another one. Raises
        LoaderError E-STATE if they differ.
        """
        if steps < 1 or steps & (steps - 1) or not _has_other_ranks():
            return
        with _skip_without_store():
            store = _store()
            if steps == 1:
                self._post_beginning(store, began, left)
            elif self._begun:
                self._refuse_if_left(store, place)
            self._warn_of_others(store)

    def end(self, steps: int, began: Cursor, left: Cursor | None) -> None:
        """Record that an epoch ended after `steps` steps; began, left and errors as in check_step."""
        if steps == 1:
            self.check_step(steps, began, left, began)
        if self._begun and not self._warned:
            _unaccompanied.add(self)

    def _post_beginning(self, store: Store, began: Cursor, left: Cursor | None) -> None:
        if self._name:
            self._warn_if_alone(store)
        else:
            self._name = self._find_name(store)
        self._begun += 1
        store.add(f"{self._key()}/ranks", 1)
        about: dict[str, Any] = {"epoch": began.epoch, "position": began.position, _LEFT: left and list(left)}
        if self.indices:
            about["indices"] = self.indices
        first, expected = _post(store, self._key(), about)
        if None in (about[_LEFT], expected[_LEFT]):  # one of the ranks was moved there
            about[_LEFT] = expected[_LEFT] = None
        refuse_disagreement({first: expected, dist.get_rank(): about})

    def _find_name(self, store: Store) -> str:
        """Return the name of this loader on every rank.

        Raises LoaderError E-STATE if another rank continues with a loader that has no counterpart in this process.
        """
        mine = [self._digest, _named[self._digest] + 1]  # the number distinguishes loaders with equal identities
        for slot in itertools.count():  # for each loader of this line, in the order of their arrival on any rank
            key = f"penstock/loaders/{self.line}/{slot}"
            first, (digest, number, expected) = _post(store, key, [*mine, self._identity])
            if [digest, number] == mine:
                break
            if number > _named[digest] and not any(each._digest == digest and not each._name for each in _agreements):
                refuse_disagreement({first: expected, dist.get_rank(): self._identity})
        _named[self._digest] += 1
        return f"penstock/loader/{mine[0]}/{mine[1]}"

    def close(self) -> None:
        """Record that this rank will not iterate over the loader any more."""
        _agreements.discard(self)

    def _refuse_if_left(self, store: Store, place: Cursor) -> None:
        key = self._key(self._begun + 1)
        if not store.check([key]):
            return
        rank, about = json.loads(store.get(key))
        left = about[_LEFT]
        if left and left[0] == place.epoch and left[1] < place.position:
            refuse_disagreement({rank: {"position": left[1]}, dist.get_rank(): {"position": place.position}})

    def _key(self, number: int | None = None) -> str:
        return f"{self._name}/{number or self._begun}"

    def _num_ranks(self, store: Store) -> int:
        return int(store.add(f"{self._key()}/ranks", 0))

    def _warn_of_others(self, store: Store) -> None:
        """Warn about loaders that only this rank has iterated over; another rank is here without them."""
        if _unaccompanied - {self} and self._begun and self._num_ranks(store) > 1:
            for other in _unaccompanied - {self}:
                other._warn_if_alone(store)

    def _warn_if_alone(self, store: Store) -> None:
        """Warn if this loader's latest complete iteration has not been begun by any other rank."""
        if self not in _unaccompanied:
            return
        _unaccompanied.discard(self)
        if self._num_ranks(store) == 1:
            self._warned = True
            warn_user(
                f"only rank {dist.get_rank()} iterates over the loader made at {self.line}, which serves only this "
                f"rank's share of the samples: {_LONE_FIX}",
            )


_agreements: weakref.WeakSet[RankAgreement] = weakref.WeakSet()  # of this process's loaders that are not closed
_unaccompanied: set[RankAgreement] = set()  # of loaders served to the end by this rank, perhaps by no other


def _has_other_ranks() -> bool:
    return is_joined() and dist.get_world_size() > 1


@contextlib.contextmanager
def _skip_without_store() -> Iterator[None]:
    """Leave the block if there is no store to compare with."""
    try:
        yield
    except LoaderError:  # which is a RuntimeError
        raise
    except _NO_STORE:
        pass


def _store() -> Store:
    store: Store = getattr(dist.distributed_c10d, "_get_default_store")()  # noqa: B009
    return store


def _post(store: Store, key: str, value: object) -> tuple[int, Any]:
    """Store this rank's value unless another rank was first; return the first rank and its value."""
    rank, stored = json.loads(store.compare_set(key, "", json.dumps([dist.get_rank(), value])))
    return int(rank), stored


def refuse_disagreement(abouts: Mapping[int, Mapping[str, object]]) -> None:
    """Raise LoaderError E-STATE that names all ranks that differ from the first one. abouts: rank -> name -> value."""
    (first, expected), *others = abouts.items()
    differing = [rank for rank, about in others if about != expected]
    if not differing:
        return
    found = _differences([*(abouts[rank] for rank in differing), expected])
    plural = "s" * (len(differing) > 1)
    raise LoaderError(
        "E-STATE",
        f"rank{plural} {', '.join(map(str, differing))} and rank {first} do not agree: "
        f"they differ in {', '.join(found)}",
        fix=f"give all ranks the same data, settings, state and epoch; {_LONE_FIX}",
        rank=dist.get_rank(),
    )


def _differences(abouts: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the names with different values, and the values if they are short."""
    found = []
    for name in dict.fromkeys(name for about in abouts for name in about):
        values = [about.get(name) for about in abouts]
        if any(value != values[0] for value in values):
            shown = " and ".join(dict.fromkeys(map(repr, values)))
            found.append(f"{name} ({shown})" if len(shown) <= 2 * _SHOWN else name)
    return found
