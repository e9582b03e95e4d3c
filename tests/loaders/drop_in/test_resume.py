"""The drop-in DataLoader resumes from a saved state."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from drop_in_streams import seeded, seen, serve_rest, serve_with_states, values
from numbered_dataset import Numbered
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, WeightedRandomSampler

from penstock.loaders.drop_in.data_loader import DataLoader
from penstock.pipelines.errors import LoaderError

LENGTH, BATCH = 11, 2


def stream(loader: DataLoader[Any], epochs: int) -> list[tuple[int, Any]]:
    """Return the rest of `epochs` epochs, each batch with its epoch."""
    found = []
    while loader.epoch < epochs:
        epoch = loader.epoch
        found += [(epoch, batch) for batch in values(loader)]
    return found


def test_resume_with_other_workers(pool: DataLoader[Any]) -> None:
    alone = DataLoader(Numbered(LENGTH), BATCH, shuffle=True, num_workers=0, seed=5)
    whole = stream(alone, 2)
    steps = len(alone)
    for boundary in range(0, 2 * steps, 3):
        pool.set_epoch(7)
        state = {**alone.state_dict(), "epoch": boundary // steps, "batches": boundary % steps}
        pool.load_state_dict(state)
        assert pool.state_dict() == state
        batches = iter(pool)
        assert next(batches).tolist() == whole[boundary][1]
        # Batches were prefetched by now; the state counts only the delivered one.
        alone.load_state_dict(pool.state_dict())
        assert stream(alone, 2) == whole[boundary + 1 :]


def test_an_epoch_left_early_is_over_and_one_not_started_is_not() -> None:
    loader = DataLoader(Numbered(8), 2, num_workers=0)
    iter(loader)
    assert values(loader)[0] == [0, 1]
    assert loader.epoch == 1
    next(iter(loader))
    assert loader.epoch == 1
    assert len(list(loader)) == 4
    assert loader.epoch == 3


def test_set_epoch_keeps_a_loaded_position() -> None:
    loader = DataLoader(Numbered(8), 2, num_workers=0)
    state = {**loader.state_dict(), "epoch": 3, "batches": 2}
    loader.load_state_dict(state)
    loader.set_epoch(3)
    assert values(loader) == [[4, 5], [6, 7]]
    loader.load_state_dict(state)
    loader.set_epoch(4)
    assert len(list(loader)) == 4


def test_set_epoch_accepts_epochs_from_0() -> None:
    loader = DataLoader(Numbered(8), 2, num_workers=0)
    loader.set_epoch(3)
    loader.set_epoch(0)
    assert loader.state_dict()["epoch"] == 0
    with pytest.raises(ValueError, match="epoch must be"):
        loader.set_epoch(-1)


@pytest.mark.filterwarnings("ignore:seed=0 has no effect:UserWarning")
def test_a_state_of_another_stream_is_refused() -> None:
    def loader(**arguments: Any) -> DataLoader[Any]:
        return DataLoader(**{"dataset": Numbered(10), "batch_size": 2, "shuffle": True, "seed": 0} | arguments)

    mine = loader()
    state = mine.state_dict()
    others = [{"dataset": Numbered(11)}, {"batch_size": 5}, {"shuffle": False}, {"seed": 1}, {"drop_last": True}]
    others += [{"sampler": range(10), "shuffle": None}, {"batch_size": None}, {"generator": seeded()}, {"seed": None}]
    strangers = [loader(**other).state_dict() for other in others]
    strangers += [{**state, "version": 2}, {**state, "epoch": -1}, {**state, "epoch": 1 << 32}, {**state, "epoch": "1"}]
    strangers += [{**state, "batches": -1}, {**state, "batches": 11}, {**state, "batches": True}, {**state, "more": 1}]
    strangers += [{k: v for k, v in state.items() if k != name} for name in state]
    touched = {name for other in strangers for name in state if name in other and other[name] != state[name]}
    assert touched == set(state)
    for stranger in [*strangers, [], None, "state"]:
        with pytest.raises(LoaderError) as caught:
            mine.load_state_dict(stranger)  # type: ignore[arg-type]
        assert caught.value.code == "E-STATE"
    mine.load_state_dict(state)
    assert len(list(mine)) == 5


class Unsized:
    """A dataset without a length, as datasets for custom samplers may be."""

    def __getitem__(self, key: str) -> str:
        return key.upper()


class WithoutLength:
    """A sampler without a length, which torch allows."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


def test_a_dataset_without_length_and_with_keys_that_are_not_numbers() -> None:
    dataset: Any = Unsized()
    loader = DataLoader(dataset, 2, sampler=["a", "b", "c"], num_workers=0)
    assert next(iter(loader)) == ["A", "B"]
    state = loader.state_dict()
    assert state["samples"] is None
    loader.load_state_dict(state)
    assert list(loader) == [["C"]]


def test_a_distributed_sampler_gets_the_epoch() -> None:
    sampler: DistributedSampler[int] = DistributedSampler(range(12), num_replicas=2, rank=1, seed=4)  # type: ignore[arg-type]
    loader = DataLoader(Numbered(12), 2, sampler=sampler, num_workers=0)
    loader.set_epoch(2)
    assert sampler.epoch == 2
    whole = values(loader)
    loader.load_state_dict({**loader.state_dict(), "epoch": 2, "batches": 1})
    sampler.set_epoch(0)
    loader.load_state_dict({**loader.state_dict(), "epoch": 2, "batches": 1})
    assert values(loader) == whole[1:]
    batched = DataLoader(Numbered(12), batch_sampler=BatchSampler(sampler, 2, False), num_workers=0)
    batched.set_epoch(9)
    assert sampler.epoch == 9


def test_batches_that_arrive_out_of_order_are_served_once_over_a_resume() -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(Numbered(20, {0: "wait"}), 2, num_workers=2, in_order=False)

    with loader() as first:
        batches = iter(first)
        head = [next(batches).tolist() for _ in range(3)]
        state = json.loads(json.dumps(first.state_dict()))
    assert head[0] != [0, 1]  # its worker was late
    assert state["details"]["ahead"]
    with loader() as again:
        again.load_state_dict(state)
        rest = values(again)
    assert sorted(head + rest) == [[k, k + 1] for k in range(0, 20, 2)]
    with loader() as other:
        for ahead in ([-1], "ahead", [True], None):
            with pytest.raises(LoaderError) as caught:
                other.load_state_dict({**state, "details": {"ahead": ahead}})
            assert caught.value.code == "E-STATE"


class Draws:
    """A sampler that draws its order in __iter__, from a global generator other than torch's."""

    def __init__(self, draw: Callable[[int], Any]) -> None:
        self.draw = draw

    def __iter__(self) -> Iterator[int]:
        return iter(list(self.draw(LENGTH)))

    def __len__(self) -> int:
        return LENGTH


def shuffled_by_python(length: int) -> list[int]:
    return random.sample(range(length), length)


RANDOM_ORDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "torch's": lambda: {"shuffle": True},
    "a generator": lambda: {"shuffle": True, "generator": seeded()},
    "a sampler's generator": lambda: {"sampler": RandomSampler(range(LENGTH), generator=seeded())},
    "with replacement": lambda: {
        "sampler": RandomSampler(range(LENGTH), replacement=True, num_samples=40, generator=seeded())
    },
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0, 2.0] * 5, 9)},
    "unbatched": lambda: {"sampler": RandomSampler(range(LENGTH)), "batch_size": None},
    "batch sampler": lambda: {"batch_sampler": BatchSampler(RandomSampler(range(LENGTH)), 4, True)},
    "Python's": lambda: {"sampler": Draws(shuffled_by_python)},
    "NumPy's": lambda: {"sampler": Draws(np.random.permutation)},
    "a seed": lambda: {"shuffle": True, "seed": 3},
    "a seed, unbatched": lambda: {"shuffle": True, "seed": 3, "batch_size": None},
    "a seed, without the rest": lambda: {"shuffle": True, "seed": 3, "drop_last": True},
}
FIXED_ORDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "in order": dict,
    "in order, without the rest": lambda: {"drop_last": True},
    "a list": lambda: {"batch_size": 3, "sampler": [4, 8, 1, 1, 0, 2, 7]},
    "lists of a batch": lambda: {"batch_sampler": [[1, 2], [3], [4, 5, 6]]},
    "a list, unbatched": lambda: {"batch_size": None, "sampler": [3, 1, 2]},
    "without a length": lambda: {"sampler": WithoutLength()},
}


def loader_with(arguments: dict[str, Any], **settings: Any) -> DataLoader[Any]:
    batched = {} if "batch_sampler" in arguments else {"batch_size": BATCH}
    return DataLoader(Numbered(LENGTH), **{**batched, **settings, **arguments})


def draw_as_a_model_does() -> None:
    torch.rand(3)
    random.random()


@pytest.mark.parametrize(
    ("order", "num_workers", "persistent"),
    [(order, 0, False) for order in (*RANDOM_ORDERS, *FIXED_ORDERS)]
    + [(order, 1, False) for order in ("torch's", "a sampler's generator", "batch sampler", "without a length")]
    + [(order, 1, True) for order in ("torch's", "a generator", "unbatched", "Python's", "a seed")],
)
def test_an_order_is_the_same_after_a_resume_over_three_epochs(order: str, num_workers: int, persistent: bool) -> None:
    def loader() -> DataLoader[Any]:
        arguments = {**RANDOM_ORDERS, **FIXED_ORDERS}[order]()
        return loader_with(arguments, num_workers=num_workers, persistent_workers=persistent)

    def elsewhere(seed: int) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002

    elsewhere(1)
    served, states = serve_with_states(loader(), 3, draw_as_a_model_does)
    assert order == "without a length" or len(served) == 3 * len(loader())
    epochs = {str(served[k * len(served) // 3 :][: len(served) // 3]) for k in range(3)}
    assert len(epochs) == (3 if order in RANDOM_ORDERS else 1)
    for taken, state, _ in states if num_workers == 0 else states[:: len(states) // 3]:
        elsewhere(1 if taken == 0 else 100 + taken)
        again = loader()
        again.load_state_dict(json.loads(state))
        assert json.dumps(again.state_dict()) == state
        batch = next(iter(again), None) if num_workers == 0 and taken < len(served) else None
        if batch is not None:  # the resumed run is stopped and resumed, too
            assert seen(batch) == served[taken]
            draw_as_a_model_does()
            taken, state = taken + 1, json.dumps(again.state_dict())
            elsewhere(200 + taken)
            again = loader()
            again.load_state_dict(json.loads(state))
        assert serve_rest(again, 3, draw_as_a_model_does) == served[taken:], f"after {taken} batches"


@pytest.mark.parametrize("order", RANDOM_ORDERS)
def test_an_epoch_is_over_after_its_last_batch(order: str) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(Numbered(LENGTH - 1), **{"batch_size": 2, **RANDOM_ORDERS[order]()} | unbatched)

    unbatched = {"batch_size": 1} if "batch_sampler" in RANDOM_ORDERS[order]() else {}
    first, again = loader(), loader()
    batches = iter(first)
    for _ in range(len(first)):
        next(batches)
    del batches
    other = copy.deepcopy(first)
    state = json.loads(json.dumps(first.state_dict()))
    assert (state["epoch"], state["batches"], other.epoch) == (1, 0, 1)
    expected = values(first)
    again.load_state_dict(state)
    other.load_state_dict(state)
    assert values(again) == expected
    assert values(other) == expected


class DrawsPrivately:
    """A sampler that draws its order from a private generator, which no state contains."""

    def __init__(self) -> None:
        self.drawn = np.random.default_rng(1)

    def __iter__(self) -> Iterator[int]:
        return iter(self.drawn.permutation(LENGTH).tolist())

    def __len__(self) -> int:
        return LENGTH


def distributed(replicas: int = 1, rank: int = 0, seed: int = 0) -> dict[str, Any]:
    data: Any = range(LENGTH)
    return {"sampler": DistributedSampler(data, num_replicas=replicas, rank=rank, seed=seed)}


OTHER_ORDERS: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[], dict[str, Any]]]] = {
    "other ranks": (distributed, lambda: distributed(2)),
    "another seed": (distributed, lambda: distributed(seed=5)),
    "other weights": (
        lambda: {"sampler": WeightedRandomSampler([1.0, 0.0] * 5, 9)},
        lambda: {"sampler": WeightedRandomSampler([0.0, 1.0] * 5, 9)},
    ),
    "another list": (lambda: {"sampler": [4, 8, 1, 1, 0]}, lambda: {"sampler": [8, 4, 1, 1, 0]}),
    "another batch sampler": (
        RANDOM_ORDERS["batch sampler"],
        lambda: {"batch_sampler": BatchSampler(RandomSampler(range(LENGTH)), 3, True)},
    ),
    "no generator": (RANDOM_ORDERS["a sampler's generator"], lambda: {"sampler": RandomSampler(range(LENGTH))}),
}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("change", OTHER_ORDERS)
def test_a_state_of_another_order_is_refused(change: str, num_workers: int) -> None:
    before, after = OTHER_ORDERS[change]
    loader = loader_with(before())
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    with loader_with(before(), num_workers=num_workers) as same:
        same.load_state_dict(state)
        assert values(same)
    with loader_with(after(), num_workers=num_workers) as other:
        other.load_state_dict(state)
        with pytest.raises(LoaderError, match=r"E-STATE.*order") as caught:
            list(other)
        assert caught.value.code == "E-STATE"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_state_of_one_rank_loads_on_another(num_workers: int) -> None:
    first = loader_with(distributed(2))
    next(iter(first))
    state = json.loads(json.dumps(first.state_dict()))
    with loader_with(distributed(2, 1), num_workers=num_workers) as other:
        other.load_state_dict(state)
        batches = iter(other)
        served = [next(batches)]
        own = json.loads(json.dumps(other.state_dict()))
        served += list(batches)
    assert [batch.tolist() for batch in served] == values(loader_with(distributed(2, 1)))[1:]
    changed = loader_with(distributed(2, 1, seed=5))
    changed.load_state_dict(own)
    with pytest.raises(LoaderError, match=r"E-STATE.*order"):
        list(changed)


def test_the_state_of_one_process_loads_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    first = loader_with({"sampler": [4, 8, 1]})
    next(iter(first))
    state = json.loads(json.dumps(first.state_dict()))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    other = loader_with({"sampler": [9, 7, 5]})  # a sampler that knows its rank but has no attribute for it
    other.load_state_dict(state)
    assert values(other) == [[5]]


@pytest.mark.parametrize("rank", ["-1", "first"])
def test_an_invalid_rank_changes_nothing(monkeypatch: pytest.MonkeyPatch, rank: str) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "1")
    first = loader_with({"sampler": [4, 8, 1]})
    next(iter(first))
    again = loader_with({"sampler": [4, 8, 1]})
    again.load_state_dict(first.state_dict())
    assert values(again) == [[1]]


def test_a_sampler_with_an_unsaved_generator_is_refused_in_its_second_epoch() -> None:
    def loader() -> DataLoader[Any]:
        return loader_with({"sampler": DrawsPrivately()})

    first = loader()
    for epoch in range(2):
        batches = iter(first)
        next(batches)
        state = json.loads(json.dumps(first.state_dict()))
        rest = values(batches)
        again = loader()
        again.load_state_dict(state)
        if epoch == 0:  # a new sampler draws the same order
            assert values(again) == rest
            continue
        with pytest.raises(LoaderError, match=r"E-STATE.*state_dict\(\) and load_state_dict\(\)"):
            list(again)


def test_an_order_may_change_before_its_first_batch() -> None:
    loader = loader_with(distributed(), num_workers=1)
    iter(loader)  # the first batches are drawn
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    other = loader_with(distributed(seed=5))
    other.load_state_dict(state)
    assert values(other) == values(loader_with(distributed(seed=5)))


def test_a_state_of_an_earlier_version_loads() -> None:
    # Saved when the order was always a function of a seed, which was 0 by default.
    state = {
        "order": "feistel-1",
        "seed": 0,
        "samples": LENGTH,
        "batch_size": 2,
        "drop_last": False,
        "version": 1,
        "epoch": 1,
        "batches": 2,
    }
    seeded_loader = DataLoader(Numbered(LENGTH), 2, shuffle=True, seed=0)
    seeded_loader.set_epoch(1)
    expected = [values(seeded_loader)[2:], values(seeded_loader)]
    loader = DataLoader(Numbered(LENGTH), 2, shuffle=True)
    loader.load_state_dict(state)
    assert [values(loader), values(loader)] == expected
    assert loader.state_dict()["order"] == "feistel-1"
    plain = DataLoader(Numbered(LENGTH), 2)
    plain.load_state_dict({**state, "order": "sequential"})
    assert values(plain)[0] == [4, 5]


def test_impossible_details_are_refused() -> None:
    loader = DataLoader(Numbered(LENGTH), 2, shuffle=True)
    torch.manual_seed(1)
    next(iter(loader))
    state = loader.state_dict()
    generators = torch.get_rng_state()
    wrong: list[Any] = [None, [], {"more": 1}, {"random": 1}, {"random": {"begin": {"torch": "x"}}}, {"turn": -1}]
    wrong += [{"first": "x"}, {"first": -1}, {"first": True}, {"rank": None}, {"rank": -1}]
    wrong += [
        {"random": {"now": {"python": ["AAAA", None]}}},
        {"random": {"now": {"numpy": 3}}},
        {"processes": [{"random": {"torch": 1}}]},
    ]
    wrong += [{"processes": [None, None]}, {"processes": [3]}, {"sampler": 3}]
    for details in wrong:
        with pytest.raises(LoaderError) as caught:
            loader.load_state_dict({**state, "details": details})
        assert caught.value.code == "E-STATE"
    assert torch.equal(torch.get_rng_state(), generators)
    loader.load_state_dict(state)
