"""Rounds of measurements: their order and number, and the ones that a budget leaves out."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock.bench.record.bench_record import DECODE, decode_name
from penstock.bench.record.clock import Rate
from penstock.bench.record.settings import BenchSettings
from penstock.bench.run import rounds as rounds_module
from penstock.bench.run.rounds import Display, Prepared, Rounds
from penstock.bench.run.time_budget import CLOSING_S, TimeBudget

LOADER, BASELINE = ("loader", "penstock, torch backend"), ("baseline", "torch DataLoader + Pillow")
MINE, OTHER, ALONE = (("ceiling", name) for name in (decode_name("turbojpeg"), decode_name("pillow"), DECODE))


class Time:
    """Time that passes only with measurements; replaces a stopwatch."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[tuple[str, str]] = []

    def stopwatch(self) -> Any:
        started = self.now

        class Watch:
            seconds = property(lambda watch: self.now - started)

        return Watch()

    def probe(self, key: tuple[str, str], takes: float, rates: Callable[[int], float]) -> Rate:
        self.calls.append(key)
        self.now += takes
        return Rate.from_steps([1], [1 / rates(self.calls.count(key))])


def rounds(
    monkeypatch: pytest.MonkeyPatch,
    budget: float | None,
    probes: dict[tuple[str, str], tuple[float, Callable[[int], float]]],
    keep: float = 0.0,
    **settings: Any,
) -> tuple[Time, dict[Any, Any], list[Any]]:
    time = Time()
    monkeypatch.setattr(rounds_module, "Stopwatch", time.stopwatch)
    monkeypatch.setattr(rounds_module, "wait_until_idle", lambda: None)
    left = TimeBudget(budget)
    left._watch = time.stopwatch()
    made = Rounds(
        BenchSettings(budget=budget, seconds=1.0, **settings),
        left,
        {key: partial(time.probe, key, takes, rates) for key, (takes, rates) in probes.items()},
        decoder="turbojpeg",
        display=Display(),
        failed=lambda key, error: None,
    )
    made.run(keep=keep)
    return time, made.results, made.late


def steady(number: int) -> float:
    return 100.0


def drifting(number: int) -> float:
    return 100.0 * 1.1**number


def test_without_a_budget_each_is_made_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    probes = {ALONE: (5.0, steady), LOADER: (5.0, drifting)}
    time, results, late = rounds(monkeypatch, None, probes, rounds=4)
    assert time.calls == [ALONE, LOADER] * 4
    assert (sorted(map(len, results.values())), late) == ([4, 4], [])
    assert rounds(monkeypatch, None, probes)[0].calls == [ALONE, LOADER] * 3


def test_with_a_budget_the_verdicts_measurements_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    probes = dict.fromkeys((ALONE, OTHER, BASELINE, MINE, LOADER), (10.0, drifting))
    time, _, late = rounds(monkeypatch, 38 + CLOSING_S, probes)
    assert time.calls == [LOADER, MINE, OTHER, ALONE]  # a loader takes as long as the first, a ceiling is short
    assert (late, time.now) == ([BASELINE], 40)


def test_settled_measurements_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    time, _, _ = rounds(monkeypatch, 100.0, {LOADER: (2.0, drifting), MINE: (2.0, steady)})
    assert time.calls.count(MINE) == 2
    assert time.calls.count(LOADER) > 10
    assert time.now <= 100 - CLOSING_S


def test_compared_loaders_alternate_and_continue_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ratio of unequal numbers of rounds would compare a machine at two speeds."""
    probes = {LOADER: (2.0, drifting), MINE: (2.0, steady), BASELINE: (2.0, steady)}
    time, results, _ = rounds(monkeypatch, 100.0, probes)
    assert time.calls[:3] == [LOADER, MINE, BASELINE]
    assert time.calls[3:10] == [BASELINE, LOADER, MINE, LOADER, BASELINE, BASELINE, LOADER]
    assert 10 < len(results[LOADER]) <= len(results[BASELINE]) <= len(results[LOADER]) + 1  # a round may be cut
    settled = rounds(monkeypatch, 100.0, dict.fromkeys(probes, (2.0, steady)))[1]
    assert [len(found) for found in settled.values()] == [2, 2, 2]


def test_time_is_reserved_for_the_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    probes = {LOADER: (2.0, drifting)}
    kept = rounds(monkeypatch, 100.0, probes, keep=20.0)[0].now
    assert 70 < kept <= 80 < rounds(monkeypatch, 100.0, probes)[0].now


def test_measurements_that_do_not_fit_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    _, results, late = rounds(monkeypatch, 1.0, {LOADER: (2.0, steady), MINE: (2.0, steady)})
    assert (results, late) == ({}, [LOADER, MINE])


def test_a_budget_reports_its_remaining_time() -> None:
    assert (TimeBudget().left, TimeBudget().share(0.5)) == (math.inf, 0.0)
    budget = TimeBudget(100.0, used=30.0)
    assert 60 < budget.left <= 70 - CLOSING_S
    assert budget.share(0.2) == 20.0
    assert TimeBudget.of_this_process(1000.0).used > 0.1


def test_slow_preparation_is_delayed_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def probe(name: str) -> Callable[[], Rate]:
        return lambda: (order.append(name), Rate.from_steps([1], [0.01]))[1]

    prepared = Prepared(lambda: (order.append("prepared"), probe("late"))[1])
    probes = {LOADER: probe("loader"), ALONE: prepared}
    settings, failed = BenchSettings(budget=100.0, seconds=1.0), lambda *_: None
    Rounds(settings, TimeBudget(100.0), probes, decoder="a", display=Display(), failed=failed).run()
    assert order == ["loader", "prepared", "late", "loader", "late"]
