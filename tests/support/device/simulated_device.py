"""SimulatedDevice stands in for a GPU with streams: work is queued and runs late, in any order that events allow.

It computes nothing. A tensor of the meta device stands for memory of the GPU, a tag for its contents. A reader must
find the tag that was written last in program order; another one is a stale read. Released memory is reused at once, by
torch's allocator on the stream that it belongs to, and by a backend for its own memory. torch's pinned memory is reused
after the copies from it that do not block the host.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MAIN, SIDE, PINNED = "main", "side", "pinned"
_ALLOCATE = {"empty", "empty_strided", "new_empty", "empty_like"}
_OVERWRITE = {"copy_", "index_copy_"}  # these do not read their first argument


class Event:
    """Happens when the work queued before it is done."""

    done = False


class Work(NamedTuple):
    """Hold an entry of a stream's queue: an operation, an event to record, or an event to wait for."""

    reads: tuple[tuple[Any, int], ...] = ()
    writes: tuple[tuple[Any, int], ...] = ()
    happens: Event | None = None
    waits: Event | None = None


class _Memory:
    """Describe the memory behind a storage: its place, its owner and the tag that the program wrote last."""

    def __init__(self, storage: StorageWeakRef, place: Any, owner: str, tag: int) -> None:
        self.storage, self.place, self.owner, self.tag = storage, place, owner, tag
        self.recorded: set[str] = set()


class SimulatedDevice(TorchDispatchMode):
    """Queue the operations on meta tensors and run them at random moments. Work on host memory happens at once.

    Attributes:
        stale: number of reads that found other data than the program had written.
        now: the stream of the running code.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._tags = itertools.count(1)
        self._places = itertools.count()
        self._found: dict[Any, int] = {}  # place -> tag of its contents
        self._known: dict[int, _Memory] = {}  # address of a storage -> its memory
        self._free: dict[str, list[Any]] = {}
        self._later: list[tuple[list[Event], str, Any]] = []  # places that become free after events
        self.queues: dict[str, deque[Work]] = {MAIN: deque(), SIDE: deque()}
        self.now, self.stale = MAIN, 0

    # ---- memory

    def own(self, tensor: torch.Tensor, owner: str) -> torch.Tensor:
        """Note memory that is not torch's: its owner writes there as soon as the last tensor over it is gone."""
        place, tag = (owner, next(self._places)), next(self._tags)
        self._found[place] = tag
        storage = StorageWeakRef(tensor.untyped_storage())
        self._known[storage.cdata] = _Memory(storage, place, owner, tag)
        return tensor

    def record(self, tensor: torch.Tensor, stream: str) -> None:
        """Do what Tensor.record_stream does: nothing for memory that is not torch's."""
        self._known[tensor.untyped_storage()._cdata].recorded.add(stream)

    def _sweep(self) -> None:
        """Recycle the memory of dropped storages."""
        for address, memory in list(self._known.items()):
            if not memory.storage.expired():
                continue
            del self._known[address]
            if memory.owner not in (*self.queues, PINNED):  # memory of a backend
                self._found[memory.place] = next(self._tags)
                continue
            events = []
            for stream in memory.recorded:
                events.append(Event())
                self.queues[stream].append(Work(happens=events[-1]))
            self._later.append((events, memory.owner, memory.place))
        waiting = [entry for entry in self._later if not all(event.done for event in entry[0])]
        for _, owner, place in (entry for entry in self._later if entry not in waiting):
            if owner == PINNED:
                self._found[place] = next(self._tags)
            else:
                self._free.setdefault(owner, []).append(place)
        self._later = waiting

    def _memory(self, tensor: torch.Tensor) -> _Memory | None:
        """Return the memory of a tensor; a new one on the device belongs to the current stream."""
        self._sweep()
        storage = tensor.untyped_storage()
        if storage._cdata in self._known or not tensor.is_meta:
            return self._known.get(storage._cdata)
        free = self._free.get(self.now)
        place = free.pop() if free else (self.now, next(self._places))
        made = self._known[storage._cdata] = _Memory(StorageWeakRef(storage), place, self.now, 0)
        return made

    # ---- work

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        writes_alone = func.overloadpacket.__name__ in _OVERWRITE
        read = tree_leaves((args[writes_alone:], {k: v for k, v in (kwargs or {}).items() if k != "out"}))
        tensors = [t for t in read if isinstance(t, torch.Tensor)]
        sources = [memory for tensor in tensors if (memory := self._memory(tensor)) is not None]
        reads = tuple((memory.place, memory.tag) for memory in sources)
        result = func(*args, **(kwargs or {}))
        if func.is_view:
            return result
        made = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        targets = [memory for tensor in made if (memory := self._memory(tensor)) is not None]
        if func.overloadpacket.__name__ in _ALLOCATE or not targets:
            return result
        tag = next(self._tags)
        for memory in targets:
            memory.tag = tag
        work = Work(reads, tuple((memory.place, tag) for memory in targets))
        if any(tensor.is_meta for tensor in (*given, *made)):
            self.queue(self.now, work)
            if func.overloadpacket.__name__ == "_to_copy" and not args[0].is_meta:
                blocks = not (kwargs or {}).get("non_blocking")
                if blocks:  # such as copies of a batch stage's constants
                    self.wait_for(self.now)
                for memory in sources:
                    memory.recorded |= set() if blocks else {self.now}
        else:
            self._run(work)
        return result

    def wait_for(self, stream: str) -> None:
        """Block the host until a stream has done what is queued there."""
        event = Event()
        self.queue(stream, Work(happens=event))
        self.wait_for_event(event)

    def wait_for_event(self, event: Event) -> None:
        """Block the host until an event has happened."""
        while not event.done:
            assert self.step(), "the host waits forever"

    def queue(self, stream: str, work: Work) -> None:
        """Append work to a stream, and run some of the queued work."""
        self.queues.setdefault(stream, deque()).append(work)
        for _ in range(self._random.choice((0, 0, 0, 1, 4))):
            self.step()

    def step(self) -> bool:
        """Run the first work of a stream that need not wait; return whether there was any."""
        able = [q for q in self.queues.values() if q and (q[0].waits is None or q[0].waits.done)]
        if able:
            self._run(self._random.choice(able).popleft())
        return bool(able)

    def _run(self, work: Work) -> None:
        self.stale += sum(self._found.get(place) != tag for place, tag in work.reads)
        self._found.update(work.writes)
        if work.happens is not None:
            work.happens.done = True

    def drain(self) -> None:
        """Run everything."""
        while self.step():
            pass
        assert not any(self.queues.values()), "streams wait for each other"


class SimulatedCopies:
    """A CopyEngine over a simulated device, with its own stream."""

    def __init__(self, device: SimulatedDevice, stream: str = SIDE) -> None:
        self.device, self.stream = device, stream
        device.queues.setdefault(stream, deque())

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        return self.device.own(torch.zeros_like(like), PINNED)

    @contextmanager
    def side(self) -> Iterator[None]:
        before, self.device.now = self.device.now, self.stream
        try:
            yield
        finally:
            self.device.now = before

    def mark(self) -> Event:
        event = Event()
        self.device.queue(self.stream, Work(happens=event))
        return event

    def mark_consumer(self) -> Event:
        event = Event()
        self.device.queue(MAIN, Work(happens=event))
        return event

    def wait_on_host(self, event: Event) -> None:
        self.device.wait_for_event(event)

    def hand_over(self, event: Event, tensors: tuple[torch.Tensor, ...]) -> None:
        self.device.queue(MAIN, Work(waits=event))
        for tensor in tensors:
            self.device.record(tensor, MAIN)
