"""Place: the position of an iteration of the drop-in DataLoader in its stream, which is saved in states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.loaders.drop_in import random_state
from penstock.loaders.drop_in.fetcher import BATCHES, DATASET, ITERATOR, RANDOM, ProcessState
from penstock.loaders.drop_in.stateful import States, refuse_missing
from penstock.pipelines.errors import LoaderError

_FIELDS = {"ahead", "random", "sampler", "processes", "turn", "base_seed", "draws_seed", "epochs", "first", "rank"}


class Mark(NamedTuple):
    """A batch on its way to the consumer.

    Attributes:
        number: number of batches of the epoch that were drawn before it.
        sampler: states of the stateful samplers after it was drawn.
        process: number of the worker, 0 without workers.
        state: state of that process after the batch, if the data set needs one.
    """

    number: int
    sampler: States
    process: int
    state: ProcessState | None


@dataclass
class Place:
    """The position of an iteration in its stream.

    Attributes:
        epoch: number of the epoch.
        batches: number of its batches that were delivered.
        fresh: whether no batch was delivered since the epoch was chosen.
        begun: whether an iteration began here.
        ahead: numbers of the batches that were delivered out of order.
        drawn_from: names of the generators that the order was drawn from.
        begin: their states before the order of the epoch was drawn.
        undrawn: whether the order was not drawn yet, so that it will be drawn from `begin`.
        now: their states when the place is reached, from a loaded state.
        sampler: states of the stateful samplers at this place.
        sampler_after: the same after each batch that was delivered out of order, by its number.
        processes: states of the worker processes at this place, or of this process.
        turn: number of the worker with the next batch.
        base_seed: seed of the workers' generators in this epoch, if the data set is iterable or stateful.
        draws_seed: whether that seed must still be drawn, because persistent workers have not started.
        epochs: epochs that the samplers with their own epoch number used for the order; {} before.
        last_epochs: the same for the previous epoch.
        first: checksum of the first indices of this epoch; None before, and if they are not integers.
        rank: rank of the process or sampler that drew them.
        left: why the iteration cannot continue; None if it can.
        loaded: whether it comes from a saved state that samplers and data sets must load.
        at_end: called before the place is read, if the epoch may have ended; otherwise None.
    """

    epoch: int = 0
    batches: int = 0
    fresh: bool = True
    begun: bool = False
    ahead: set[int] = field(default_factory=set)
    drawn_from: set[str] = field(default_factory=set)
    begin: random_state.States = field(default_factory=dict)
    undrawn: bool = False
    now: random_state.States = field(default_factory=dict)
    sampler: States = field(default_factory=dict)
    sampler_after: dict[int, States] = field(default_factory=dict)
    processes: list[ProcessState | None] = field(default_factory=list)
    turn: int = 0
    base_seed: int | None = None
    draws_seed: bool = False
    epochs: dict[str, int] = field(default_factory=dict)
    last_epochs: dict[str, int] = field(default_factory=dict)
    first: int | None = None
    rank: int = 0
    left: str | None = None
    loaded: bool = False
    at_end: Callable[[], None] | None = None

    def settle(self) -> Place:
        """Mark the epoch as finished if its iterator is exhausted; return self."""
        at_end, self.at_end = self.at_end, None
        if at_end is not None:
            at_end()
        return self

    @property
    def resume(self) -> list[ProcessState | None]:
        """The states that the data set loads in each process; [] if it does not load any."""
        return self.processes if self.loaded else []

    @property
    def is_resumed(self) -> bool:
        """Whether an iteration begins within an epoch, or with an order that is already drawn."""
        return self.is_under_way or bool(self.loaded and self.begin)

    @property
    def is_under_way(self) -> bool:
        """Whether a part of the epoch was delivered."""
        return bool(self.batches or self.ahead)

    @property
    def is_inside(self) -> bool:
        """Whether a part of the epoch was delivered, or its order is already drawn."""
        return self.is_under_way or bool(self.begin)

    def next_iteration(self) -> Place:
        """Return the place of a new iteration: this one, or the next epoch if this one was left early."""
        if not self.fresh:
            return Place(self.epoch + 1, drawn_from=set(self.drawn_from), last_epochs=self.epochs)
        again = replace(self, ahead=set(self.ahead), processes=list(self.processes), left=None, begun=False)
        again.first, again.sampler_after = self.first if self.is_under_way else None, {}
        if not (self.is_under_way or self.loaded):
            again.begin, again.base_seed = {}, None  # the order was drawn but not served
            again.epochs, again.last_epochs = {}, self.epochs or self.last_epochs
        return again

    def note_start(self, process: int, processes: int, state: ProcessState) -> None:
        """Record the initial state of a process, if a later one is not known."""
        self.processes = self.processes or [None] * processes
        self.processes[process] = self.processes[process] or state

    def deliver(self, mark: Mark, *, in_order: bool, iterable: bool, processes: int) -> None:
        """Record that a batch was delivered."""
        self.fresh, self.loaded, self.undrawn, self.now, self.at_end = False, False, False, {}, None
        if iterable:
            self.batches += 1
        elif in_order:  # batches that failed before it were skipped
            self.batches = mark.number + 1
            self.sampler = mark.sampler or self.sampler
        else:
            self.ahead.add(mark.number)
            self.sampler_after[mark.number] = mark.sampler
            while self.batches in self.ahead:
                self.ahead.remove(self.batches)
                self.sampler = self.sampler_after.pop(self.batches, {}) or self.sampler
                self.batches += 1
        if mark.state is not None:
            self.processes = self.processes or [None] * processes
            before = self.processes[mark.process] or {}
            kept = {RANDOM: before[RANDOM]} if RANDOM in before else {}  # from the epoch's start
            self.processes[mark.process] = kept | mark.state
        self.turn = (mark.process + 1) % processes

    def finish(
        self, epoch: int, sampler: States | None = None, processes: list[ProcessState | None] | None = None
    ) -> None:
        """Move to the start of the epoch after `epoch`, with the states of samplers and processes at its end."""
        self.epoch, self.batches, self.fresh, self.loaded, self.turn = epoch + 1, 0, True, False, 0
        self.begun = False
        self.base_seed = self.at_end = self.first = None
        self.ahead, self.sampler, self.sampler_after, self.begin, self.now = set(), sampler or {}, {}, {}, {}
        self.epochs, self.last_epochs = {}, self.epochs or self.last_epochs
        self.processes = processes if processes is not None and any(processes) else []

    def save(self, generators: random_state.Generators) -> dict[str, object]:
        """Return the details that `load` needs besides epoch and number of batches; {} for a plain order.

        Raises LoaderError E-STATE if a sampler or the data set had no state after the latest batch.
        """
        found: dict[str, object] = {}
        for states in (self.sampler, *self.processes):
            refuse_missing(states or {})
        if self.ahead:
            found["ahead"] = sorted(self.ahead)
        if self.drawn_from:
            states = {} if self.undrawn else self.now or random_state.capture(generators)
            # Other code also draws from a global generator; a user's generator stays where the order leaves it.
            continuing = {
                n: states[n]
                for n in sorted(self.drawn_from)
                if n in states and not (self.is_inside and n in generators)
            }
            found["random"] = {"begin": self.begin, "now": continuing}
        if self.sampler:
            found["sampler"] = self.sampler
        if any(self.processes):
            found["processes"] = list(self.processes)
        if self.is_inside and self.turn:
            found["turn"] = self.turn
        if self.base_seed is not None:
            found["base_seed"] = self.base_seed
        if self.draws_seed:
            found["draws_seed"] = True
        if self.is_under_way and self.first is not None:
            found["first"] = self.first
            if self.rank:
                found["rank"] = self.rank
        return found

    def save_epochs(self, now: dict[str, int]) -> dict[str, int | None]:
        """Return the epochs that samplers used for the order, or will use according to `now`.

        None means the same epoch as for the previous order: the program may set it to the next epoch, or never
        change it.
        """
        return {
            name: self.epochs.get(name, None if self.last_epochs.get(name, epoch) == epoch else epoch)
            for name, epoch in now.items()
        }

    @classmethod
    def load(cls, epoch: int, batches: int, details: object, num_workers: int, *, is_iterable: bool = False) -> Place:
        """Return the place that was saved. Raises LoaderError E-STATE for invalid `details`, or another num_workers."""
        if not isinstance(details, dict) or not set(details) <= _FIELDS:
            raise LoaderError("E-STATE", "the details of the state are invalid")
        place = cls(epoch, batches, loaded=True, draws_seed=details.get("draws_seed") is True)
        ahead, turn, seed = details.get("ahead", []), details.get("turn", 0), details.get("base_seed")
        place.first, place.rank = details.get("first"), details.get("rank", 0)
        given = [each for each in (seed, place.first) if each is not None]
        numbers = [*ahead, turn, place.rank, *given] if isinstance(ahead, list) else [None]
        if not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
            raise LoaderError("E-STATE", "ahead, turn, base_seed, first or rank of the state is not a number")
        place.ahead, place.turn, place.base_seed = set(ahead), turn, seed
        random = details.get("random", {})
        if not isinstance(random, dict):
            raise LoaderError("E-STATE", "the state of the random generators is invalid")
        place.begin, place.now = (random_state.check(random.get(name, {})) for name in ("begin", "now"))
        place.drawn_from = {*place.begin, *place.now}
        place.undrawn = bool(place.begin) and not place.now
        sampler, states = details.get("sampler", {}), details.get("processes", [])
        if not isinstance(sampler, dict) or not isinstance(states, list) or not all(map(_is_process_state, states)):
            raise LoaderError("E-STATE", "the state of the samplers or of the processes is invalid")
        place.sampler, place.processes = sampler, states
        place._check_workers(num_workers, is_iterable=is_iterable)
        epochs = details.get("epochs", {})
        if not isinstance(epochs, dict) or not all(e is None or (type(e) is int and e >= 0) for e in epochs.values()):
            raise LoaderError("E-STATE", "the epochs of the samplers in the state are invalid")
        place.epochs = {name: epoch for name, epoch in epochs.items() if epoch is not None}
        return place

    def _check_workers(self, num_workers: int, *, is_iterable: bool) -> None:
        """Raise LoaderError E-STATE if the rest of the epoch depends on the number of workers, and it differs."""
        fix, states = "load it with the same num_workers as at the save", self.processes
        if states and len(states) != max(1, num_workers):
            cause = f"the state has {len(states)} processes that load data, but this loader has {max(1, num_workers)}"
            raise LoaderError("E-STATE", cause, fix=fix)
        is_plain = is_iterable and not any(kept in (state or {}) for state in states for kept in (DATASET, ITERATOR))
        # Persistent workers draw their seed only in their first epoch; later epochs continue with their generators.
        had_worker = self.base_seed is not None or any(RANDOM in (state or {}) for state in states)
        if states and self.is_under_way and is_plain and had_worker != bool(num_workers):
            cause = (
                f"an iterable data set may draw its order from the random generators of the process that reads it: "
                f"saved num_workers={int(had_worker)}, now {num_workers}"
            )
            raise LoaderError("E-STATE", cause, fix=fix)


def _is_process_state(state: object) -> bool:
    if not isinstance(state, dict):
        return state is None
    random_state.check(state.get(RANDOM, {}))
    return type(state.get(BATCHES, 0)) is int and state.get(BATCHES, 0) >= 0
