"""Batch sizes that change within an epoch: coverage, positions, equality on all ranks, and schedules by update."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.epoch_steps import Rounds
from penstock.loaders.order.schedule import Phase, Schedule
from penstock.pipelines.errors import LoaderError

LENGTHS = (64, 128, 128, 384)


def in_patches(world: int = 1, **settings: Any) -> list[Schedule]:
    """Return the schedule of each rank; global batches of 36, 18, 18 and 6."""
    sizes = tuple(size // world for size in (36, 18, 18, 6))
    rounds = Rounds(patch=16, lengths=LENGTHS, batch_sizes=sizes, max_ratio=None, shuffled=True)
    about = {"n": 1000, "batch_size": max(sizes), "seed": 3, "drop_last": False, "rounds": rounds, **settings}
    return [Schedule(**about, rank=rank, world_size=world) for rank in range(world)]


def walk(schedule: Schedule, epoch: int) -> list[Cursor]:
    cursors = [Cursor(epoch, 0)]
    while (following := schedule.after(cursors[-1])).epoch == epoch:
        cursors.append(following)
    assert following == Cursor(epoch + 1, 0)
    return cursors


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("n", [36, 83, 1000])
def test_every_sample_is_served_once_in_steps_equal_on_all_ranks(n: int, drop_last: bool) -> None:
    epochs: dict[int, list[Any]] = {}
    for world in (1, 2, 3):
        ranks, epochs[world] = in_patches(world, n=n, drop_last=drop_last), []
        for epoch in range(3):
            cursors = walk(ranks[0], epoch)
            assert all(walk(schedule, epoch) == cursors for schedule in ranks)
            steps = [np.concatenate([each.batch(*cursor) for each in ranks]).tolist() for cursor in cursors]
            lengths = [ranks[0].shape_at(cursor) for cursor in cursors]
            for number, (cursor, step) in enumerate(zip(cursors, steps, strict=True)):
                left = ranks[-1].steps(cursor.position, epoch)
                assert (ranks[0].number(cursor), left) == (number, len(cursors) - number)
                assert {schedule.shape_at(cursor) for schedule in ranks} == {lengths[number]}
                assert len(step) == {64: 36, 128: 18, 384: 6}[lengths[number]] == ranks[0].batch_size_at(cursor) * world
            epochs[world].append((steps, lengths))
            served = [sample for step in steps for sample in step if sample >= 0]
            most = ranks[0].share(epoch) * world
            assert len(served) == len(set(served)) == (most if drop_last else n)
            assert n - len(served) < 36
    assert epochs[1] == epochs[2] == epochs[3]
    assert len({len(steps) for steps, _ in epochs[1]}) == 1


def test_all_lengths_are_equally_frequent_in_a_random_order() -> None:
    (schedule,) = in_patches(n=7800)
    lengths = [[schedule.shape_at(cursor) for cursor in walk(schedule, epoch)] for epoch in range(2)]
    for epoch in lengths:
        assert Counter(epoch) == {64: 100, 128: 200, 384: 100}
        assert all(Counter(epoch[at : at + 4]) == Counter(LENGTHS) for at in range(0, 400, 4))
        firsts = Counter(epoch[::4])
        assert all(10 < count < 70 for count in firsts.values())
    assert lengths[0] != lengths[1]
    assert lengths[0] != [s.shape_at(c) for s in in_patches(n=7800, seed=4) for c in walk(s, 0)]
    in_order = replace(schedule, rounds=replace(schedule.rounds, shuffled=False))
    assert [in_order.shape_at(cursor) for cursor in walk(in_order, 1)] == [*LENGTHS] * 100


def test_an_epoch_in_patches_continues_only_with_its_batches() -> None:
    (schedule,) = in_patches()
    middle = walk(schedule, 0)[5]
    state = {**schedule.saved(middle), "position": middle.position}
    for other in in_patches(2):
        other.check_saved(state, middle)
    (fewer,) = in_patches(rounds=replace(schedule.rounds, batch_sizes=(18, 9, 9, 3)))
    fewer.check_saved(state, Cursor(1, 0))
    with pytest.raises(
        LoaderError, match=r"an epoch must continue with the same global batch: saved \[36, 18, 18, 6\]"
    ):
        fewer.check_saved(state, middle)
    with pytest.raises(LoaderError, match="no batch begins at position 5 of an epoch in patches"):
        schedule.resume_at(Cursor(0, 5))
    with pytest.raises(ValueError, match="patches on several ranks need padding"):
        in_patches(2, pad=False)


def test_a_position_in_a_billion_samples_is_found_at_once() -> None:
    (schedule,) = in_patches(n=10**9)
    cursor = schedule.after(Cursor(7, 78 * 10**7))
    assert cursor.position - 78 * 10**7 in (36, 18, 6)
    assert schedule.steps(cursor.position, 7) + schedule.number(cursor) == len(range(10**9 // 78 * 4)) + 3


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_sizes_by_update_change_at_the_batches_of_a_run(world: int, drop_last: bool) -> None:
    """Phases that begin anywhere: inside an epoch, at its ends, several in one epoch and none in several."""
    draw = np.random.default_rng(world)
    for _ in range(30):
        changes = np.unique(draw.integers(0, 60, draw.integers(1, 6)) * (draw.random() < 0.9))
        firsts = [0, *changes[changes > 0].tolist()]
        phases = tuple(Phase(first, int(draw.integers(1, 9)), (first + 8, 8), True) for first in firsts)
        n, largest = int(draw.integers(30, 90)), max(phase.batch_size for phase in phases)
        about: dict[str, Any] = {"n": n, "batch_size": largest, "phases": phases, "drop_last": drop_last}
        ranks = [Schedule(**about, rank=rank, world_size=world, pad=True) for rank in range(world)]
        update, epoch, served = 0, 0, []
        cursor = Cursor(0, 0)
        while update < 80:
            phase = max(phase for phase in phases if phase.first <= update)
            step = np.concatenate([schedule.batch(*cursor) for schedule in ranks])
            assert len(step) == phase.batch_size * world
            assert ranks[0].shape_at(cursor) == phase.size
            number = ranks[0].number(cursor)
            assert ranks[0].steps(0, epoch) == number + ranks[0].steps(cursor.position, epoch)
            assert (number == 0) == (cursor.position == 0)
            served += step[step >= 0].tolist()
            following = ranks[-1].after(cursor)
            if following.epoch == epoch:
                assert ranks[0].number(following) == number + 1
            else:
                assert following == Cursor(epoch + 1, 0)
                assert number + 1 == ranks[0].steps(0, epoch)
                left = sorted(set(range(n)) - set(served))
                assert len(served) == len(set(served))
                assert len(left) < (largest * world if drop_last else 1)
                assert not drop_last or len(served) == ranks[0].share(epoch) * world
                served, epoch = [], epoch + 1
            cursor, update = following, update + 1


def test_a_rank_without_a_sample_in_the_last_batch_ends_before_it() -> None:
    phases = (Phase(0, 4, (8, 8), True), Phase(2, 6, (8, 8), True))
    about: dict[str, Any] = {"n": 30, "batch_size": 6, "phases": phases, "drop_last": False, "pad": False}
    first, second = (Schedule(**about, rank=rank, world_size=2) for rank in range(2))
    assert (first.steps(), first.served_steps(), second.served_steps()) == (4, 4, 3)
