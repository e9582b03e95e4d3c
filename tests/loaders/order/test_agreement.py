"""Two real ranks that start iterations at equal and at different positions."""

from __future__ import annotations

from typing import Any

import pytest
from forked_commands import Commands
from gloo_ranks import run_ranks
from photo_folder import write_folder

PHOTOS = 40  # in steps of 2 samples on each of 2 ranks: 10 steps per epoch

SCRIPT = """
import json, os, sys, warnings
from pathlib import Path
import torch
import torch.distributed as dist
from penstock.loaders import LoaderError, create_loader
from penstock.pipelines import imagenet_train

torch.set_num_threads(1)
warnings.simplefilter("ignore")  # the first rank seems to be alone
rank, world, store, out, photos = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)

def make(seed, photos=photos, **settings):
    return create_loader(photos, pipeline=imagenet_train(16), batch_size=2, seed=seed, workers=0, **settings)

def take(loader, steps=99):
    return [batch.index.tolist() for _, batch in zip(range(steps), loader.batches())]

def in_order(*parts):
    # Each rank runs its part after the ranks before it.
    results = []
    for number, part in enumerate(parts):
        if number == rank:
            try:
                results = part()
            except LoaderError as error:
                results = error.line()
        dist.barrier()
    return results

def train(loader, epochs=2):
    return [sum(take(loader), []) for _ in range(epochs)]

def peeked(loader, steps):
    stream = loader.batches()
    for _ in range(steps):
        next(stream)
    return loader

def loaded(loader):
    other = make(loader.identity()["seed"], rank=0, world_size=1)
    loader.load_state_dict(peeked(other, 6).state_dict())
    return loader

def sent(loader, epoch):
    loader.set_epoch(epoch)
    return loader

def broken(loader):
    return [sum(take(loader, 3), []), sum(take(loader), [])]

def both(seeds):
    first, second = (make(seed) for seed in seeds)
    chosen = dict(zip(seeds, (first, second)))
    return [train(chosen[seed], 1) for seed in sorted(seeds)]

result = {}
result["peek"] = in_order(lambda: train(peeked(make(1), 1)), lambda: train(make(1)))
result["state of one rank"] = in_order(lambda: train(loaded(make(2))), lambda: train(make(2)))
result["set_epoch of one rank"] = in_order(lambda: train(sent(make(3), 1)), lambda: train(make(3)))
result["break of one rank"] = in_order(lambda: broken(make(4)), lambda: train(make(4)))
result["late break of one rank"] = in_order(lambda: [take(late := make(5), 9), take(late, 2)], lambda: train(make(5)))
result["a look at three, then set_epoch"] = in_order(lambda: train(sent(peeked(make(6), 3), 0)), lambda: train(make(6)))
result["a look, then set_epoch of one rank"] = in_order(
    lambda: train(sent(peeked(make(20), 1), 1)), lambda: train(make(20))
)
result["a look of one rank, then set_epoch of both"] = in_order(
    lambda: train(sent(peeked(make(21), 1), 1)), lambda: train(sent(make(21), 1))
)
result["a look at another loader"] = in_order(
    lambda: (peeked(make(22), 1), train(make(22)))[1], lambda: train(make(22))
)
result["a look at another loader, then set_epoch"] = in_order(
    lambda: (peeked(make(23), 1), train(sent(make(23), 1)))[1], lambda: train(make(23))
)
result["back to the beginning of one rank"] = in_order(
    lambda: train(sent(peeked(make(24), 4), 0)), lambda: broken(make(24))
)
result["set_epoch to the same place"] = in_order(
    lambda: train(sent(peeked(make(25), 3), 1)), lambda: broken(make(25))[1:]
)
result["states of both"] = in_order(lambda: train(loaded(make(7))), lambda: train(loaded(make(7))))
result["breaks of both"] = in_order(*2 * [lambda: broken(make(8))])
result["made in another order"] = in_order(lambda: both([10, 11]), lambda: both([11, 10]))
result["own orders"] = in_order(*2 * [lambda: train(make(30, order=range(40)), 1)])
result["own orders that differ later"] = in_order(
    *2 * [lambda: train(make(32, order=lambda epoch: [(i + rank * epoch) % 40 for i in range(40)]))]
)
result["one more, not iterated"] = in_order(lambda: (make(13), train(make(12)))[1], lambda: train(make(12)))

def judged_alone():
    in_order(lambda: None, lambda: train(make(18), 1))
    if rank == 0:
        train(make(18), 1)  # where the other rank was, so what rank 0 did alone before is known by now
    loader, judge = make(16), make(17)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(2):
            train(loader, 1)
            dist.barrier()
            if rank == 0:
                train(judge, 1)
            else:
                make(17)
            take(loader, 3)
            dist.barrier()
    return [str(each.message) for each in warned]

result["judged by one rank"] = judged_alone()
# Last, because a loader that the other rank has not made stays in the store.
result["other own orders"] = in_order(*2 * [lambda: train(make(31, order=[(i + rank) % 40 for i in range(40)]))])
Path(f"{out}.{rank}.json").write_text(json.dumps(result))
dist.barrier()
os._exit(0)
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> list[dict[str, Any]]:
    photos = write_folder(tmp_path_factory.mktemp("photos"), PHOTOS)
    return run_ranks(commands, SCRIPT, tmp_path_factory.mktemp("ranks"), 2, str(photos))


@pytest.mark.parametrize(
    ("what", "served"),
    [
        ("peek", [PHOTOS, PHOTOS]),
        ("states of both", [PHOTOS - 12, PHOTOS]),
        ("breaks of both", [12, PHOTOS]),
        ("one more, not iterated", [PHOTOS, PHOTOS]),
        ("a look of one rank, then set_epoch of both", [PHOTOS, PHOTOS]),
        ("a look at another loader", [PHOTOS, PHOTOS]),
        ("own orders", [PHOTOS]),
    ],
)
def test_ranks_at_the_same_position_share_each_epoch(results: list[Any], what: str, served: list[int]) -> None:
    first, second = (result[what] for result in results)
    assert [len({*a, *b}) for a, b in zip(first, second, strict=True)] == served
    assert [len(a) for a in first] == [len(b) for b in second] == [count // 2 for count in served]


def test_a_rank_that_is_set_to_the_position_of_the_others_may_continue(results: list[Any]) -> None:
    first, second = (result["set_epoch to the same place"] for result in results)
    assert len({*first[0], *second[0]}) == PHOTOS


def test_loaders_are_matched_in_any_order_of_creation(results: list[Any]) -> None:
    first, second = (result["made in another order"] for result in results)
    for a, b in zip(first, second, strict=True):
        assert len({*a[0], *b[0]}) == PHOTOS


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("state of one rank", "differ in position (0 and 12)"),
        ("set_epoch of one rank", "differ in epoch (0 and 1)"),
        ("break of one rank", "differ in position (16 and 12)"),
        ("a look, then set_epoch of one rank", "differ in epoch (0 and 1)"),
        ("a look at another loader, then set_epoch", "differ in epoch (0 and 1)"),
        ("back to the beginning of one rank", "differ in epoch (1 and 0)"),
        ("a look at three, then set_epoch", "differ in epoch (1 and 0)"),
        ("other own orders", "differ in indices ("),
        ("own orders that differ later", "differ in indices ("),
        ("late break of one rank", "differ in the place left before ([1, 0] and [0, 36])"),
    ],
)
def test_a_rank_at_another_position_is_refused(results: list[Any], what: str, words: str) -> None:
    assert not isinstance(results[0][what], str), "the first rank does not wait"
    assert results[1][what].startswith("LoaderError[E-STATE] rank=1 cause=rank 1 and rank 0 ")
    assert words in results[1][what]


def test_a_rank_that_iterates_alone_is_warned_once(results: list[Any]) -> None:
    (warning,) = results[0]["judged by one rank"]
    assert "only rank 0 iterates over the loader" in warning
    assert "rank=0, world_size=1" in warning
    assert results[1]["judged by one rank"] == []
