"""Orders other than the plain shuffle: blocks, weights, mixtures; each a pure function of (seed, epoch, position)."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

from penstock.loaders.data.files.arrays import ArraySource
from penstock.loaders.front.choose_order import Blocks, choose_order
from penstock.loaders.order.block_order import BlockShuffled, BlockSizes
from penstock.loaders.order.order import Mixed, Order, make_weighted
from penstock.loaders.order.permutation import Index
from penstock.loaders.order.schedule import Schedule


def epoch_of(order: Order, epoch: int = 0) -> Index:
    return order(epoch, np.arange(order.n))


def uneven(n: int, group: int) -> BlockShuffled:
    """Blocks of 0 to 29 samples."""
    ends = np.minimum(np.cumsum(np.random.default_rng(n).integers(0, 30, n)), n)
    sizes = BlockSizes.of(np.diff(ends, prepend=0))
    return BlockShuffled(n=n, seed=5, block=15, group=group, sizes=sizes)


def all_orders() -> list[Order]:
    return [
        BlockShuffled(n=997, seed=5, block=16, group=8),
        uneven(997, group=8),
        make_weighted(np.random.default_rng(0).random(300), 997, 5),
        Mixed(n=997, seed=5, sizes=(40, 300, 7), shares=((0.5, 0.3, 0.2), (0.0, 1.0, 3.0))),
    ]


@pytest.mark.parametrize("order", all_orders(), ids=lambda order: order.name.split()[0])
def test_a_position_does_not_depend_on_the_others_in_a_call(order: Order) -> None:
    for epoch in (0, 1, 9):
        whole = epoch_of(order, epoch)
        assert whole.dtype == np.int64
        for position in range(0, order.n, 41):
            assert order(epoch, np.array([position]))[0] == whole[position]
        backwards = np.arange(order.n)[::-1]
        assert np.array_equal(order(epoch, backwards), whole[::-1])
    assert not np.array_equal(epoch_of(order, 0), epoch_of(order, 1))


def test_the_orders_are_those_that_saved_states_rely_on() -> None:
    """Known values: changing them breaks every resumed run and needs another name of the order."""
    known = ["34db29770cf95526", "64bd28cc1e0d7efd", "3650226b6e2470d2", "fbee0a92cc6848ce"]
    for order, digest in zip(all_orders(), known, strict=True):
        served = np.concatenate([epoch_of(order, epoch) for epoch in (0, 3)])
        assert hashlib.blake2b(served.tobytes(), digest_size=8).hexdigest() == digest, order.name


# ---- blocks ----


@pytest.mark.parametrize(("block", "group"), [(1, 1), (4, 1), (4, 3), (7, 2), (3, 12), (1, 64), (50, 9), (16, 98)])
def test_blocks_cover_every_sample_once(block: int, group: int) -> None:
    for n in (1, 2, 7, 8, 50, 97, 300, 2991):
        for order in (BlockShuffled(n=n, seed=3, block=block, group=group), uneven(n, group)):
            for epoch in range(3):
                served = epoch_of(order, epoch)
                assert sorted(served.tolist()) == list(range(n)), (n, epoch)


def test_each_mixed_window_contains_whole_blocks() -> None:
    order = BlockShuffled(n=1003, seed=3, block=8, group=16)
    for epoch in range(4):
        served, first = epoch_of(order, epoch), 0
        torn: set[int] = set()
        while first < order.n:
            span = order.span_at(epoch, first)
            assert span is not None
            assert span[0] == first
            assert order.span_at(epoch, span[1] - 1) == span
            counts = np.bincount(served[slice(*span)] // 8)
            assert np.count_nonzero(counts == 8) == (len(served[slice(*span)]) - counts[(counts < 8)].sum()) / 8 <= 16
            torn |= set(np.flatnonzero((counts > 0) & (counts < 8)).tolist())
            first = span[1]
        assert len(torn) <= 6  # 8 lanes leave 5 of 125 full blocks over, and the short one


def test_a_rank_serves_its_own_blocks_and_a_step_is_the_same_for_all_ranks() -> None:
    n, order = 16 * 61 + 5, BlockShuffled(n=16 * 61 + 5, seed=8, block=16, group=16)  # 8 lanes, and a tail of 5 blocks
    for start in (0, 24, 8 * 37):
        steps: dict[int, list[list[int]]] = {}
        for world in (1, 2, 3, 4, 6, 8):
            ranks = [
                Schedule(n=n, batch_size=24 // world, rank=rank, world_size=world, order=order, drop_last=False)
                for rank in range(world)
            ]
            firsts = range(start, n, 24)
            batches = [[schedule.batch(2, first).tolist() for first in firsts] for schedule in ranks]
            joined = [list(chain.from_iterable(own[step] for own in batches)) for step in range(len(firsts))]
            steps[world] = [[sample for sample in step if sample >= 0] for step in joined]
            readers = [{sample // 16 for batch in own for sample in batch if sample >= 0} for own in batches]
            if 8 % world == 0:  # whole lanes
                shared = sum(map(len, readers)) - len(set().union(*readers))
                assert shared <= 6 * (world - 1), (world, shared)  # in the tail
            unpadded = [replace(schedule, pad=False) for schedule in ranks]
            for schedule, own in zip(unpadded, batches, strict=True):
                assert schedule.served_steps(start) == sum(max(batch) >= 0 for batch in own)
        assert all(steps[world] == steps[1] for world in steps)
        assert sorted(chain.from_iterable(steps[1])) == sorted(order(2, np.arange(start, n)).tolist())


def test_a_block_is_used_up_within_its_group() -> None:
    order = BlockShuffled(n=1000, seed=1, block=10, group=5)
    for epoch in range(5):
        blocks = epoch_of(order, epoch) // 10
        spans = [np.ptp(np.flatnonzero(blocks == block)) for block in range(100)]
        assert max(spans) < 50
        assert np.mean(spans) > 30  # mixed with the others of the group, not one after another


def test_blocks_that_do_not_fill_the_lanes_are_spread_over_the_epoch() -> None:
    order = BlockShuffled(n=64 * 10 * 9 + 10 * 30 + 7, seed=2, block=10, group=256)
    served = epoch_of(order)
    blocks = served // 10
    spans = np.array([np.ptp(np.flatnonzero(blocks == block)) for block in range(order.n // 10)])
    assert np.count_nonzero(spans > 2016) == 30  # a window has 3 blocks of each of 64 lanes
    places = np.flatnonzero(served >= 64 * 10 * 9 + 10 * 30)  # the short block
    assert len(places) == 7
    assert np.ptp(places) > order.n / 3


def test_one_group_of_all_blocks_mixes_like_the_full_shuffle() -> None:
    order = BlockShuffled(n=960, seed=4, block=16, group=60)
    distances = [np.abs(np.diff(epoch_of(order, epoch))).mean() for epoch in range(20)]
    assert abs(np.mean(distances) / (960 / 3) - 1) < 0.03  # a third of n, as for independent draws


# ---- weights ----


def test_draws_follow_the_weights() -> None:
    weights = np.array([0.0, 1.0, 2.0, 0.0, 5.0, 0.0])
    draws = np.concatenate([epoch_of(make_weighted(weights, 20_000, 1), epoch) for epoch in range(4)])
    counts = np.bincount(draws, minlength=6)
    assert counts[[0, 3, 5]].tolist() == [0, 0, 0]
    assert np.abs(counts / 80_000 - weights / 8).max() < 0.01


def test_the_last_weight_is_never_exceeded() -> None:
    order = make_weighted(np.full(3, 1e-320), 1000, 0)  # sums that round
    assert set(epoch_of(order).tolist()) <= {0, 1, 2}


def test_balanced_weights_give_each_class_its_share() -> None:
    source = ArraySource(np.zeros((100, 2, 2, 3), np.uint8), [0] * 90 + [1] * 10, classes=["many", "few"])
    for weights, share in (("balanced", 0.5), ({"many": 1, "few": 3}, 0.75), ({1: 2.0}, 1.0), ([1.0] * 100, 0.1)):
        draws = epoch_of(choose_order(source, True, 0, weights, 20_000))
        assert abs((draws >= 90).mean() - share) < 0.015, weights


def test_blocks_of_data_sorted_by_class_warn() -> None:
    images = np.zeros((3000, 1, 1, 3), np.uint8)
    with pytest.warns(UserWarning, match="few classes"):
        choose_order(ArraySource(images, np.arange(3000) // 100), Blocks(), 0)
    for mixed in (np.arange(3000) % 2, np.zeros(3000, np.int64)):  # with two classes, and with only one
        choose_order(ArraySource(images, mixed), Blocks(), 0)  # warnings are errors here


# ---- mixtures ----


def test_counts_are_exact_and_follow_the_schedule() -> None:
    order = Mixed(n=100, seed=0, sizes=(40, 300, 7), shares=((7, 2, 1), (1, 1, 1), (0, 0, 5)))
    for epoch, expected in ((0, [70, 20, 10]), (1, [34, 33, 33]), (2, [0, 0, 100]), (7, [0, 0, 100])):
        sources = np.searchsorted([40, 340], epoch_of(order, epoch), "right")
        assert np.bincount(sources, minlength=3).tolist() == expected == order.counts(epoch).tolist()


def test_each_source_is_used_evenly_over_the_epochs() -> None:
    order = Mixed(n=90, seed=0, sizes=(40, 300), shares=((0.5, 0.5),))
    drawn = np.concatenate([epoch_of(order, epoch) for epoch in range(20)])  # 900 of each source
    counts = np.bincount(drawn, minlength=340)
    assert sorted(counts[:40].tolist()) == [22] * 20 + [23] * 20
    assert counts[40:].tolist() == [3] * 300


def test_sources_are_interleaved() -> None:
    order = Mixed(n=1000, seed=0, sizes=(1000, 1000), shares=((0.5, 0.5),))
    firsts = epoch_of(order)[:500] < 1000
    assert 0.4 < firsts.mean() < 0.6
