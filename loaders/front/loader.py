"""Loader: an engine with epochs, saved state, bad-sample policy, ledger and statistics."""

from __future__ import annotations

import copy
import hashlib
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from penstock.loaders.data.sources.contract import Source, field_kinds_of, has_targets, is_fetching
from penstock.loaders.front.batch import Batch, make_batch
from penstock.loaders.front.dataloader_attributes import DataLoaderAttributes
from penstock.loaders.front.iteration import Item, Iteration, OneThread
from penstock.loaders.front.look_ahead import look_ahead
from penstock.loaders.make.engine_contract import Engine
from penstock.loaders.make.own.global_draws import kept_draws
from penstock.loaders.make.served_text import has_only_text
from penstock.loaders.order.agreement import RankAgreement
from penstock.loaders.order.bad_samples import BadSamplePolicy
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.ledger import EpochLedger
from penstock.loaders.order.ranks import distributed_place
from penstock.loaders.order.schedule import Schedule
from penstock.loaders.order.state import NUM_EPOCHS, LoaderState, saved_ledger
from penstock.loaders.run.feed.batch_feed import DeviceBatch, DeviceFeed
from penstock.loaders.run.metrics.stats import LoaderStats
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.checked import checked_bool, checked_int

if TYPE_CHECKING:
    from penstock.loaders.show.picture import Picture

_MOST_SHOWN = 1024
_CLOSE_S = 5.0  # how long closing a loader may wait for a thread that takes a batch


class Loader(DataLoaderAttributes):
    """An iterable over batches, which unpack as (images, labels), or with with_index as (images, labels, index).

    Data with texts and without labels has no labels in its batches, which unpack as (images, texts).

    fresh --- a batch ---> iterating --- the last batch of the epoch ---> fresh, in the next epoch
                               |-------- set_epoch, load_state_dict ----> fresh, at that place
                               '-------- another iteration begins ------> fresh: after a look where this one began,
                                                                          else in the next epoch
    any state --- close, or an error of the engine ---> closed

    An iteration serves the rest of the current epoch. The next one serves the next epoch, even if this one was left
    early. An iteration that was left after a single batch is a look: the next one begins at the same batch. Only
    one look is free: after a second look in a row the next iteration begins the next epoch, with a warning.
    `state_dict()` counts delivered batches only. Another loader that loads it continues exactly, with any backend,
    worker count or world size. Until its first batch a loader can be pickled to another process.

    Args:
        open_for: makes engine and feed for a schedule; with alone=True without workers.
        source: the data that the schedule numbers.
        named_source: the data that the user passed, even if a cache is read instead.
        with_index: yield the index of each batch, too.
        as_dicts: yield batches that are dicts, with fields.
        follows: the line of code that makes the loader on every rank, if rank and world size come from the process.
            They are read at the beginning of each iteration, because launchers may start torch.distributed after the
            loader was made. The ranks' loaders are then compared.
    """

    def __init__(
        self,
        open_for: Callable[..., tuple[Engine, DeviceFeed]],
        schedule: Schedule,
        state: LoaderState,
        policy: BadSamplePolicy,
        *,
        source: Source,
        named_source: Source,
        with_index: bool,
        as_dicts: bool,
        about: dict[str, object],
        follows: str | None,
    ) -> None:
        self._open_for, self._identity, self._about = open_for, state, about
        self._source, self.named_source = source, named_source
        self._with_index, self._as_dicts, self._has_only_text = with_index, as_dicts, has_only_text(source)
        self._open(schedule, policy)
        self._cursor = schedule.settle(Cursor(0, 0))
        self._iteration = Iteration(self._cursor)  # the only one that may serve batches
        self._agreement = None if follows is None else RankAgreement(follows, self.identity())
        self._ledgers: dict[int, EpochLedger] = {}
        self._stats, self._started_s, self._closed = LoaderStats(), 0.0, False
        self._used_in: int | None = None  # id of the process that iterated last
        self._turn = threading.RLock()  # lock of the thread that takes a batch

    def _open(self, schedule: Schedule, policy: BadSamplePolicy) -> None:
        """Make the engine that serves `schedule`, without starting it."""
        self._engine, self._feed = self._open_for(schedule)
        self._schedule = schedule
        self._policy = replace(policy, samples_per_epoch=schedule.n // schedule.world_size)

    def __reduce__(self) -> tuple[object, ...]:
        if self._used_in is not None or self._closed:
            fix = "send it before its first batch, or make it in that process"
            raise LoaderError("E-MISUSE", "a used loader cannot be sent to another process", fix=fix)
        made = partial(
            Loader,
            source=self._source,
            named_source=self.named_source,
            with_index=self._with_index,
            as_dicts=self._as_dicts,
            about=self._about,
            follows=None if self._agreement is None else self._agreement.line,
        )
        parts = (self._open_for, self._schedule, self._identity, self._policy)
        return made, parts, {"_cursor": self._cursor, "_ledgers": self._ledgers}

    def __len__(self) -> int:
        """Return the number of steps of this whole epoch: equal on all ranks, or with pad=False that of this rank."""
        return self._current_schedule(certain=False).served_steps(epoch=self._cursor.epoch)

    def __iter__(self) -> Iterator[Batch]:
        return self._for_one_thread(self._begin_at_first_batch())

    def _begin_at_first_batch(self) -> Generator[Batch, None, None]:
        yield from self.batches()

    def batches(self) -> Iterator[Batch]:
        """Iterate over the batches, as the loader itself does, but begin this iteration at once."""
        if self._closed:
            raise self._misuse("the loader is closed", "make a new loader")
        self._refuse_after_fork()
        self._begin_iteration()
        return self._for_one_thread(self._rest_of_epoch(self._iteration))

    def _beginning(self) -> Cursor:
        """Return where the next iteration begins; see Iteration.place_after."""
        return self._iteration.place_after(self._cursor)

    def _begin_iteration(self) -> None:
        was, begin = self._iteration, self._beginning()
        looks = was.looks + 1 if was.is_look else 0
        if not was.steps:
            self._iteration = replace(was)
        elif begin != was.begin:
            was.warn_if_left(shuffled=self._identity.shuffle, by_update=self._schedule.by_update)
            self._go_to(begin, left=self._cursor, looks=looks)
        else:
            self._go_to(begin, left=was.left, looks=looks)
            self._ledgers.pop(begin.epoch, None)
            if was.ledger is not None:
                self._ledgers[begin.epoch] = was.ledger

    def _iterate_from(self, cursor: Cursor) -> Iterator[Batch]:
        self._go_to(cursor, looks=self._iteration.looks)
        return iter(self)

    def _rest_of_epoch(self, iteration: Iteration) -> Generator[Batch, None, None]:
        self._check_current(iteration)
        self._take_place()
        epoch = self._cursor.epoch
        indices = self._schedule.begin(epoch)
        if self._agreement is not None:
            self._agreement.indices = indices
        if self._cursor.position == 0:
            self._ledgers.pop(epoch, None)  # a repeated epoch is counted again from 0
        iteration.begin, iteration.ledger = self._cursor, copy.deepcopy(self._ledgers.get(epoch))
        self._seek()
        last = False
        while not last:
            self._check_current(iteration)
            if self._agreement is not None:
                self._agreement.check_step(iteration.steps, iteration.begin, iteration.left, self._cursor)
            batch = self._take()
            step = self._schedule.number(self._cursor)
            self._cursor = self._schedule.after(self._cursor)
            iteration.steps += 1
            last = self._cursor.epoch != epoch
            if last:
                self._iteration = Iteration(self._cursor, left=self._cursor)
                if self._agreement is not None:
                    self._agreement.end(iteration.steps, iteration.begin, iteration.left)
            if len(batch.host.index):  # otherwise all of its samples are bad, or belong to other ranks
                yield self._hand_over(batch, epoch, step)

    def _hand_over(self, batch: DeviceBatch, epoch: int, step: int) -> Batch:
        host = batch.host
        content = {"patches" if "patch_valid" in batch.fields else "images": batch.images}
        content |= batch.fields if self._has_only_text else {"labels": batch.labels, **batch.fields}
        if self._with_index:
            content["index"] = torch.from_numpy(host.index)
        about = {"index": host.index, **host.plan._asdict(), "epoch": epoch, "step": step, "_source": self.named_source}
        return make_batch(content, about, is_dict=self._as_dicts)

    def show(self, n: int = 16) -> Picture:
        """Return a picture of the next `n` samples, at most 1,024, as the training step gets them.

        Images are denormalised, after augmentations and transforms. Boxes, masks and keypoints are drawn over them, and
        labels are class names. The last line of a notebook's cell shows the picture, `save("look.png")` writes it, and
        `rich.print` draws it in a terminal. Samples are made again, in this thread: the loader's place, state, ledger
        and workers do not change. At the end of the epoch there may be fewer.

        Raises the errors of these samples, and LoaderError E-DEPENDENCY without Pillow.
        """
        n = checked_int("n", n, 1, _MOST_SHOWN)
        if self._closed:
            raise self._misuse("the loader is closed", "make a new loader")
        from penstock.loaders.show.picture import Picture  # here, because they need Pillow
        from penstock.loaders.show.tiles import make_tiles

        schedule, ledger, tiles = self._current_schedule(certain=False), EpochLedger(self._cursor.epoch), []
        if not schedule.knows(self._cursor.epoch):  # the user's own order of an epoch that has not begun
            schedule.begin(self._cursor.epoch)
            self._feed.flush()  # workers may have begun batches of another epoch, whose indices are lost
        names = ((), self._label_names) if has_targets(self._source) else (self.classes, {})
        ahead = look_ahead(partial(self._open_for, alone=True), schedule, self._cursor)
        with kept_draws(), closing(ahead):
            for cursor, batch, stages in ahead:
                host, name = batch.host, self._engine.name
                self._policy.judge(host.bad, ledger, host.misread, backend=name, rank=schedule.rank)
                served = self._hand_over(batch, cursor.epoch, schedule.number(cursor))
                tiles += make_tiles(served, stages, field_kinds_of(self._source), *names)
                if len(tiles) >= n:
                    break
        return Picture(tiles[:n])

    def _check_current(self, iteration: Iteration) -> None:
        if self._closed or iteration is not self._iteration:
            why = "the loader was closed" if self._closed else "another iteration over this loader has begun"
            raise self._misuse(why, "use one iterator at a time")
        self._refuse_after_fork()

    def _for_one_thread(self, items: Generator[Item, None, None]) -> OneThread[Item]:
        why = "another thread is waiting for a batch of this loader"
        refusal = partial(self._misuse, why, "iterate in one thread, and pass its batches to the others")
        # On a closed loader a thread waits for the lock, so that the error says that the loader is closed.
        return OneThread(items, self._turn, lambda: _CLOSE_S if self._closed else 0, refusal)

    def _misuse(self, cause: str, fix: str) -> LoaderError:
        return LoaderError("E-MISUSE", cause, fix=fix, backend=self._engine.name)

    def _is_parents(self) -> bool:
        """Return whether this process was forked from the one that iterated last."""
        return self._used_in not in (None, os.getpid())

    def _refuse_after_fork(self) -> None:
        if self._is_parents() and self._engine.describe()["workers"]:
            cause = f"the workers of this loader belong to process {self._used_in}, and this one was forked from it"
            raise self._misuse(cause, "make a loader in each process")

    def _current_schedule(self, *, certain: bool) -> Schedule:
        """Return the schedule of this process's place among the ranks, which may have changed since the last batch."""
        if self._agreement is None:
            return self._schedule
        place = distributed_place(certain=certain)
        same = place == (self._schedule.rank, self._schedule.world_size)
        return self._schedule if same else replace(self._schedule, rank=place[0], world_size=place[1])

    def _take_place(self) -> None:
        """Adopt the current rank and world size, and compare them with the other ranks."""
        schedule = self._current_schedule(certain=True)
        if schedule is not self._schedule:
            self._engine.close()
            self._feed.close()
            if schedule.rank != self._schedule.rank:
                self._ledgers.pop(self._cursor.epoch, None)  # of another rank, from a state that was loaded too early
            self._open(schedule, self._policy)
            self._cursor = schedule.resume_at(self._cursor)
        if self._agreement is not None:
            self._agreement.begin()

    def identity(self) -> dict[str, Any]:
        """Return the settings that the loaders of all ranks of a run have in common, JSON-serialisable."""
        classes = hashlib.blake2b(b"\0".join(self._source.classes), digest_size=8).hexdigest()
        about = {**asdict(self._identity), **self._schedule.identity(), "classes": classes}
        pipeline = about.pop("pipeline")
        return {**about, **pipeline}

    def _take(self) -> DeviceBatch:
        started, ready = time.perf_counter(), self._engine.ready()
        self._started_s = self._started_s or started
        try:
            batch = self._feed.next()
        except LoaderError as error:
            self._closed = True
            raise error.locate(backend=self._engine.name, rank=self._schedule.rank) from error.__cause__
        assert batch.host.cursor == self._cursor, "the engine left the order"
        ledger = self._ledgers.setdefault(self._cursor.epoch, EpochLedger(self._cursor.epoch))
        host, flawed = batch.host, (*batch.host.repaired, *batch.host.misread)
        self._policy.judge(host.bad, ledger, host.misread, backend=self._engine.name, rank=self._schedule.rank)
        ledger.add(host.index, host.bad, flawed, self._count_sources)
        now = time.perf_counter()
        self._stats = self._stats.with_batch(
            int((host.index >= 0).sum()),
            wait_s=now - started,
            elapsed_s=now - self._started_s,
            ready=ready,
            produce_s=host.produce_s,
            read_s=host.read_s,
            repaired=len(flawed),
            replaced=len(host.bad),
        )
        return batch

    def _go_to(self, cursor: Cursor, *, left: Cursor | None = None, looks: int = 0) -> None:
        self._cursor = self._schedule.resume_at(cursor)
        self._iteration = Iteration(self._cursor, left, looks)  # iterations from the old place end with an error

    def _seek(self) -> None:
        self._used_in = os.getpid()
        latest = self._feed.latest
        if latest is None or self._schedule.after(latest) != self._cursor:
            self._feed.flush()
            self._engine.seek(self._cursor)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration start `epoch`, 0 to 2**32 - 1. Keep the place if that epoch was loaded from a state.

        Raises ValueError.
        """
        epoch = checked_int("epoch", epoch, 0, NUM_EPOCHS - 1)
        if epoch != self._cursor.epoch or self._iteration.steps:
            self._go_to(Cursor(epoch, 0))

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._cursor.epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the stream, JSON-serialisable. It counts delivered batches, never prefetched ones.

        The state includes this rank's ledger of the current epoch, or of the epoch that has just ended.
        """
        ledger = self._ledgers.get(self._cursor.epoch) or self._ledgers.get(self._cursor.epoch - 1)
        own = [] if ledger is None else [{"rank": self._schedule.rank, **ledger.as_dict()}]
        return {**self._identity.save(self._cursor), **self._schedule.saved(self._cursor), "ledgers": own}

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """Continue where `state` was saved. This rank's ledger in the state continues too, so max_bad keeps counting.

        Raises LoaderError E-STATE for a state of another data set, seed or order and, unless `strict` is False, of
        another pipeline, dtype or policy for bad samples.
        """
        strict = checked_bool("strict", strict)
        cursor = self._identity.restore(state, strict=strict, epoch_samples=self._schedule.n)
        schedule = self._current_schedule(certain=False)
        schedule.check_saved(state, cursor)
        ledger = saved_ledger(state, schedule.rank, schedule.world_size)
        self._go_to(cursor)
        self._ledgers.pop(cursor.epoch, None)
        if ledger is not None:
            self._ledgers[ledger.epoch] = ledger

    def stats(self) -> LoaderStats:
        """Return the counts and times so far."""
        requests, num_bytes = getattr(self._source, "traffic", (0, 0))
        return replace(self._stats, requests=requests, fetched_bytes=num_bytes)

    def ledger(self, epoch: int | None = None) -> EpochLedger:
        """Return the ledger of `epoch`, by default of the epoch last served."""
        if epoch is None:
            epoch = max(self._ledgers, default=self._cursor.epoch)
        return self._ledgers.get(epoch, EpochLedger(epoch))

    def ledgers(self) -> list[EpochLedger]:
        """Return the ledgers of all epochs served by this loader, in order."""
        return [self._ledgers[epoch] for epoch in sorted(self._ledgers)]

    def describe(self) -> dict[str, object]:
        """Return the current settings, JSON-serialisable, for records and reports."""
        return {**self._engine.describe(), **self._about}

    def close(self) -> None:
        """Stop the workers and free the slots within seconds; idempotent. Does not touch them in a forked child."""
        self._closed = True
        if self._agreement is not None:
            self._agreement.close()
        if self._is_parents():
            return  # a thread that held a lock at the fork does not exist here, so it cannot release it
        self._engine.close()
        if is_fetching(self._source):
            self._source.forget()
        # A thread that waited for a worker has raised an error by now; a thread that makes its batch may take longer.
        if self._turn.acquire(timeout=_CLOSE_S):
            try:
                self._feed.close()
            finally:
                self._turn.release()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
