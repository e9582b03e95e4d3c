"""Steps with one image size each: coverage, equality on all ranks, positions, and sizes that change by epoch."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest

from penstock.loaders.order.bucket_order import Bucketed, make_bucketed
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.schedule import Phase, Schedule
from penstock.pipelines.errors import LoaderError

SIZES = ((224, 224), (192, 256), (256, 192), (160, 320))


def bucketed(counts: list[int], *, shuffled: bool = True, seed: int = 5) -> tuple[Bucketed, list[int]]:
    """Return an order with `counts` samples per bucket in a mixed source, and the bucket of each sample."""
    buckets = np.random.default_rng(sum(counts)).permutation(np.repeat(np.arange(len(counts), dtype=np.uint8), counts))
    return make_bucketed(buckets, SIZES[: len(counts)], seed, shuffled=shuffled), buckets.tolist()


def walk(schedule: Schedule, epoch: int = 0) -> list[Cursor]:
    """Return the positions of all steps of an epoch."""
    cursors = [Cursor(epoch, 0)]
    while (following := schedule.after(cursors[-1])).epoch == epoch:
        cursors.append(following)
    return cursors


@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("counts", [[37, 61, 24, 13], [24, 48], [12, 0, 100], [100]], ids=str)
def test_every_sample_is_served_once_in_steps_of_one_bucket_alike_on_all_ranks(
    counts: list[int], drop_last: bool, shuffled: bool
) -> None:
    order, bucket_of = bucketed(counts, shuffled=shuffled)
    epochs: dict[int, list[list[list[int]]]] = {}
    for world in (1, 2, 3):
        about: dict[str, Any] = {"n": order.n, "order": order, "drop_last": drop_last, "pad": True}
        ranks = [Schedule(**about, batch_size=12 // world, rank=rank, world_size=world) for rank in range(world)]
        epochs[world] = []
        for epoch in range(3):
            cursors, steps = walk(ranks[0], epoch), []
            assert all(walk(schedule, epoch) == cursors for schedule in ranks)
            assert {schedule.steps(0, epoch) for schedule in ranks} == {len(cursors)}
            served = 0
            for number, cursor in enumerate(cursors):
                step = list(itertools.chain.from_iterable(schedule.batch(*cursor).tolist() for schedule in ranks))
                (size,) = {schedule.shape_at(cursor) for schedule in ranks}
                held = [sample for sample in step if sample >= 0]
                assert size is not None
                assert {SIZES[bucket_of[sample]] for sample in held} == {size}
                assert step == held + [-1] * (12 - len(held))
                assert cursor.position == served  # the position counts the served samples
                assert ranks[0].number(cursor) == number
                assert ranks[-1].steps(cursor.position, epoch) == len(cursors) - number
                served += len(held)
                steps.append(step)
            every = [sample for step in steps for sample in step if sample >= 0]
            expected = [count // 12 * 12 if drop_last else count for count in counts]
            assert len(every) == len(set(every))
            assert np.bincount([bucket_of[sample] for sample in every], minlength=len(counts)).tolist() == expected
            epochs[world].append(steps)
    assert epochs[1] == epochs[2] == epochs[3]  # also for another world size: the same steps
    assert (epochs[1][0] != epochs[1][1]) == shuffled


def test_without_a_shuffle_the_buckets_follow_each_other_in_the_order_of_the_source() -> None:
    order, bucket_of = bucketed([5, 7], shuffled=False)
    schedule = Schedule(n=12, batch_size=4, order=order, drop_last=False)
    served = [schedule.batch(*cursor) for cursor in walk(schedule)]
    assert [(batch >= 0).sum() for batch in served] == [4, 1, 4, 3]
    flat = [sample for batch in served for sample in batch.tolist() if sample >= 0]
    assert flat == sorted(range(12), key=lambda sample: (bucket_of[sample], sample))


def test_buckets_are_mixed_and_short_batches_are_not_always_last() -> None:
    order, _ = bucketed([605, 605])
    schedule = Schedule(n=1210, batch_size=10, order=order, drop_last=False, pad=True)
    changes, short = [], []
    for epoch in range(20):
        cursors = walk(schedule, epoch)
        sizes = [schedule.shape_at(cursor) for cursor in cursors]
        changes.append(np.mean([first != second for first, second in itertools.pairwise(sizes)]))
        short += [at for at, cursor in enumerate(cursors) if (schedule.batch(*cursor) < 0).any()]
    assert 0.45 < np.mean(changes) < 0.55  # as by coin flips
    assert len(short) == 40
    assert 40 < np.mean(short) < 82  # of 122 steps


def test_members_are_in_the_name_of_an_order_and_in_source_order() -> None:
    buckets = np.random.default_rng(0).integers(0, 2, 5000, np.uint8)
    order, other = (make_bucketed(each, SIZES[:2], 1, shuffled=True) for each in (buckets, buckets[::-1]))
    assert order.name != other.name
    for number in range(2):
        members = order.members.array[order.starts[number] : order.starts[number + 1]]
        assert members.tolist() == np.flatnonzero(buckets == number).tolist()


@pytest.mark.parametrize("place", [84, 17])
def test_a_position_within_a_step_is_refused(place: int) -> None:
    order, _ = bucketed([23, 23, 23, 23])
    with pytest.raises(LoaderError, match=f"no batch of 12 samples begins at position {place}"):
        Schedule(n=92, batch_size=12, order=order).resume_at(Cursor(0, place))


def test_each_bucket_is_shuffled_separately() -> None:
    order = make_bucketed(np.repeat(np.arange(2, dtype=np.uint8), 50), SIZES[:2], 1, shuffled=True)
    first, second = (order(0, np.arange(begin, begin + 50)) - begin for begin in (0, 50))
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(50))
    assert np.count_nonzero(first == second) < 10


def test_ranks_without_a_sample_of_a_short_batch_get_padding() -> None:
    order, _ = bucketed([40, 1])
    ranks = [Schedule(n=41, batch_size=4, rank=r, world_size=4, order=order, drop_last=False) for r in range(4)]
    (lonely,) = [cursor for cursor in walk(ranks[0]) if ranks[0].shape_at(cursor) == SIZES[1]]
    assert [int((schedule.batch(*lonely) >= 0).sum()) for schedule in ranks] == [1, 0, 0, 0]


def test_a_position_far_inside_a_large_epoch_is_found_without_memory() -> None:
    n = 1_000_000
    buckets = np.random.default_rng(0).integers(0, 4, n, np.uint8)
    order = make_bucketed(buckets, SIZES, 1, shuffled=True)
    schedule = Schedule(n=n, batch_size=256, order=order)
    schedule.batch(0, 0)  # first use
    tracemalloc.start()
    cursor = Cursor(3, 256 * 2000)
    batch = schedule.batch(*cursor)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 300_000
    assert {SIZES[bucket] for bucket in buckets[batch]} == {schedule.shape_at(cursor)}


# ---- sizes by epoch ----

PHASES = (Phase(0, 12, (32, 32)), Phase(2, 8, (48, 40)), Phase(3, 20, (64, 64)))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_epochs_with_another_batch_size_still_serve_every_sample_once(world: int) -> None:
    ranks = [
        Schedule(n=100, batch_size=20, rank=rank, world_size=world, phases=PHASES, drop_last=False)
        for rank in range(world)
    ]
    for epoch, (batch_size, size) in enumerate([(12, (32, 32)), (12, (32, 32)), (8, (48, 40)), (20, (64, 64))]):
        cursors = walk(ranks[0], epoch)
        assert len(cursors) == ranks[0].steps(0, epoch) == -(-100 // (batch_size * world))
        assert {schedule.shape_at(cursor) for schedule in ranks for cursor in cursors} == {size}
        served = np.concatenate([schedule.batch(*cursor) for cursor in cursors for schedule in ranks])
        assert len(served) == len(cursors) * world * batch_size
        assert sorted(served[served >= 0].tolist()) == list(range(100))
    assert walk(ranks[0], 9) == [cursor._replace(epoch=9) for cursor in walk(ranks[0], 3)]  # the last phase continues
    assert ranks[0].shapes() == ((12, (32, 32)), (8, (48, 40)), (20, (64, 64)))


def test_draws_by_position_follow_the_batch_size_of_the_epoch() -> None:
    class Twice:
        n, name, repeats = 100, "twice", True

        def __call__(self, epoch: int, positions: Any) -> Any:
            return positions // 2

    schedule = Schedule(n=100, batch_size=20, phases=PHASES, order=Twice())
    for epoch, batch_size in ((0, 12), (2, 8), (3, 20)):
        keys = schedule.draw_keys(Cursor(epoch, 40))
        assert keys is not None
        assert keys.tolist() == list(range(40, 40 + batch_size))
