"""DataLoader takes the place of torch's for any map-style dataset: with tuned defaults, watched and resumable."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, Sampler
from torch.utils.data import DataLoader as TorchDataLoader

from penstock.loaders.drop_in.batch_iterator import BatchIterator
from penstock.loaders.drop_in.iteration import Iteration, Place
from penstock.loaders.drop_in.samplers import OrderedSampler, ShuffledSampler, SkippingSampler
from penstock.loaders.drop_in.worker_start import choose_context, drop_in_workers, refuse_without_main_guard
from penstock.loaders.stream.contract import LoaderStats
from penstock.loaders.stream.order import SAMPLER
from penstock.loaders.stream.state import DataLoaderState
from penstock.loaders.system.needs import drop_in_needs, ensure
from penstock.loaders.workers.watchdog import DEFAULT_WATCHDOG_S, check_watchdog
from penstock.pipelines.errors import LoaderError

T_co = TypeVar("T_co", covariant=True)
# torch's 2 leaves a consumer waiting 12 % of its time where the batches' times vary by half (32 workers with a fifth to
# spare, simulated), 3 leaves 3 %, 4 leaves 1 %; each one more costs a batch of memory for every worker.
DEFAULT_PREFETCH = 3


class DataLoader(TorchDataLoader[T_co]):
    """Drop-in replacement of torch.utils.data.DataLoader that names the cause of every stop and can resume.

    The arguments of torch keep their names, order and meaning. Defaults: num_workers, one for each processor that this
    process may use; pin_memory, if CUDA is there and `device` is not the CPU; persistent_workers, if there are workers;
    prefetch_factor 3; the start method, a fork server if dataset, collate_fn and worker_init_fn pickle.

    Args:
        device: where the tensors of each batch go, in nested tuples, lists and mappings; on CUDA one batch ahead of the
            consumer. None leaves them as torch does.
        seed: seed of the order, 0 to 2**64 - 1.
        watchdog_s: seconds without a sign of life of the workers before E-TIMEOUT.

    With shuffle=True and no sampler, batch_sampler or generator, the order is a function of `seed` and the epoch number
    alone, a new one each epoch, and nothing is drawn for it. With one of these it is that of torch, and a resumed epoch
    draws from the sampler and drops what was delivered before: exact if the sampler repeats itself.
    Random transforms are the dataset's own: torch seeds each worker (base seed plus worker number), with this class as
    without it, so they depend on the number of workers, and do not repeat after a resume.

    An iteration is the rest of the current epoch; the next one moves on by itself, and so does one after an iteration
    that was left early. `state_dict()` counts delivered batches only. An exception of the dataset is raised as torch
    does. Raises LoaderError E-WORKER, E-OOM, E-TIMEOUT, E-FD, E-SHM for lost workers; a new iteration starts new ones.
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool | None = None,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        pin_memory_device: str = "",
        in_order: bool = True,
        device: str | torch.device | None = None,
        seed: int = 0,
        watchdog_s: float = DEFAULT_WATCHDOG_S,
    ) -> None:
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed lies in [0, 2**64), not {seed}")
        check_watchdog(watchdog_s)
        self.device = None if device is None else torch.device(device)
        self.seed, self.watchdog_s = operator.index(seed), watchdog_s
        num_workers = drop_in_workers() if num_workers is None else num_workers
        if pin_memory is None:
            pin_memory = torch.cuda.is_available() and (self.device is None or self.device.type != "cpu")
        order = _order(dataset, shuffle, sampler, batch_sampler, generator)
        own: ShuffledSampler | OrderedSampler | None = None
        if order in (SAMPLER, "sequential"):
            data: Any = dataset
            sampler = own = ShuffledSampler(data, self.seed) if order == SAMPLER else OrderedSampler(data)
            shuffle = None
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=DEFAULT_PREFETCH if prefetch_factor is None and num_workers > 0 else prefetch_factor,
            persistent_workers=num_workers > 0 if persistent_workers is None else persistent_workers,
            pin_memory_device=pin_memory_device,
            **({} if in_order else {"in_order": False}),  # torch has it since 2.6
        )
        self._order, self._own_sampler, self._place = order, own, Place()
        self._alive: weakref.WeakSet[BatchIterator] = weakref.WeakSet()

    @property
    def _index_sampler(self) -> Any:
        """The sampler that torch takes indices from, at the current place; its `len()` is that of the whole epoch."""
        if self._own_sampler is not None:
            sampler = self._own_sampler.at(self._place.epoch, self._place.step * (self.batch_size or 1))
            return sampler if self.batch_size is None else BatchSampler(sampler, self.batch_size, self.drop_last)
        theirs = super()._index_sampler
        return SkippingSampler(theirs, self._place.step) if self._place.step else theirs

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            return super()._get_iterator()
        refuse_without_main_guard()
        self.check_worker_number_rationality()
        if self.multiprocessing_context is None:
            payload = (self.dataset, self.collate_fn, self.worker_init_fn)
            self.multiprocessing_context = choose_context(self.num_workers, *payload)
        method = self.multiprocessing_context.get_start_method()
        ensure(drop_in_needs(self.num_workers, self.prefetch_factor or 1, method))
        iterator = BatchIterator(self, self.watchdog_s)
        self._alive.add(iterator)
        return iterator

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names its own class
        """Return an iterator over the rest of the epoch. Raises LoaderError E-MISUSE after close()."""
        if self._place.closed:
            raise LoaderError("E-MISUSE", "the loader is closed", fix="make a new loader")
        if isinstance(self._iterator, BatchIterator) and self._iterator.spent:
            self._iterator = None
        self._place.begin()
        if isinstance(self._own_sampler, ShuffledSampler):
            self._own_sampler.epoch = self._place.epoch  # for whoever reads it from the sampler
        shared = self.persistent_workers and self.num_workers > 0
        return Iteration(self, self._place, super().__iter__(), steps=self._steps(), shared=shared, device=self.device)

    def _steps(self) -> int | None:
        """Count the batches of a whole epoch; None where the sampler does not know."""
        if isinstance(self.dataset, IterableDataset):  # len() would make torch warn later
            return None
        try:
            return len(self)
        except (TypeError, NotImplementedError):
            return None

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration start `epoch`; keeps the place if that epoch is under way (after load_state_dict).

        The epoch is passed on to a sampler of the user that has a set_epoch of its own (DistributedSampler).
        """
        self._need_an_order("set_epoch")
        if epoch < 0:
            raise ValueError(f"epoch is at least 0, not {epoch}")
        if epoch != self._place.epoch or not self._place.fresh:
            self._place.go_to(epoch, 0)
        self._pass_epoch_on()

    def _pass_epoch_on(self) -> None:
        for sampler in (self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None)):
            set_epoch: Callable[[int], Any] | None = getattr(sampler, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(self._place.epoch)

    def _need_an_order(self, what: str) -> None:
        if isinstance(self.dataset, IterableDataset):
            cause = f"{what} is not available for an IterableDataset, which decides its own order"
            raise LoaderError("E-MISUSE", cause, fix="use a map-style dataset, or let the dataset keep its own place")
        if self.num_workers > 0 and not getattr(self, "in_order", True) and what != "set_epoch":
            cause = f"{what} is not available with in_order=False: what was delivered has no last batch"
            raise LoaderError("E-MISUSE", cause, fix="leave in_order=True")

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._place.epoch

    def _identity(self) -> DataLoaderState:
        dataset: Any = self.dataset
        samples = len(dataset) if hasattr(dataset, "__len__") else None
        return DataLoaderState(
            order=self._order, seed=self.seed, samples=samples, batch_size=self.batch_size, drop_last=self.drop_last
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the stream, JSON-serialisable; it counts delivered batches, never prefetched ones."""
        self._need_an_order("state_dict")
        return self._identity().save(self._place.epoch, self._place.step)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken. Raises LoaderError E-STATE if it belongs to another stream."""
        self._need_an_order("load_state_dict")
        self._place.go_to(*self._identity().restore(state))
        self._pass_epoch_on()

    def stats(self) -> LoaderStats:
        """Return where time went so far; images counts the rows of the first tensor, produce_s is unknown and 0."""
        return self._place.stats

    def close(self) -> None:
        """End the worker processes, within seconds; idempotent."""
        self._place.closed = True
        self._iterator = None
        for iterator in list(self._alive):
            iterator.shut_down()

    def __enter__(self) -> DataLoader[T_co]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _order(dataset: Any, shuffle: Any, sampler: Any, batch_sampler: Any, generator: Any) -> str:
    """Name what decides the order: "iterable", "batch_sampler", "sampler", "generator", "sequential" or SAMPLER."""
    if isinstance(dataset, IterableDataset):
        return "iterable"
    if batch_sampler is not None or sampler is not None:
        return "sampler" if batch_sampler is None else "batch_sampler"
    if not shuffle:
        return "sequential"
    return SAMPLER if generator is None else "generator"
