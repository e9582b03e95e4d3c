"""The order of an epoch: a uniform bijection in O(1) memory, and a schedule that covers it exactly."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.permutation import Permutation
from penstock.loaders.order.schedule import Schedule


def permuted(n: int, seed: int = 0, epoch: int = 0) -> list[int]:
    indices: list[int] = Permutation.of_epoch(n, seed, epoch)(np.arange(n)).tolist()
    return indices


# ---- the permutation ----


def test_the_permutation_is_a_bijection_for_every_small_n() -> None:
    for n in range(1, 400):
        assert sorted(permuted(n, seed=n)) == list(range(n)), n


@pytest.mark.parametrize("n", [1024, 65_537, 1_281_167])
def test_the_permutation_is_a_bijection_for_large_n(n: int) -> None:
    indices = Permutation.of_epoch(n, 3, 4)(np.arange(n))
    assert indices.dtype == np.int64
    assert (np.bincount(indices, minlength=n) == 1).all()


@pytest.mark.parametrize("n", [10**9, 2**40 + 1, 2**62 - 1, 2**62])
def test_indices_of_a_huge_permutation_are_in_range_and_distinct(n: int) -> None:
    ends = np.array([0, 1, 2, n - 2, n - 1], np.int64)
    positions = np.unique(np.concatenate([ends, np.random.default_rng(0).integers(0, n, 20_000)]))
    indices = Permutation.of_epoch(n, 1, 0)(positions)
    assert indices.min() >= 0
    assert indices.max() < n
    assert len(np.unique(indices)) == len(positions)
    quarters = np.bincount(indices * 4 // n if n < 2**60 else indices // (n // 4 + 1), minlength=4)
    assert (abs(quarters / len(positions) - 0.25) < 0.02).all()


def test_a_position_does_not_depend_on_the_others_in_a_call() -> None:
    permutation = Permutation.of_epoch(1000, 5, 6)
    whole = permutation(np.arange(1000)).tolist()
    assert [int(permutation(np.array([p]))[0]) for p in range(0, 1000, 37)] == whole[::37]
    assert permutation(np.arange(999, -1, -1)).tolist() == whole[::-1]
    assert permutation(np.zeros(0, np.int64)).tolist() == []


KNOWN = [
    [2, 6, 3, 0, 7, 5, 1, 4, 9, 8],
    [6, 2, 8, 7, 5, 1, 9, 0, 4, 3],
    [6, 9, 7, 0, 5, 2, 4, 8, 1, 3],
    [811362933, 661630311, 943815912],
]


def test_the_order_is_the_one_that_saved_states_rely_on() -> None:
    """Known values: changing them breaks every resumed run and needs a new SAMPLER name."""
    assert permuted(10, seed=0, epoch=0) == KNOWN[0]
    assert permuted(10, seed=0, epoch=1) == KNOWN[1]
    assert permuted(10, seed=2**64 - 1, epoch=0) == KNOWN[2]
    assert Permutation.of_epoch(10**9, 1, 2)(np.array([0, 1, 7 * 10**8])).tolist() == KNOWN[3]


def test_seeds_and_epochs_give_unrelated_orders() -> None:
    n, keys = 1000, [(0, 0), (0, 1), (1, 0), (1, 1), (2**63, 0), (0, 2**31)]
    orders = [np.array(permuted(n, seed, epoch)) for seed, epoch in keys]
    for one, two in itertools.combinations(orders, 2):
        assert (one == two).sum() < 10  # 1 is expected
        assert abs(np.corrcoef(one, two)[0, 1]) < 0.15


@pytest.mark.parametrize(("n", "expected"), [(2, 100), (3, 60), (4, 20), (5, 5)])
def test_every_permutation_is_equally_likely(n: int, expected: int) -> None:
    """Pearson's chi-square over the n! permutations; the seeds are fixed."""
    kinds = math.factorial(n)
    trials = expected * kinds
    counts = dict.fromkeys(itertools.permutations(range(n)), 0)
    for trial in range(trials):
        counts[tuple(permuted(n, seed=trial // 7, epoch=trial % 7))] += 1
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    freedom = kinds - 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)
    assert statistic > freedom - 5 * math.sqrt(2 * freedom)  # more even than chance would be a defect as well


@pytest.mark.parametrize("n", [7, 16])
def test_even_and_odd_permutations_are_equally_likely(n: int) -> None:
    """A Feistel network over so few values makes only even ones, unless it walks in a larger domain."""
    trials = 500
    later = np.triu_indices(n, 1)
    orders = [np.array(permuted(n, seed=trial)) for trial in range(trials)]
    odd = sum(int((order[later[0]] > order[later[1]]).sum()) % 2 for order in orders)
    assert abs(odd - trials / 2) < 5 * math.sqrt(trials) / 2


@pytest.mark.parametrize("n", [33, 64])
def test_every_sample_is_equally_likely_at_every_position(n: int) -> None:
    trials = 1000
    counts = np.zeros((n, n), np.int64)
    for trial in range(trials):
        counts[np.arange(n), permuted(n, seed=trial)] += 1
    expected, freedom = trials / n, (n - 1) ** 2
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert abs(statistic - freedom) < 6 * math.sqrt(2 * freedom)


def test_neighbours_do_not_stay_together() -> None:
    """Successive samples of the data set follow each other only as often as by chance."""
    n = 10_000
    together = sum(int((np.diff(permuted(n, seed=seed)) == 1).sum()) for seed in range(20))
    assert together < 20 + 6 * math.sqrt(20)


def test_a_position_far_inside_a_huge_epoch_needs_no_memory() -> None:
    schedule = Schedule(n=10**9, batch_size=256, seed=1)
    schedule.batch(0, 0)  # first use
    tracemalloc.start()
    batch = schedule.batch(3, 7 * 10**8)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
    assert len(set(batch.tolist())) == 256
    assert batch.max() < 10**9


# ---- the schedule ----


def brute_force(schedule: Schedule, epoch: int, start: int) -> list[list[list[int]]]:
    """[step][rank] -> indices, from the written rule alone."""
    order = permuted(schedule.n, schedule.seed, epoch) if schedule.shuffle else list(range(schedule.n))
    steps, position = [], start
    size, ranks = schedule.batch_size, schedule.world_size
    while schedule.n - position >= size * ranks or (not schedule.drop_last and position < schedule.n):
        row = order[position : position + size * ranks]
        row += [-1] * (size * ranks - len(row))
        steps.append([row[rank * size : (rank + 1) * size] for rank in range(ranks)])
        position += size * ranks
    return steps


def schedules() -> list[tuple[int, int, int, bool, bool]]:
    draw = np.random.default_rng(0)
    cases = [(1, 1, 1, True, True), (1, 5, 3, False, False), (12, 4, 3, True, True), (13, 4, 3, False, True)]
    for _ in range(150):
        n, batch_size, world_size = (int(draw.integers(1, high)) for high in (80, 12, 7))
        drop_last = bool(draw.integers(2)) and batch_size * world_size <= n
        cases.append((n, batch_size, world_size, drop_last, bool(draw.integers(2))))
    return cases


def test_a_schedule_follows_the_written_rule() -> None:
    draw = np.random.default_rng(1)
    for n, batch_size, world_size, drop_last, shuffle in schedules():
        about: dict[str, Any] = {"n": n, "seed": n, "shuffle": shuffle, "drop_last": drop_last}
        about |= {"batch_size": batch_size, "world_size": world_size}
        ranks = [Schedule(**about, rank=rank) for rank in range(world_size)]
        for start in (0, int(draw.integers(0, n + 1))):
            expected = brute_force(ranks[0], 2, start)
            assert {schedule.steps(start) for schedule in ranks} == {len(expected)}
            cursors = [schedule.settle(Cursor(2, start)) for schedule in ranks]
            for step in expected:
                assert len(set(cursors)) == 1
                assert cursors[0].epoch == 2
                assert [schedule.batch(*cursors[0]).tolist() for schedule in ranks] == step
                cursors = [schedule.after(cursor) for schedule, cursor in zip(ranks, cursors, strict=True)]
            assert set(cursors) == {Cursor(3, 0)}
            for rank, schedule in enumerate(ranks):  # without padding, a rank ends with its last sample
                with_samples = [step for step in expected if any(index >= 0 for index in step[rank])]
                assert replace(schedule, pad=False).served_steps(start) == len(with_samples)


def test_the_step_is_the_same_for_every_world_size_of_one_global_batch() -> None:
    whole = Schedule(n=1000, batch_size=24, seed=9)
    for world_size in (2, 3, 4, 6, 8, 12, 24):
        ranks = [
            Schedule(n=1000, batch_size=24 // world_size, seed=9, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        for position in (0, 24, 960):
            parts = np.concatenate([rank.batch(1, position) for rank in ranks])
            assert parts.tolist() == whole.batch(1, position).tolist()


@pytest.mark.parametrize("n", [1, 2, 33, 1000, 65_537, 10**12])
def test_the_inverse_permutation_returns_the_position(n: int) -> None:
    permutation = Permutation.of_epoch(n, 9, 3)
    positions = np.unique(np.random.default_rng(1).integers(0, n, 500))
    assert np.array_equal(permutation.inverse(permutation(positions)), positions)
