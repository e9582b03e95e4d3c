"""Samplers that count epochs themselves resume in the order that they drew, whether or not set_epoch is called."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from drop_in_streams import seen
from numbered_dataset import Numbered
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, RandomSampler, Sampler

from penstock.loaders import LoaderError
from penstock.loaders.drop_in.data_loader import DataLoader

LENGTH, BATCH, EPOCHS = 13, 3, 3


class Counting(Sampler[int]):
    """Draws by an epoch that it counts itself, before or after drawing, with or without set_epoch."""

    def __init__(self, *, before: bool) -> None:
        self.epoch, self.before = 0, before

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        drawn = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        if self.before:
            self.epoch += 1
            yield from drawn
        else:
            yield from drawn
            self.epoch += 1


class Settable(Counting):
    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Seeded(RandomSampler):
    """Seeds its generator with the epoch, as accelerate's sampler does."""

    def __init__(self) -> None:
        super().__init__(range(LENGTH), generator=torch.Generator())
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.generator.manual_seed(self.epoch + 7)
        yield from super().__iter__()
        self.set_epoch(self.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def distributed(**options: Any) -> Any:
    return DistributedSampler(range(LENGTH), num_replicas=2, rank=1, seed=4, **options)  # type: ignore[arg-type]


SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "distributed": lambda: {"sampler": distributed()},
    "distributed, in order": lambda: {"sampler": distributed(shuffle=False)},
    "distributed, in a batch sampler": lambda: {"batch_sampler": BatchSampler(distributed(), BATCH, False)},
    "distributed, unbatched": lambda: {"sampler": distributed(), "batch_size": None},
    "counts before": lambda: {"sampler": Counting(before=True)},
    "counts after": lambda: {"sampler": Counting(before=False)},
    "counts before, settable": lambda: {"sampler": Settable(before=True)},
    "counts after, settable": lambda: {"sampler": Settable(before=False)},
    "seeded": lambda: {"sampler": Seeded()},
}
# How the program sets the epoch: never, before each epoch, also before the state is loaded, or from epoch 2 on.
CALLS = ["never", "each", "each, and before loading", "by the loader", "late"]


class Program:
    """A training program; each run creates a new loader and sampler."""

    def __init__(self, name: str, calls: str, num_workers: int) -> None:
        parts = SAMPLERS[name]()
        own = {} if "batch_sampler" in parts else {"batch_size": BATCH}
        self.loader: DataLoader[Any] = DataLoader(Numbered(LENGTH), num_workers=num_workers, **{**own, **parts})
        self.sampler, self.calls = parts.get("sampler") or parts["batch_sampler"].sampler, calls

    def call(self, epoch: int) -> None:
        if self.calls == "by the loader":
            self.loader.set_epoch(epoch)
        elif self.calls.startswith("each") or (self.calls == "late" and epoch >= 2):
            self.sampler.set_epoch(epoch)

    def run(self, first: int = 0) -> Iterator[tuple[Any, str]]:
        """Yield each batch and the state after it."""
        for epoch in range(first, EPOCHS):
            self.call(epoch)
            for batch in self.loader:
                yield seen(batch), json.dumps(self.loader.state_dict())

    def resume(self, state: str) -> list[Any]:
        """Return the rest of the run."""
        if self.calls.endswith("before loading"):
            self.sampler.set_epoch(json.loads(state)["epoch"])
        self.loader.load_state_dict(json.loads(state))
        assert json.dumps(self.loader.state_dict()) == state
        return [batch for batch, _ in self.run(self.loader.epoch)]


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_resume_at_any_batch_continues_the_same_orders(name: str, calls: str) -> None:
    if calls not in ("never", "by the loader") and not hasattr(Program(name, calls, 0).sampler, "set_epoch"):
        calls = "never"
    start = json.dumps(Program(name, calls, 0).loader.state_dict())
    served, states = zip(*Program(name, calls, 0).run(), strict=True)
    for taken, state in enumerate([start, *states]):
        assert Program(name, calls, 0).resume(state) == list(served[taken:]), f"after {taken} batches"


@pytest.mark.parametrize("name", ["distributed", "counts before", "seeded"])
def test_workers_do_not_change_the_orders(name: str) -> None:
    served, states = zip(*Program(name, "never", 1).run(), strict=True)
    for taken in (1, len(served) // 2 + 1):
        assert Program(name, "never", 1).resume(states[taken - 1]) == list(served[taken:])


def test_an_epoch_left_early_is_followed_by_the_next() -> None:
    """The state of an order that was drawn and left is the sampler's current state."""
    program = Program("counts before", "never", 0)
    next(iter(program.loader))
    assert program.sampler.epoch == 1
    rest = next(iter(program.loader))
    state = json.dumps(program.loader.state_dict())
    again = Program("counts before", "never", 0)
    again.loader.load_state_dict(json.loads(state))
    other = Program("counts before", "never", 0)
    other.sampler.epoch = 1
    assert [seen(rest), *map(seen, again.loader)] == list(map(seen, other.loader))


@pytest.mark.parametrize("epochs", [3, {"sampler0": -1}, {"sampler0": "1"}, {"sampler0": True}])
def test_impossible_epochs_are_refused(epochs: Any) -> None:
    loader = Program("distributed", "never", 0).loader
    with pytest.raises(LoaderError, match="the epochs of the samplers in the state are invalid"):
        loader.load_state_dict({**loader.state_dict(), "details": {"epochs": epochs}})


class Shuffled(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(12).tolist())


def number_in(loader: DataLoader[Any], state: dict[str, Any] | None = None) -> list[int]:
    if state is not None:
        loader.load_state_dict(state)
    return [int(number) for batch in loader for number in batch]


@pytest.mark.parametrize(("before", "after"), [(0, 0), (1, 1), (2, 2), (0, 1), (1, 0), (0, 2), (2, 0), (1, 2)])
def test_an_iterable_data_set_resumes_only_with_its_number_of_workers(before: int, after: int) -> None:
    torch.manual_seed(1)
    with DataLoader(Shuffled(), 2, num_workers=before) as loader, DataLoader(Shuffled(), 2, num_workers=after) as again:
        steps = iter(loader)
        head = [int(number) for _ in range(3) for number in next(steps)]
        state = json.loads(json.dumps(loader.state_dict()))
        rest = [int(number) for batch in steps for number in batch]
        torch.manual_seed(77)
        if before == after:
            assert number_in(again, state) == rest
            assert sorted(head + rest) == sorted([*range(12)] * max(1, before))
        else:
            with pytest.raises(LoaderError, match=r"E-STATE.*load it with the same num_workers"):
                again.load_state_dict(state)
        ended = loader.state_dict()
    with DataLoader(Shuffled(), 2, num_workers=after) as again:  # between epochs there is no order to keep
        assert sorted(number_in(again, ended)) == sorted([*range(12)] * max(1, after))
